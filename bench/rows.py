"""Result rows: made here, kept in ``bench/results/<device>.jsonl``, printed as tables."""

from __future__ import annotations

import datetime
import json
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.timing import Timing
from rangeops.device.streams import gpu_count

RESULTS = Path(__file__).parent / "results"
_PACKAGES = (
    "numpy",
    "numba",
    "numba-cuda",
    "cuda-core",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "torch",
    "jax",
    "optax",
)


@cache
def device_name() -> str:
    """Return the GPU's name, or "cpu" with the number of cores."""
    if gpu_count():
        import cupy

        return str(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    import os

    return f"cpu-{len(os.sched_getaffinity(0))}-cores"


@cache
def environment() -> dict[str, str]:
    """Return versions of the tools, the driver and the commit."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if gpu_count():
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["driver"] = _output(query).splitlines()[0]
    commit = _output(["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"])
    return found | ({"commit": commit} if commit else {})


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def row(
    topic: str,
    case: str,
    subject: str,
    timing: Timing,
    nbytes: int | None = None,
    copy_rate: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return one result: subject, milliseconds, spread, bytes, GB/s, share of the copy rate."""
    out: dict[str, Any] = {
        "topic": topic,
        "case": case,
        "subject": subject,
        "ms": round(timing.ms, 6),
        "spread": round(timing.spread, 4),
    }
    if nbytes:
        rate = nbytes / timing.seconds
        out |= {"bytes": nbytes, "gb_per_s": round(rate / 1e9, 1)}
        if copy_rate:
            out["share_of_copy"] = round(rate / copy_rate, 4)
    return out | more


def save(rows: Iterable[dict[str, Any]], folder: Path = RESULTS) -> Path:
    """Append rows with device, versions and date to the device's file."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", device_name()).strip("-").lower()
    file = folder / f"{name}.jsonl"
    stamp = {
        "device": device_name(),
        "versions": environment(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    with file.open("a") as out:
        for item in rows:
            out.write(json.dumps(item | stamp) + "\n")
    return file


def table(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> str:
    """Return rows as a Markdown table; ``columns`` maps keys to headings."""

    def text(value: Any) -> str:
        if value is None:
            return ""
        return f"{value:,.4g}" if isinstance(value, float) else str(value)

    cells = [list(columns.values())] + [[text(r.get(k)) for k in columns] for r in rows]
    width = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, width, strict=True)) + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in width) + "|")
    return "\n".join(lines)


STEP_COLUMNS = {
    "case": "model",
    "subject": "step",
    "ms": "ms",
    "spread": "spread",
    "gb_per_s": "GB/s",
    "share_of_copy": "share of copy",
    "ratio": "time / ours",
}
"""Columns of a table of steps: key of a row -> heading."""

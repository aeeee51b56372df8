"""Result rows: made here, kept in ``bench/results/<device>.jsonl``, printed as tables."""

from __future__ import annotations

import datetime
import json
import platform
import re
import subprocess
from collections.abc import Iterable
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


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> str:
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


_STEP = {
    "case": "model",
    "subject": "step",
    "ms": "ms",
    "spread": "spread",
    "gb_per_s": "GB/s",
    "share_of_copy": "share of copy",
    "ratio": "time / ours",
}

TOPICS: dict[str, tuple[str, dict[str, str]]] = {
    "step-cpu": ("Whole-model AdamW step on the CPU", _STEP),
    "step-gpu": ("Whole-model AdamW step (FP32) on the GPU", _STEP),
    "amp-step": (
        "Mixed-precision step (check, unscale, AdamW, EMA, half copy, clear) on the GPU",
        _STEP | {"host_us": "host us"},
    ),
    "ratio-step": (
        "LARS and LAMB (FP32) on the GPU; the floor is their bytes at the copy rate",
        _STEP | {"floor_ms": "floor ms"},
    ),
    "trainer": (
        "A torch training step (bf16 autocast, AdamW) over the adapter and over torch's optimizers",
        {k: v for k, v in _STEP.items() if k not in ("gb_per_s", "share_of_copy")}
        | {"host_us": "host us", "host_us_unwatched": "unwatched"},
    ),
    "pool": (
        "Allocators on the trace of a training step (GPT-2 124M, bf16, ms a step of one thread; "
        "peak live is the sum of the threads' peaks, which need not fall together)",
        {
            "case": "trace",
            "subject": "allocator",
            "ms": "ms",
            "pairs_per_s": "take+give / s",
            "ratio": "time / ours",
            "driver_calls": "driver calls after warm-up",
            "reserved_over_live": "reserved / peak live",
        },
    ),
    "input": (
        "Feeding a step from the host (ms a batch)",
        {
            "case": "batch",
            "subject": "loop",
            "ms": "ms",
            "spread": "spread",
            "gb_per_s": "GB/s",
            "share_of_link": "share of the link",
            "ratio": "time / ours",
        },
    ),
    "ranks": (
        "Two GPUs: all-reduce of all gradients in FP32, and whole steps",
        {
            "case": "model",
            "subject": "what",
            "ms": "ms",
            "spread": "spread",
            "bus_gb_per_s": "bus GB/s",
            "ratio": "time / ours",
            "arena_mb": "arena MB",
        },
    ),
    "tensor-sweep": ("25.6 M parameters in n tensors", {**_STEP, "case": "tensors"}),
    "size-sweep": ("AdamW (FP32) against size", {**_STEP, "case": "parameters"}),
    "op-rate": (
        "Every op against a device copy of the same run",
        {
            "case": "op",
            "elements": "elements",
            "bytes": "bytes",
            "ms": "ms",
            "gb_per_s": "GB/s",
            "share_of_copy": "share of copy",
            "share_of_memset": "share of memset",
        },
    ),
    "host-cost": ("What a launch costs the host", {"case": "call", "us": "us", "spread": "spread"}),
    "first-use": (
        "First step of a fresh process (seconds)",
        {
            "case": "kernel cache",
            "subject": "where",
            "import_s": "import",
            "arena_s": "arena",
            "first_step_s": "first step",
        },
    ),
}
"""Topic -> title and columns of its table."""

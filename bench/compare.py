"""Compare two trees of the library in one run: ``python -m bench.compare OLD NEW --only steps``.

Each topic is measured by each tree's own ``python -m bench``, in turn (old new old new), since a
machine's times drift.  Rows are matched by topic, case and subject.  A row's ratio is the median
of new over the median of old; rows slower by more than 1 % are flagged, and where the two trees'
rounds overlap, the flag says that too.  Peers' rows are the same work in both: they show the noise.
Writes ``compare.md`` and ``compare.json``; the exit status is 1 if a row is slower or a topic
failed in a tree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.rows import table

SLOWER = 1.01
"""The ratio above which a row is flagged."""

RENAMED: dict[tuple[str, str, str], tuple[str, str, str]] = {}
"""(topic, case, subject) of an old row -> that of the new one, where a name has changed."""

PEERS = ("NumPy", "torch", "CuPy", "optax", "numba", "cudaMemset")
"""How the rows of others begin: they are the same in both trees, so their ratio is the noise."""

Key = tuple[str, str, str]
Times = dict[Key, list[float]]

COLUMNS = {
    "topic": "topic",
    "case": "case",
    "subject": "subject",
    "old_ms": "old ms",
    "new_ms": "new ms",
    "ratio": "new / old",
    "flag": "",
}


def key_of(row: dict[str, Any]) -> Key:
    """Return what identifies a row in both trees."""
    key = row["topic"], row["case"], row["subject"]
    return RENAMED.get(key, key)


def measure(tree: Path, topic: str, quick: bool, seconds: float) -> tuple[list[Any], str | None]:
    """Run one topic in one tree; return its rows, those before a failure too, and what failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench", "--only", topic, "--save", "--results", folder]
        try:
            done = subprocess.run(
                command + ["--quick"] * quick,
                cwd=tree,
                capture_output=True,
                text=True,
                timeout=max(seconds, 1),
            )
            last = (done.stderr.strip() or "no word on stderr").splitlines()[-1]
            failed = f"status {done.returncode}: {last}" if done.returncode else None
        except subprocess.TimeoutExpired:
            failed = f"no end within {seconds:.0f} s"
        text = "".join(file.read_text() for file in Path(folder).iterdir())
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole], failed


def compared(old: Times, new: Times) -> Iterator[dict[str, Any]]:
    """Yield a line for every row that both have."""
    for key, times in new.items():
        if key not in old:
            continue
        medians = statistics.median(old[key]), statistics.median(times)
        ratio = medians[1] / medians[0]
        flag = ""
        if any(part.startswith(PEERS) for part in key):
            flag = "peer"
        elif ratio > SLOWER:
            flag = "SLOWER" if min(times) > max(old[key]) else "slower, rounds overlap"
        yield {
            **dict(zip(("topic", "case", "subject"), key, strict=True)),
            "old_ms": medians[0],
            "new_ms": medians[1],
            "ratio": round(ratio, 4),
            "flag": flag,
            "old_rounds_ms": old[key],
            "new_rounds_ms": times,
        }


def alternate(options: argparse.Namespace) -> tuple[dict[str, Times], list[str]]:
    """Run all rounds; return each tree's times by row, and a sentence for every failure."""
    trees = {"old": options.old.resolve(), "new": options.new.resolve()}
    times: dict[str, Times] = {"old": {}, "new": {}}
    failures = []
    end = time.monotonic() + options.budget
    for round_ in range(1, options.rounds + 1):
        for topic in options.only:
            for name, tree in trees.items():
                start = time.monotonic()
                rows, failed = measure(tree, topic, options.quick, end - start)
                took = time.monotonic() - start
                what = f"{topic} of {name}, round {round_}"
                print(f"{what}: {len(rows)} rows, {took:.0f} s", flush=True)
                if failed:
                    failures.append(f"{what}: {failed}")
                    print(failures[-1], flush=True)
                for row in rows:
                    times[name].setdefault(key_of(row), []).append(row["ms"])
    return times, failures


def write(folder: Path, lines: list[dict[str, Any]], times: dict[str, Times], failures: Any) -> str:
    """Write the table and the JSON; return the table with what failed or stands alone."""
    unmatched = {
        "only in old": [" / ".join(key) for key in times["old"] if key not in times["new"]],
        "only in new": [" / ".join(key) for key in times["new"] if key not in times["old"]],
        "failed": failures,
    }
    text = table(lines, COLUMNS) + "\n"
    noise = [line["ratio"] for line in lines if line["flag"] == "peer"]
    if noise:
        text += (
            f"\npeers, new / old: {min(noise)} to {max(noise)}, {statistics.median(noise):.4f}\n"
        )
    for title, names in unmatched.items():
        text += f"\n{title}: {len(names)}\n" + "".join(f"- {name}\n" for name in names)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.md").write_text(text)
    (folder / "compare.json").write_text(json.dumps({"rows": lines, **unmatched}, indent=1))
    return text


def main() -> int:
    """Compare; 1 if a row is slower or a topic failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("old", type=Path, help="a checkout; its own `python -m bench` runs there")
    parser.add_argument("new", type=Path, help="another")
    parser.add_argument("--only", nargs="+", required=True, help="topics that both trees have")
    parser.add_argument("--quick", action="store_true", help="hand --quick on")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each tree (default 2)")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all (default 540)")
    parser.add_argument("--out", type=Path, default=Path("compare"), help="folder of the results")
    options = parser.parse_args()
    times, failures = alternate(options)
    lines = list(compared(times["old"], times["new"]))
    print(write(options.out, lines, times, failures))
    slower = sum(line["flag"].lower().startswith("slower") for line in lines)
    print(f"{len(lines)} rows compared, {slower} slower by more than 1 %, {len(failures)} failures")
    return int(bool(slower or failures or not lines))


if __name__ == "__main__":
    sys.exit(main())

"""The main job: ``python -m bench`` verifies every op, then times whole-model steps.

On a GPU it times the arena against torch's per-parameter loop, foreach and fused AdamW, every
op's share of the copy rate, and the host's cost of a launch; with no GPU it does the same on the
CPU arena against per-parameter NumPy loops, and says so.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import coverage, plot, rows, timing
from bench.topic import Topic
from bench.topics import TABLES, TOPICS
from plan.terminal import run
from rangeops import REGISTRY
from rangeops.device.streams import gpu_count
from rangeops.verify import Verdict


def failures(found: dict[str, list[Verdict]]) -> list[str]:
    """Return a sentence for each op that differs from its reference, or that nothing compared."""
    out = []
    for name, some in found.items():
        wrong = [v.difference for v in some if v.difference]
        if wrong:
            out.append(f"{name}: {len(wrong)} of {len(some)} variants differ; {wrong[0]}")
        if not some:
            out.append(f"{name}: got 0 variants compared, expected 1 at least; see bench.coverage")
    return out


def verify_table(found: dict[str, list[Verdict]]) -> str:
    """Return the table of verdicts by op."""
    lines = []
    for name, some in found.items():
        wrong = [v.difference for v in some if v.difference]
        result = wrong[0] if wrong else "equal to its reference" if some else "NOT COMPARED"
        elements = max((v.elements for v in some), default=0)
        lines.append({"op": name, "variants": len(some), "elements": elements, "result": result})
    heads = {"op": "op", "variants": "variants", "elements": "elements", "result": "result"}
    return rows.table(lines, heads)


def verify(device: str, quick: bool, quiet: bool) -> list[str]:
    """Verify every op, print the table, and return what failed, a sentence each."""
    found: dict[str, list[Verdict]] = {name: [] for name in REGISTRY}
    verdicts = coverage.verdicts(device, quick)
    refused = []
    try:
        for verdict in tqdm(verdicts, desc="verify", unit=" variants", disable=quiet):
            found[verdict.op].append(verdict)
    except ValueError as error:  # the table of what was compared is of use none the less
        refused = [str(error)]
    print(f"\nEvery op against its NumPy reference\n\n{verify_table(found)}")
    return refused + failures(found)


def choose(quick: bool, only: Collection[str]) -> tuple[list[Topic], dict[str, list[str]]]:
    """Return the topics to measure, of those in ``only`` (all if empty), and reason -> left out."""
    chosen, left_out = [], defaultdict(list)
    for topic in TOPICS.values():
        if not only or topic.name in only:
            lacks = topic.missing(quick)
            if lacks:
                left_out[lacks].append(topic.name)
            else:
                chosen.append(topic)
    return chosen, left_out


def measure(topics: list[Topic], quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of every topic."""
    for topic in topics:
        yield from topic.rows(quick)
        timing.release()


def report(found: list[dict[str, Any]]) -> Iterable[str]:
    """Yield a titled table for each topic of the rows."""
    for topic in dict.fromkeys(r["topic"] for r in found):
        title, columns = TABLES[topic]
        yield f"\n{title}\n"
        yield rows.table([r for r in found if r["topic"] == topic], columns)


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller models, shorter runs")
    parser.add_argument("--save", action="store_true", help="append the rows to bench/results")
    parser.add_argument("--results", type=Path, default=rows.RESULTS, help="folder of the rows")
    parser.add_argument("--plot", type=Path, help="draw steps and sweeps to this file")
    parser.add_argument("--only", nargs="*", default=(), choices=TOPICS, help="these topics alone")
    return parser.parse_args()


def main() -> int:
    """Run the main job; 1 if an op differs, was not compared, or a topic asked for cannot run."""
    options = parse()
    if options.plot:
        plot.check(options.plot)
    on_gpu = gpu_count() > 0
    quiet = not sys.stderr.isatty()
    versions = ", ".join(f"{k} {v}" for k, v in rows.environment().items())
    print(f"{rows.device_name()}; {versions}")
    if not on_gpu:
        print("No GPU: the same rules run on the CPU arena (numba.njit), against NumPy loops.")
    failed = []
    if not options.only:
        failed = verify("cuda" if on_gpu else "cpu", options.quick, quiet)
    found = []
    topics, left_out = choose(options.quick, options.only)
    for reason, names in left_out.items():
        print(f"\nLeft out, since it {reason}: {', '.join(names)}")
        failed += [f"{name}: got --only {name}, but it {reason}" for name in names if options.only]
    bar = tqdm(measure(topics, options.quick), desc="bench", unit=" rows", disable=quiet)
    try:
        for row in bar:
            found.append(row)
            if options.save:
                rows.save([row], options.results)
    finally:  # what was measured by then is shown, also after Ctrl-C
        print("\n".join(report(found)))
    if options.plot:
        plot.draw(found, options.plot)
    for sentence in failed:
        print(sentence, file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(run(main))

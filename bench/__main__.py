"""The main job: ``python -m bench`` verifies every op, then times whole-model steps.

On a GPU it times the arena against torch's per-parameter loop, foreach and fused AdamW, every
op's share of the copy rate, and the host's cost of a launch; with no GPU it does the same on the
CPU arena against per-parameter NumPy loops, and says so.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import (
    amp,
    inputs,
    launches,
    plot,
    pools,
    ranks,
    rates,
    ratios,
    rows,
    steps,
    sweeps,
    trainer,
)
from plan import PlanConfig
from plan.models import mlp, plan_model
from rangeops import REGISTRY, Arena
from rangeops.device.streams import gpu_count
from rangeops.verify import Verdict, verify_all

MODELS_TIMED = ("mlp", "resnet50", "gpt2")


def verdicts(device: str, quick: bool) -> Iterator[Verdict]:
    """Verify every op: every variant on a GPU, on the CPU each alone and with all it fuses.

    Quick on the CPU, where a loop takes a second to compile: with all it fuses only.
    """
    # A plan for LAMB has the series of every optimizer.
    arena = Arena(plan_model(mlp(), PlanConfig("lamb", half="fp16", ema=True)), device=device)
    if arena.on_gpu:
        return verify_all(arena)
    return verify_all(arena, only=rates.fullest if quick else rates.shown)


def verify_table(device: str, quick: bool, quiet: bool) -> tuple[str, int]:
    """Return the table of verdicts by op, and how many variants differ from their reference."""
    found: dict[str, list[Verdict]] = {name: [] for name in REGISTRY}
    for verdict in tqdm(verdicts(device, quick), desc="verify", unit=" variants", disable=quiet):
        found[verdict.op].append(verdict)
    lines = []
    for name, some in found.items():
        wrong = [v.difference for v in some if v.difference]
        result = wrong[0] if wrong else "equal to its reference" if some else "not in this plan"
        elements = max((v.elements for v in some), default=0)
        lines.append({"op": name, "variants": len(some), "elements": elements, "result": result})
    heads = {"op": "op", "variants": "variants", "elements": "elements", "result": "result"}
    return rows.table(lines, heads), sum(bool(v.difference) for s in found.values() for v in s)


def timings(quick: bool, on_gpu: bool, only: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the main job, of the parts in ``only`` (all where it is empty)."""
    several = ("resnet50",) if quick else ("resnet50", "gpt2")
    budget = 0.3 if quick else 1.5
    models = MODELS_TIMED[:2] if quick else MODELS_TIMED
    if not on_gpu:
        parts: list[tuple[str, Iterator[dict[str, Any]]]] = [
            *(("steps", steps.cpu_steps(model, budget)) for model in models),
        ]
    else:
        parts = [
            *(("steps", steps.gpu_steps(model)) for model in models),
            *(("amp", amp.amp_steps(m)) for m in (*several, *(() if quick else ("vgg16_bn",)))),
            *(("ratios", ratios.ratio_steps(model)) for model in several),
        ]
        if not quick:
            trained = [m for m in several if trainer.can_make(m)]
            parts += [
                *(("trainer", trainer.trainer_steps(model)) for model in trained),
                ("sweeps", sweeps.tensor_sweep()),
                ("sweeps", ratios.ratio_sweep(sweeps.COUNTS, sweeps.specs_of)),
                ("sweeps", sweeps.size_sweep()),
                ("pool", pools.allocators()),
                ("input", inputs.input_paths()),
            ]
        parts += [
            ("rates", rates.op_rates(rates.ELEMENTS >> (4 if quick else 0))),
            ("host", launches.host_costs()),
        ]
        if gpu_count() > 1 and ranks.have_nccl() and not quick:
            parts.append(("ranks", ranks.rows_of_ranks()))
    parts.append(("host", launches.first_use()))
    for name, found in parts:
        if not only or name in only:
            yield from found
            give_back(on_gpu)


def give_back(on_gpu: bool) -> None:
    """Give the memory that a part leaves in the caches of CuPy and torch to the next."""
    gc.collect()
    if on_gpu:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


PARTS = ("steps", "amp", "ratios", "trainer", "sweeps", "pool", "input", "rates", "host", "ranks")


def report(found: list[dict[str, Any]]) -> Iterable[str]:
    """Yield a titled table a topic."""
    for topic in dict.fromkeys(r["topic"] for r in found):
        title, columns = rows.TOPICS[topic]
        yield f"\n{title}\n"
        yield rows.table([r for r in found if r["topic"] == topic], columns)


def main() -> int:
    """Run the main job; 1 if an op differs from its reference."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller models, shorter runs")
    parser.add_argument("--save", action="store_true", help="append the rows to bench/results")
    parser.add_argument("--results", type=Path, default=rows.RESULTS, help="folder of the rows")
    parser.add_argument(
        "--plot", type=Path, help="write a picture of steps and sweeps to this file"
    )
    parser.add_argument("--only", nargs="*", default=(), choices=PARTS, help="these parts alone")
    options = parser.parse_args()
    on_gpu = gpu_count() > 0
    quiet = not sys.stderr.isatty()
    versions = ", ".join(f"{k} {v}" for k, v in rows.environment().items())
    print(f"{rows.device_name()}; {versions}")
    if not on_gpu:
        print("No GPU: the same rules run on the CPU arena (numba.njit), against NumPy loops.")
    wrong = 0
    if not options.only:
        text, wrong = verify_table("cuda" if on_gpu else "cpu", options.quick, quiet)
        print(f"\nEvery op against its NumPy reference\n\n{text}")
    timed = timings(options.quick, on_gpu, options.only)
    found = []
    for row in tqdm(timed, desc="bench", unit=" rows", disable=quiet):
        found.append(row)
        if options.save:
            rows.save([row], options.results)
    print("\n".join(report(found)))
    if options.plot:
        plot.draw(found, options.plot)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

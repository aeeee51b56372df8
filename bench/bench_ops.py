"""pytest-benchmark suite of every op, each bound on a plan that it runs on.

With ``RANGEOPS_BENCH_QUICK=1`` a small model, and each op with everything that it can fuse; else
ResNet-50, and the variants that ``python -m bench --only rates`` shows.  Without a GPU on the CPU
arena.
"""

from __future__ import annotations

import pytest

from bench import coverage
from bench.suites import QUICK, arena_of, waiting
from plan.models import mlp, resnet50
from rangeops import ops

SPECS = mlp() if QUICK else resnet50()
CASES = [
    pytest.param(plan, case, id=case.name.replace(" ", "-"))
    for plan, found in coverage.cases(SPECS, coverage.fullest if QUICK else coverage.shown)
    for case in found
]


@pytest.mark.parametrize(("plan", "case"), CASES)
def bench_op(benchmark, plan, case):
    """One launch of one variant."""
    arena = arena_of(plan)
    launch = case.op.bind(arena, **case.arguments)
    benchmark.group = "ops"
    benchmark.extra_info |= {"elements": launch.count, "bytes": launch.nbytes}
    if case.op is ops.unscale:  # it leaves a scale of 1 behind, for which it has nothing to do

        def scaled() -> None:
            arena.scalars.set(grad_scale=2.0)
            launch()

        benchmark(waiting(scaled))
    else:
        benchmark(waiting(launch))

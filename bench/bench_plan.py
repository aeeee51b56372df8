"""pytest-benchmark suite of planning; the subjects are those of ``python -m bench --only planner``.

All suites run with ``pytest bench --benchmark-only``; with ``RANGEOPS_BENCH_QUICK=1`` before it on
small models, in a minute on two cores.  ``--benchmark-autosave`` keeps a run,
``--benchmark-compare`` sets the next beside it, ``--benchmark-histogram`` draws pictures.
"""

from __future__ import annotations

import pytest

from bench.suites import QUICK
from bench.topics import planner

CASES = planner.cases(QUICK)
SUBJECTS = list(planner.subjects(CASES["mlp"]))


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("model", CASES)
def bench_plan(benchmark, model, subject):
    """One part of planning on one model."""
    benchmark.group = f"planner: {model}"
    benchmark(planner.subjects(CASES[model])[subject])

"""The pytest-benchmark suites take every op and optimizer, and run by one command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.topics.steps import KINDS
from rangeops import REGISTRY

ROOT = Path(__file__).parent.parent.parent


def pytest_of_bench(*arguments: str) -> str:
    """Return what ``pytest bench`` prints with these arguments, in its quick form."""
    own = ("NUMBA_ENABLE_CUDASIM", "PYTEST_")  # this process's simulator and place among workers
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    environment["RANGEOPS_BENCH_QUICK"] = "1"
    command = [sys.executable, "-m", "pytest", "bench", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_op_and_optimizer_is_collected():
    pytest.importorskip("pytest_benchmark")
    found = pytest_of_bench("--collect-only", "-q")
    for op in REGISTRY:
        assert f"bench_op[{op}-" in found or f"bench_op[{op}]" in found
    for kind in KINDS:
        assert f"bench_step[{kind}-rangeops-mlp]" in found
        assert f"bench_step[{kind}-NumPy per-parameter loop-mlp]" in found or "graph-mlp" in found


def test_a_benchmark_of_each_suite_runs():
    pytest.importorskip("pytest_benchmark")
    chosen = "segments and mlp or grad_scaling or sgd-rangeops-mlp or sgd-NumPy"
    found = pytest_of_bench("--benchmark-only", "--benchmark-max-time=0.01", "-k", chosen)
    for name in ("planner: mlp", "benchmark 'ops'", "sgd step: mlp"):
        assert name in found

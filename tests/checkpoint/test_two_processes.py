"""A run that a fresh process goes on with is the run that was never interrupted, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.worker import ALL, OPTIMIZERS, OVERFLOWS, SHAPES

ROOT = Path(__file__).parents[2]

PLACES = [
    pytest.param("cpu", marks=pytest.mark.xdist_group("two-processes-cpu")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.xdist_group("two-processes-gpu")]),
]


def started(place, part, folder):
    """Start a worker's part of all runs."""
    run = [sys.executable, "-m", "tests.checkpoint.worker", place, part, str(folder)]
    return subprocess.Popen(run, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finished(process):
    """Wait for a worker, which has to be content."""
    _, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors


@pytest.fixture(scope="module", params=PLACES)
def folder(request, tmp_path_factory):
    """Return where both runs of every optimizer have written what came of them."""
    folder = tmp_path_factory.mktemp("runs")
    straight = started(request.param, "straight", folder)
    try:
        for part in ("first", "second"):
            finished(started(request.param, part, folder))
    finally:
        finished(straight)
    return folder


def result(folder, optimizer, part):
    """Return the arrays and facts of a run."""
    with np.load(folder / f"{optimizer}.{part}.npz") as arrays:
        return dict(arrays), json.loads((folder / f"{optimizer}.{part}.json").read_text())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_in_two_processes_is_the_run_in_one(optimizer, folder):
    want, facts = result(folder, optimizer, "straight")
    got, other = result(folder, optimizer, "second")
    assert other == facts
    assert got.keys() == want.keys()
    for name, values in want.items():
        assert got[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_run_in_one_process_has_met_what_a_file_has_to_carry(optimizer, folder):
    """Else the comparison above would be of less than it says."""
    arrays, facts = result(folder, optimizer, "straight")
    moved, scalars = facts["steps"], facts["scalars"]
    assert scalars["skipped_steps"] == len(OVERFLOWS)
    assert scalars["step"] == ALL - len(OVERFLOWS) == moved["fc.weight"] == moved["fc.bias"]
    assert moved["fixed.weight"] == 0 < moved["rests.weight"] < moved["fc.weight"] - 90
    assert moved["cold.weight"] < moved["rests.weight"]
    assert scalars["loss_scale"] not in (1.0, 1024.0) and scalars["growth_tracker"] > 0
    assert facts["groups"]["groups"]["head"]["of"] == ["fc.weight"]
    assert arrays["fc.weight.half_copy"].dtype == np.float16
    for name in SHAPES:
        assert np.isfinite(arrays[f"{name}.weight"]).all() and arrays[f"{name}.weight"].any()
    assert not np.array_equal(arrays["fc.weight.weight"], arrays["fc.weight.ema"])

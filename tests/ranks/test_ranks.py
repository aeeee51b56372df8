"""Ranks as real processes: collectives, steps, disagreement, and ranks that die (S13, S33, S52)."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rangeops import Arena, OptimizerStep
from rangeops.device.streams import gpu_count
from rangeops.ranks import RankInfo, Ranks, ReplicatedStep, World
from tests import tolerance
from tests.helpers import HAVE_GPU, free_port, host_bytes, small_plan

ROOT = Path(__file__).parents[2]
EVERYWHERE = (
    "collectives", "bn_stats", "bf16", "joined", "sharded", "s13", "s33", "schedule", "graph",
    "digits", "disagreed_replicated", "disagreed_sharded", "disagreed_halves", "disagreed_late",
    "disagreed_first", "agreed_graph", "agreed_graph_of_steps", "unwritten",
)  # fmt: skip
ON_THE_CPU = (*EVERYWHERE, "mismatch", "gloo")
WITH_THREE = ("sharded", "s13", "mismatch", "disagreed_sharded", "agreed_graph", "unwritten")
NOTICED = 8.0
"""Seconds in which all ranks end after a kill: it is noticed at once, and Python ends in about one,
on a machine that does nothing else."""


def spawn(size, device, scenarios, **environment):
    """Start a process a rank; their outputs go to pipes."""
    port = free_port()
    clean = {k: v for k, v in os.environ.items() if k not in ("NUMBA_ENABLE_CUDASIM", "PYTHONPATH")}
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    started = []
    for rank in range(size):
        own = {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
            "RANGEOPS_PORT": str(port), "PYTHONPATH": path, "NUMBA_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.ranks.worker", device, *scenarios]
        started.append(
            subprocess.Popen(
                command,
                env=clean | own | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        )
    return started


def ended(processes, seconds):
    """Wait for processes; return (status, stdout, stderr) of each, killing what still runs."""
    end = time.monotonic() + seconds
    out = []
    for process in processes:
        try:
            output = process.communicate(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()
            pytest.fail(f"a rank still ran after {seconds} s: {output}")
        out.append((process.returncode, *output))
    return out


@functools.cache
def run(size, device, scenarios):
    return ended(spawn(size, device, scenarios), 280)


def passed(size, device, scenarios, name):
    for status, out, err in run(size, device, scenarios):
        assert f"passed {name} " in out, f"{status}\n{out}\n{err}"


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("scenario", ON_THE_CPU)
def test_two_processes_on_the_cpu(scenario):
    passed(2, "cpu", ON_THE_CPU, scenario)


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("scenario", WITH_THREE)
def test_three_processes_on_the_cpu(scenario):
    passed(3, "cpu", WITH_THREE, scenario)


two_gpus = pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs: the driver offers fewer")


@two_gpus
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("scenario", EVERYWHERE)
def test_processes_on_two_gpus(scenario):
    passed(2, "cuda", EVERYWHERE, scenario)


def stepping(processes):
    """Wait until every rank steps."""
    for process in processes:
        for line in process.stdout:
            if line.strip() == "stepping":
                break
        else:
            pytest.fail(f"a rank never stepped: {process.stderr.read()}")
    time.sleep(0.3)


def end_of(processes, lost, seconds, reason):
    """Hold the survivors to their sentence, their status and the time."""
    began = time.monotonic()
    for status, _, err in ended(processes, seconds):
        assert status == 1, err
        last = err.strip().splitlines()[-1]
        assert f"lost rank {lost} ({reason}" in last and "collective" in last, err
        assert "weights are those of the last finished step" in last
    return time.monotonic() - began


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_ends_the_others_with_a_sentence(lost):
    processes = spawn(3, "cpu", ["forever"])
    stepping(processes)
    processes[lost].send_signal(signal.SIGKILL)
    rest = [p for k, p in enumerate(processes) if k != lost]
    end_of(rest, lost, NOTICED, "its connection ended")
    processes[lost].communicate()


@pytest.mark.xdist_group("ranks")
def test_a_stopped_rank_ends_the_others_and_itself_when_it_wakes():
    processes = spawn(3, "cpu", ["forever"])
    stepping(processes)
    processes[1].send_signal(signal.SIGSTOP)
    rest = [processes[0], processes[2]]
    taken = end_of(rest, 1, 5.0 + NOTICED, "no sign of life for 5 s")
    assert taken > 3.0
    processes[1].send_signal(signal.SIGCONT)
    ((status, _, err),) = ended([processes[1]], 5.0 + NOTICED)
    assert status == 1 and "lost rank 0" in err


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("kind", ["replicated", "sharded"])
@pytest.mark.parametrize("fails", [False, True])
def test_s52_a_rank_that_runs_out_of_batches_ends_the_other(kind, fails):
    scenario = f"s52_{kind}{'_fails' * fails}"
    (status, out, err), other = ended(spawn(2, "cpu", [scenario]), 60)
    why = "its connection ended" if fails else "it has left"
    last = err.strip().splitlines()[-1]
    assert status == 1 and "lost rank 1 (" in last and why in last and "collective" in last, err
    assert "weights are those of the last finished step" in last
    assert "weights of the last whole step" in out
    assert other[0] == fails and ("the third batch of rank 1 is damaged" in other[2]) == fails


@pytest.mark.xdist_group("ranks")
def test_who_loses_a_rank_in_the_gather_has_weights_of_two_steps():
    (status, _, err), other = ended(spawn(2, "cpu", ["lost_in_the_gather"]), 60)
    last = err.strip().splitlines()[-1]
    assert (status, other[0]) == (1, 1) and "lost rank 1 (" in last and "all_gather" in last, err
    assert "weights are between two steps" in last and "last finished step" not in last


@two_gpus
@pytest.mark.xdist_group("ranks")
def test_a_killed_rank_ends_the_other_on_two_gpus():
    processes = spawn(2, "cuda", ["forever"])
    stepping(processes)
    processes[1].send_signal(signal.SIGKILL)
    end_of(processes[:1], 1, 20.0, "its connection ended")
    processes[1].communicate()


@two_gpus
@pytest.mark.xdist_group("ranks")
def test_an_update_behind_an_aborted_collective_moves_nothing():
    first, second = ended(spawn(2, "cuda", ["poison"]), 60)
    assert second[0] == 9
    assert "nothing moved" in first[1] and "lost rank 1" in first[2], first
    assert first[0] == 1


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("size", [2, 3])
def test_a_checkpoint_of_ranks_fits_any_number_of_them(size, tmp_path):
    """Written by ``size`` ranks, read by 1, 2 and 3; each says that all bits are as they were."""
    for readers in (size, 1, 5 - size):
        scenarios = ["written", "read"] if readers == size else ["read"]
        results = ended(spawn(readers, "cpu", scenarios, RANGEOPS_TEST_DIR=str(tmp_path)), 120)
        for status, out, err in results:
            assert status == 0 and "passed read " in out, f"{readers}\n{out}\n{err}"


def test_one_process_needs_no_others(device):
    """A world of one: the collectives do nothing, the step is the plain one."""
    pair = [Arena(small_plan("adamw", half="fp16"), device=device) for _ in range(2)]
    with World(RankInfo()) as world:
        ranks = Ranks(pair[0], world)
        step = ReplicatedStep(ranks, lr=0.1)
        plain = OptimizerStep(pair[1], lr=0.1)
        for arena, one in zip(pair, (step, plain), strict=True):
            arena["fc.weight#G16"] = np.float16(2)
            arena["fc.weight"] = 1.0
            one()
        assert world.exchange({"a": 1}) == [{"a": 1}]
        ranks.close()
    np.testing.assert_array_equal(*map(host_bytes, pair))


def test_a_poisoned_step_moves_nothing_and_keeps_the_scale(device):
    arena = Arena(small_plan("adamw", half="fp16"), device=device)
    step = OptimizerStep(arena, lr=0.1, loss_scale=64.0, clip_norm=1.0)
    arena["fc.weight#G16"] = np.float16(np.inf)
    offset, _ = arena.plan.scalar("poisoned")
    arena.write(offset, np.array([1], np.int32))
    before = arena.read(arena.plan.series_range("W"))
    step()
    np.testing.assert_array_equal(arena.read(arena.plan.series_range("W")), before)
    assert (arena.scalars.step, arena.scalars.skipped_steps, arena.scalars.loss_scale) == (0, 0, 64)
    assert arena.scalars.skip_step == 1
    arena.write(offset, np.array([0], np.int32))
    arena["fc.weight#G16"] = np.float16(1)
    step()
    assert (arena.scalars.step, arena.scalars.skip_step) == (1, 0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_gradients_of_n_ranks_are_divided_by_n(device, ranks):
    """The clip, its norm and the update see the mean of what was added up."""
    pair = [Arena(small_plan("sgd"), device=device) for _ in range(2)]
    for arena, factor in zip(pair, (1, ranks), strict=True):
        arena["fc.weight#G"] = np.arange(300, dtype=np.float32).reshape(3, 100) * factor
        OptimizerStep(arena, lr=0.5, clip_norm=10.0, check=True, ranks=float(factor))()
    one, two = (arena.download("fc.weight") for arena in pair)
    np.testing.assert_allclose(two, one, rtol=tolerance.STEP)
    norms = [arena.scalars.grad_norm for arena in pair]
    assert norms[0] == pytest.approx(np.sqrt((np.arange(300.0) ** 2).sum()), rel=tolerance.STEP)
    assert norms[1] == pytest.approx(norms[0], rel=tolerance.STEP)


@pytest.mark.skipif(HAVE_GPU, reason="tells what happens without NCCL")
def test_a_range_that_ranks_cannot_exchange_is_refused():
    arena = Arena(small_plan("adamw", half="fp16"), device="cpu")
    with World(RankInfo()) as world:
        ranks = Ranks(arena, world)
        mixed = arena.plan.series_range("G").base_offset, arena.plan.total_bytes - 4096
        with pytest.raises(ValueError, match="holds fp16, fp32.*, expected one of fp32"):
            ranks.all_reduce_sum((mixed[0], mixed[1] - mixed[0]))

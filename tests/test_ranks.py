"""Ranks as real processes: collectives, steps, disagreement, and ranks that die (S13, S33)."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rangeops import Arena, OptimizerStep
from rangeops.ranks import Place, RankLost, Ranks, ReplicatedStep, World, place
from rangeops.stream import gpu_count
from tests.conftest import HAVE_GPU, host_bytes, small_plan

ROOT = Path(__file__).parent.parent
EVERYWHERE = (
    "collectives", "bn_stats", "bf16", "joined", "sharded", "s13", "s33", "schedule", "graph",
    "digits",
)  # fmt: skip
ON_THE_CPU = (*EVERYWHERE, "mismatch", "gloo")
WITH_THREE = ("sharded", "s13", "mismatch")
NOTICED = 8.0
"""Seconds in which all ranks end after a kill: it is noticed at once, and Python ends in about one,
on a machine that does nothing else."""


def free_port():
    """Return a port that nobody listens on, with the one behind it for another library."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


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
        command = [sys.executable, "-m", "tests.ranks_worker", device, *scenarios]
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


def test_one_process_needs_no_others(device):
    """A world of one: the collectives do nothing, the step is the plain one."""
    pair = [Arena(small_plan("adamw", half="fp16"), device=device) for _ in range(2)]
    with World(Place()) as world:
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
    np.testing.assert_allclose(two, one, rtol=1e-6)
    norms = [arena.scalars.grad_norm for arena in pair]
    assert norms[0] == pytest.approx(np.sqrt((np.arange(300.0) ** 2).sum()), rel=1e-6)
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


def test_a_place_is_found_in_the_environment_of_every_starter():
    assert place({}) == Place(0, 1, 0, "127.0.0.1", 29521)
    assert place({"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "host"}).local_rank == 3
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    assert place(torchrun) == Place(5, 8, 1, "127.0.0.1", 29501)
    assert place(torchrun | {"RANGEOPS_PORT": "7000"}).port == 7000
    assert place(torchrun | {"TORCHELASTIC_RESTART_COUNT": "2"}).restart == 2
    mpi = {
        "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0", "SLURM_PROCID": "9", "SLURM_NTASKS": "10",
    }  # fmt: skip
    assert (place(mpi).rank, place(mpi).size, place(mpi).local_rank) == (2, 3, 0)
    assert place({"PMI_RANK": "1", "PMI_SIZE": "2"}).rank == 1
    assert place({"SLURM_PROCID": "9", "SLURM_NTASKS": "10", "SLURM_LOCALID": "1"}).local_rank == 1


@pytest.mark.parametrize(
    ("gpus", "local_rank", "device"), [(0, 3, "cpu"), (1, 3, "cuda:0"), (4, 3, "cuda:3")]
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one(monkeypatch, gpus, local_rank, device):
    monkeypatch.setattr(sys.modules["rangeops.ranks.place"], "gpu_count", lambda: gpus)
    assert Place(3, 4, local_rank).device == device


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(sys.modules["rangeops.ranks.place"], "gpu_count", lambda: 2)
    with pytest.raises(ValueError, match="local rank got 2, this host offers 2 GPUs"):
        _ = Place(2, 4, 2).device


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0"}, "got RANK without WORLD_SIZE, expected both"),
        ({"WORLD_SIZE": "2"}, "got WORLD_SIZE without RANK, expected both"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"rank got 2, expected 0 \.\. 1"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK got 'x', expected a whole number"),
        ({"MASTER_PORT": ""}, "MASTER_PORT got '', expected a whole number"),
    ],
)
def test_half_a_place_is_refused(environment, message):
    with pytest.raises(ValueError, match=message):
        place(environment)


def test_ranks_that_do_not_come_are_named():
    port = free_port()
    with pytest.raises(TimeoutError, match=rf"ranks \[1, 2\] did not come to 127.0.0.1:{port} in"):
        World(Place(0, 3, 0, port=port), timeout=0.3)
    with pytest.raises(
        TimeoutError, match=rf"rank 1 found nobody at 127.0.0.1:{port} in .*RANGEOPS"
    ):
        World(Place(1, 2, 0, port=port), timeout=0.3)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            OSError, match=f"rank 0 cannot listen at 127.0.0.1:{port} .* RANGEOPS_P"
        ):
            World(Place(0, 2, 0, port=port), timeout=0.3)


def in_threads(*places, timeout=10.0):
    """Make a world in a thread for each place; return what each made or raised."""
    found = {}

    def make(k, where):
        try:
            found[k] = World(where, timeout=timeout)
        except Exception as error:
            found[k] = error

    threads = [threading.Thread(target=make, args=p) for p in enumerate(places)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[k] for k in range(len(places))]


def test_ranks_that_disagree_on_their_number_are_refused():
    port = free_port()
    zero, one = in_threads(Place(0, 2, port=port), Place(1, 3, port=port))
    for error in (zero, one):
        assert isinstance(error, ValueError)
        assert "rank 1 expects 3 ranks, rank 0 2; start all ranks with one WORLD_SIZE" in str(error)


def test_a_rank_of_an_earlier_start_is_sent_away_and_the_rest_meet():
    port, found = free_port(), {}

    def join(name, rank, restart):
        try:
            found[name] = World(Place(rank, 2, port=port, restart=restart))
        except ValueError as error:
            found[name] = error

    listening = threading.Thread(target=join, args=("zero", 0, 1))
    listening.start()
    join("stale", 1, 0)
    message = "rank 1 is of restart 0, rank 0 of restart 1; end the processes of the earlier start"
    assert message in str(found["stale"])
    join("fresh", 1, 1)
    listening.join()
    ends = [threading.Thread(target=found[name].close) for name in ("zero", "fresh")]
    for end in ends:
        end.start()
    for end in ends:
        end.join()
    assert (found["zero"].rank, found["fresh"].rank) == (0, 1)


def test_a_rank_zero_of_an_earlier_start_ends():
    port = free_port()
    found = in_threads(Place(0, 2, port=port), Place(1, 2, port=port, restart=1))
    for error in found:
        assert "rank 1 is of restart 1, rank 0 of restart 0; end the" in str(error), error


def test_a_stranger_on_the_port_is_no_rank():
    port = free_port()

    def stranger():
        for _ in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
                    sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100)
                    return
            except OSError:
                time.sleep(0.01)

    thread = threading.Thread(target=stranger)
    thread.start()
    zero = {}
    listening = threading.Thread(target=lambda: zero.update(w=World(Place(0, 2, port=port))))
    listening.start()
    thread.join()
    one = World(Place(1, 2, port=port))
    listening.join()
    both = [zero["w"], one]
    got = []
    ends = [threading.Thread(target=lambda w=w: got.append(w.exchange(w.rank))) for w in both]
    for end in ends:
        end.start()
    for end in ends:
        end.join()
    assert got == [[0, 1], [0, 1]]
    ends = [threading.Thread(target=w.close) for w in both]
    for end in ends:
        end.start()
    for end in ends:
        end.join()


def test_whoever_sees_a_loss_can_close_only_after_its_listeners():
    """Python must not end beneath an abort; so many of them that the start takes its time."""
    port, done = free_port(), []
    zero, one = in_threads(Place(0, 2, port=port), Place(1, 2, port=port))
    for _ in range(200):
        one.on_loss(lambda: done.append(1))
    zero.close(peaceful=False)
    with pytest.raises(RankLost, match="rank 1 of 2 lost rank 0"):
        while True:
            one.check()
    one.close(peaceful=False)
    assert len(done) == 200


@pytest.mark.skipif(HAVE_GPU, reason="tells what happens without NCCL")
def test_a_range_that_ranks_cannot_exchange_is_refused():
    arena = Arena(small_plan("adamw", half="fp16"), device="cpu")
    with World(Place()) as world:
        ranks = Ranks(arena, world)
        mixed = arena.plan.series_range("G").base_offset, arena.plan.total_bytes - 4096
        with pytest.raises(ValueError, match="holds fp16, fp32.*, expected one of fp32"):
            ranks.all_reduce_sum((mixed[0], mixed[1] - mixed[0]))

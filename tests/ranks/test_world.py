"""Which rank this is, how ranks connect, and what a loss does to the world."""

from __future__ import annotations

import socket
import sys
import threading
import time

import pytest

from rangeops.ranks import RankInfo, RankLost, World, rank_info
from tests.helpers import free_port


def test_a_rank_is_found_in_the_environment_of_every_starter():
    assert rank_info({}) == RankInfo(0, 1, 0, "127.0.0.1", 29521)
    assert rank_info({"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "host"}).local_rank == 3
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    assert rank_info(torchrun) == RankInfo(5, 8, 1, "127.0.0.1", 29501)
    assert rank_info(torchrun | {"RANGEOPS_PORT": "7000"}).port == 7000
    assert rank_info(torchrun | {"TORCHELASTIC_RESTART_COUNT": "2"}).restart == 2
    mpi = {
        "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0", "SLURM_PROCID": "9", "SLURM_NTASKS": "10",
    }  # fmt: skip
    assert (rank_info(mpi).rank, rank_info(mpi).size, rank_info(mpi).local_rank) == (2, 3, 0)
    assert rank_info({"PMI_RANK": "1", "PMI_SIZE": "2"}).rank == 1
    slurm = {"SLURM_PROCID": "9", "SLURM_NTASKS": "10", "SLURM_LOCALID": "1"}
    assert rank_info(slurm).local_rank == 1


@pytest.mark.parametrize(
    ("gpus", "local_rank", "device"), [(0, 3, "cpu"), (1, 3, "cuda:0"), (4, 3, "cuda:3")]
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one(monkeypatch, gpus, local_rank, device):
    monkeypatch.setattr(sys.modules["rangeops.ranks.info"], "gpu_count", lambda: gpus)
    assert RankInfo(3, 4, local_rank).device == device


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(sys.modules["rangeops.ranks.info"], "gpu_count", lambda: 2)
    with pytest.raises(ValueError, match="local rank got 2, this host offers 2 GPUs"):
        _ = RankInfo(2, 4, 2).device


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
def test_half_a_rank_is_refused(environment, message):
    with pytest.raises(ValueError, match=message):
        rank_info(environment)


def test_ranks_that_do_not_come_are_named():
    port = free_port()
    with pytest.raises(TimeoutError, match=rf"ranks \[1, 2\] did not come to 127.0.0.1:{port} in"):
        World(RankInfo(0, 3, 0, port=port), timeout=0.3)
    with pytest.raises(
        TimeoutError, match=rf"rank 1 found nobody at 127.0.0.1:{port} in .*RANGEOPS"
    ):
        World(RankInfo(1, 2, 0, port=port), timeout=0.3)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            OSError, match=f"rank 0 cannot listen at 127.0.0.1:{port} .* RANGEOPS_P"
        ):
            World(RankInfo(0, 2, 0, port=port), timeout=0.3)


def in_threads(*infos, timeout=10.0):
    """Make a world in a thread for each rank; return what each made or raised."""
    found = {}

    def make(k, info):
        try:
            found[k] = World(info, timeout=timeout)
        except Exception as error:
            found[k] = error

    threads = [threading.Thread(target=make, args=p) for p in enumerate(infos)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[k] for k in range(len(infos))]


def test_ranks_that_disagree_on_their_number_are_refused():
    port = free_port()
    zero, one = in_threads(RankInfo(0, 2, port=port), RankInfo(1, 3, port=port))
    for error in (zero, one):
        assert isinstance(error, ValueError)
        assert "rank 1 expects 3 ranks, rank 0 2; start all ranks with one WORLD_SIZE" in str(error)


def test_a_rank_of_an_earlier_start_is_sent_away_and_the_rest_connect():
    port, found = free_port(), {}

    def join(name, rank, restart):
        try:
            found[name] = World(RankInfo(rank, 2, port=port, restart=restart))
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
    found = in_threads(RankInfo(0, 2, port=port), RankInfo(1, 2, port=port, restart=1))
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
    listening = threading.Thread(target=lambda: zero.update(w=World(RankInfo(0, 2, port=port))))
    listening.start()
    thread.join()
    one = World(RankInfo(1, 2, port=port))
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
    zero, one = in_threads(RankInfo(0, 2, port=port), RankInfo(1, 2, port=port))
    for _ in range(200):
        one.on_loss(lambda: done.append(1))
    zero.close(peaceful=False)
    with pytest.raises(RankLost, match="rank 1 of 2 lost rank 0"):
        while True:
            one.check()
    one.close(peaceful=False)
    assert len(done) == 200

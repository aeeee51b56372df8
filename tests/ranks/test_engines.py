"""The engines that move data between ranks: one file each, found by name; what ranks say."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from rangeops import Arena
from rangeops.ranks import (
    RankInfo,
    RankMismatch,
    Ranks,
    ReplicatedStep,
    Shard,
    World,
    communicators,
)
from rangeops.ranks.communicators import sockets
from tests.helpers import free_port, small_plan

ONE_NEW_FILE = '''
"""An engine over the ranks' control connections: sums of lists of numbers."""

class ByExchange:
    def __init__(self, world):
        self.world = world

    def run(self, calls, views, stream):
        for call, view in zip(calls, views, strict=True):
            assert (call.name, call.op) == ("all_reduce", "sum")
            view[:] = [sum(values) for values in zip(*self.world.exchange(view.tolist()))]

    def copy_poison(self, ptr, stream):
        pass

    def abort(self):
        pass

    def close(self):
        pass


def connect(world, arena):
    return ByExchange(world)
'''


def by_two(work):
    """Run ``work(world, arena)`` as rank 0 and as rank 1; return what each returned or raised."""
    port, out = free_port(), {}

    def go(rank):
        with World(RankInfo(rank, 2, port=port)) as world:
            try:
                out[rank] = work(world, Arena(small_plan("sgd"), device="cpu"))
            except Exception as error:
                out[rank] = error

    threads = [threading.Thread(target=go, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out[0], out[1]


def summed(name):
    def work(world, arena):
        ranks = Ranks(arena, world, communicator=name)
        arena["fc.bias#G"] = 1.0 + world.rank
        ranks.all_reduce_sum("fc.bias#G")()
        ranks.close()
        return arena.download("fc.bias#G")

    return work


def test_a_new_engine_is_one_new_file(tmp_path, monkeypatch):
    (tmp_path / "by_exchange.py").write_text(ONE_NEW_FILE)
    monkeypatch.setattr(communicators, "__path__", [*communicators.__path__, str(tmp_path)])
    assert communicators.engines() == ("by_exchange", "nccl", "sockets")
    for name in ("by_exchange", "sockets", None):
        for values in by_two(summed(name)):
            np.testing.assert_array_equal(values, np.float32(3), err_msg=str(name))


def test_ranks_with_different_engines_are_told():
    def work(world, arena):
        return communicators.connect("sockets" if world.rank else "nccl", world, arena)

    zero, one = by_two(work)
    assert isinstance(zero, RankMismatch) and isinstance(one, RankMismatch)
    assert "rank 1 has communicator 'sockets', rank 0 'nccl', expected one on all" in str(zero)
    assert "rank 0 has communicator 'nccl', rank 1 'sockets', expected one on all" in str(one)


def test_an_engine_that_there_is_not_is_refused():
    arena = Arena(small_plan("sgd"), device="cpu")
    with World(RankInfo()) as world:
        message = "communicator got 'mpi', expected 'nccl', 'sockets' or None"
        with pytest.raises(ValueError, match=message):
            Ranks(arena, world, communicator="mpi")


def test_nccl_is_the_default_between_gpus_alone():
    def engine(size, on_gpu):
        world, arena = SimpleNamespace(size=size), SimpleNamespace(on_gpu=on_gpu)
        return communicators.default_engine(world, arena)

    found = [engine(size, gpu) for gpu in (False, True) for size in (1, 2)]
    assert found == ["sockets", "sockets", "sockets", "nccl"]


def test_sockets_refuse_an_arena_on_a_gpu():
    arena = SimpleNamespace(on_gpu=True, device="cuda:1")
    with pytest.raises(ValueError, match="sockets: got an arena on cuda:1, expected one in host m"):
        sockets.connect(SimpleNamespace(size=2), arena)
    sockets.connect(SimpleNamespace(size=1), arena)  # there is nothing to exchange


def test_what_ranks_say_of_themselves():
    arena = Arena(small_plan("sgd"), device="cpu")
    with World(RankInfo()) as world:
        ranks = Ranks(arena, world)
        assert repr(world) == "<World: rank 0 of 1>"
        assert repr(ranks) == "<Ranks: rank 0 of 1 by sockets on cpu>"
        assert repr(ranks.all_reduce_sum("fc.bias#G")) == (
            "<collective of 1 ranks: all_reduce_sum fp32 x 256 (G_FC_BIAS)>"
        )
        assert repr(ReplicatedStep(ranks, lr=0.1)) == (
            "<ReplicatedStep of sgd on cpu: rank 0 of 1, 6 launches and collectives a step>"
        )
    assert repr(Shard(arena.plan, 1, 2)) == "<Shard 1 of 2: elements 768 .. 1664 of 1664>"

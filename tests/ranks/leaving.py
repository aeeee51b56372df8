"""Scenarios in which a rank ends before the others; each has the processes to itself."""

from __future__ import annotations

import time

import numpy as np

from rangeops.ranks import RankLost, Ranks, ReplicatedStep, ShardedStep
from tests.ranks import common
from tests.ranks.common import OPTIONS, arena_of, gradients, start, state


def forever(world, ranks, arena):
    """Step until somebody kills a rank; say when the steps begin."""
    if common.DEVICE == "cpu":  # what waits on the CPU is the collective; it needs no compiler
        step = ranks.all_reduce_sum(arena.plan.bucket1)
    else:
        step = ReplicatedStep(ranks, **OPTIONS)
    step()
    print("stepping", flush=True)
    while True:
        step()


def poison(world, ranks, arena):
    """Rank 1 dies with its collective missing: the update queued behind it moves nothing."""
    import os

    import cupy

    start(arena)
    step = ReplicatedStep(ranks, **OPTIONS)
    gradients(arena, 0, world.rank, arena.plan.config.half is not None)
    step()
    cupy.cuda.Device().synchronize()
    before = state(arena)
    if world.rank == 1:
        time.sleep(1.0)
        os._exit(9)
    gradients(arena, 1, world.rank, arena.plan.config.half is not None)
    step()
    cupy.cuda.Device().synchronize()  # returns when the abort has ended the collective
    for name, bits in state(arena).items():
        np.testing.assert_array_equal(bits, before[name], err_msg=name)
    assert arena.scalars.poisoned == 1
    print("nothing moved", flush=True)
    world.check()


def _uneven(world, kind, fails):
    """Rank 0 has five batches, rank 1 three, or an error at its third."""
    one = arena_of(half="fp16", ema=True)
    start(one)
    step = kind(Ranks(one, world), **OPTIONS)
    whole = 2 if fails else 3
    for k in range(5 if world.rank == 0 else 3):
        if fails and world.rank == 1 and k == whole:
            raise ValueError("the third batch of rank 1 is damaged")
        gradients(one, k, world.rank, True)
        before = state(one)
        try:
            step()
        except RankLost as lost:
            assert (k, lost.rank) == (whole, 1), lost
            for name, bits in state(one).items():
                np.testing.assert_array_equal(bits, before[name], err_msg=name)
            print("weights of the last whole step", flush=True)
            raise


def s52_replicated(world, ranks, arena):
    _uneven(world, ReplicatedStep, False)


def s52_sharded(world, ranks, arena):
    _uneven(world, ShardedStep, False)


def s52_replicated_fails(world, ranks, arena):
    _uneven(world, ReplicatedStep, True)


def s52_sharded_fails(world, ranks, arena):
    _uneven(world, ShardedStep, True)


def lost_in_the_gather(world, ranks, arena):
    """Rank 1 ends when it has updated its shard, and before the others have it."""
    one = arena_of(half="fp16", ema=True)
    start(one)
    step = ShardedStep(Ranks(one, world), **OPTIONS)
    gradients(one, 0, world.rank, True)
    step()
    if world.rank == 1:
        for launch in step.launches[:-1]:
            launch()
        raise ValueError("rank 1 is gone")
    step()

"""Scenarios of settings that are, or are not, the same on all ranks."""

from __future__ import annotations

import numpy as np

from rangeops.ranks import RankMismatch, Ranks, ReplicatedStep, ShardedStep
from tests.ranks.common import OPTIONS, arena_of, gradients, start, state

CHANGES = {
    "freeze": (
        lambda a: a.groups.freeze("fc.weight"),
        "fc.weight: frozen is True on rank 1 and False on rank 0",
    ),
    "rest": (
        lambda a: a.groups.rest(["conv1.weight"]),
        "conv1.weight: no gradient is True on rank 1 and False on rank 0",
    ),
    "lr": (
        lambda a: a.scalars.set(lr=0.5),
        f"scalars.lr is 0.5 on rank 1 and {float(np.float32(OPTIONS['lr']))} on rank 0",
    ),
    "group": (
        lambda a: a.groups.set("no_decay", lr=np.float32(3)),
        "fc.bias: settings is {'lr': 3.0, 'weight_decay': 0.0, 'adapt': False} on rank 1 and "
        "{'weight_decay': 0.0, 'adapt': False} on rank 0",
    ),
}
"""What one rank changes alone, and what all are told then."""


class Pair:
    """An arena whose ranks may disagree, and one whose ranks take the same steps and never do."""

    def __init__(self, world, kind, half):
        self.world, self.half = world, half
        self.arenas = [arena_of(half=half, ema=True) for _ in range(2)]
        for one in self.arenas:
            start(one)
        self.ranks = [Ranks(one, world) for one in self.arenas]
        kinds = (kind, ReplicatedStep)
        self.steps = [k(r, **OPTIONS) for k, r in zip(kinds, self.ranks, strict=True)]
        self.count = 0

    def write(self, *arenas):
        for one in arenas:
            gradients(one, self.count, self.world.rank, self.half is not None)

    def step(self, call=None):
        """Take a step on both."""
        self.write(*self.arenas)
        (call or self.steps[0])()
        self.steps[1]()
        self.count += 1

    def held(self, call=None):
        """Take a step that moves nothing on the first alone."""
        one = self.arenas[0]
        before = state(one)
        self.write(one)
        (call or self.steps[0])()
        for name, bits in state(one).items():
            np.testing.assert_array_equal(bits, before[name], err_msg=name)

    def refused(self, sentence, call=None):
        before = state(self.arenas[0])
        self.write(self.arenas[0])
        try:
            (call or self.steps[0])()
        except RankMismatch as error:
            assert sentence in str(error), error
        else:
            raise AssertionError(f"ranks stepped apart: {sentence}")
        for name, bits in state(self.arenas[0]).items():
            np.testing.assert_array_equal(bits, before[name], err_msg=name)

    def close(self):
        """Hold both to the same bits on all ranks."""
        if isinstance(self.steps[0], ShardedStep):
            self.steps[0].collect()
        one, two = map(state, self.arenas)
        for name, bits in two.items():
            np.testing.assert_array_equal(one[name], bits, err_msg=name)
        assert one["step"][0] == self.count
        assert self.ranks[0].same_bits(self.arenas[0].plan.series_range("W"))
        for step, ranks in zip(self.steps, self.ranks, strict=True):
            step.close()
            ranks.close()


def _disagreed(world, kind, half):
    """What one rank changes alone moves nothing, is said everywhere, and is mended by all."""
    pair = Pair(world, kind, half)
    one, other = pair.arenas
    pair.step()
    for change, sentence in CHANGES.values():
        if world.rank == 1:
            change(one)
        pair.held()
        for _ in range(2):  # and again, as long as it is so
            pair.refused(sentence)
        if world.rank != 1:
            change(one)
        change(other)
        pair.step()
        pair.step()
    if world.rank == 1:  # whoever changed it takes it back
        one.groups.unfreeze("*")
    pair.held()
    pair.refused("fc.weight: frozen is False on rank 1 and True on rank 0")
    if world.rank == 1:
        one.groups.freeze("fc.weight")
    pair.step()
    pair.close()


def disagreed_replicated(world, ranks, arena):
    _disagreed(world, ReplicatedStep, None)


def disagreed_sharded(world, ranks, arena):
    _disagreed(world, ShardedStep, None)


def disagreed_halves(world, ranks, arena):
    for kind in (ReplicatedStep, ShardedStep):
        _disagreed(world, kind, "fp16")


def disagreed_late(world, ranks, arena):
    """A rank that changes a setting a step later than the others: one step is lost, and said."""
    pair = Pair(world, ReplicatedStep, None)
    pair.step()
    if world.rank == 1:
        pair.arenas[0].scalars.lr = 0.25
    pair.held()
    pair.arenas[0].scalars.lr = pair.arenas[1].scalars.lr = 0.25
    pair.refused("settings differed in a step that none has taken, and are the same now")
    pair.step()
    pair.close()


FIRST = {
    "scalars.lr": {"lr": 0.5},
    "scalars.loss_scale": {"loss_scale": 8.0},
    "option maximize": {"maximize": True},
    "scalars.weight_decay": {"weight_decay": 0.5},
}


def disagreed_first(world, ranks, arena):
    """What ranks begin with is compared before the first step: it moves nothing."""
    for name, options in FIRST.items():
        one = arena_of(half="fp16", ema=True)
        start(one)
        together = Ranks(one, world)
        own = options if world.rank == 1 else {}
        step = ReplicatedStep(together, **OPTIONS | own)
        before = state(one)
        try:
            step()
        except RankMismatch as error:
            assert str(error).startswith(f"ranks: {name} is "), error
        else:
            raise AssertionError(f"{name} was not compared")
        for series, bits in state(one).items():
            np.testing.assert_array_equal(bits, before[series], err_msg=series)
        together.close()


def agreed_graph(world, ranks, arena):
    """Settings that all ranks change before the same step go on, also in a captured graph."""
    for half, kind in ((None, ReplicatedStep), ("fp16", ShardedStep)):
        pair = Pair(world, kind, half)
        pair.step()
        captured = pair.steps[0].capture()
        changes = [change for change, _ in CHANGES.values()]
        for change in (*changes, lambda a: a.groups.unfreeze("*"), lambda a: a.groups.rest([])):
            for one in pair.arenas:
                change(one)
            pair.step(captured.replay)
            pair.arenas[0].scalars.batch_size = 1 + world.rank  # a rank's own affair
            pair.step(captured.replay)
        if world.rank == 1:
            pair.arenas[0].scalars.lr = 0.125
        pair.held(captured.replay)
        pair.refused("scalars.lr is 0.125 on rank 1 and 0.5 on rank 0", captured.replay)
        pair.arenas[0].scalars.lr = pair.arenas[1].scalars.lr = 0.125
        pair.step(captured.replay)
        pair.close()


def agreed_graph_of_steps(world, ranks, arena):
    """A graph of three steps compares settings once a replay, and is held back as a whole."""
    pair = Pair(world, ReplicatedStep, None)
    pair.step()

    def write():
        pair.write(pair.arenas[0])

    captured = pair.steps[0].capture(3, before=[write])
    for lr in (0.5, 0.25):
        for one in pair.arenas:
            one.scalars.lr = lr
        captured.replay()
        for _ in range(3):
            pair.write(pair.arenas[1])
            pair.steps[1]()
        pair.count += 3
    if world.rank == 1:
        pair.arenas[0].scalars.lr = 0.125
    pair.held(captured.replay)
    pair.refused("scalars.lr is 0.125 on rank 1 and 0.25 on rank 0", captured.replay)
    if world.rank == 1:
        pair.arenas[0].scalars.lr = 0.25
    pair.step()
    pair.close()

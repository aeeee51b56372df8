"""Scenarios of the sharded step against the replicated one."""

from __future__ import annotations

import numpy as np

from plan import PlanError
from rangeops import Arena
from rangeops.ranks import Ranks, ReplicatedStep, Shard, ShardedStep
from tests.helpers import small_plan
from tests.ranks import common
from tests.ranks.common import OPTIONS, SERIES, arena_of, gradients, start, state

SHARDED = (
    ("adamw", "fp16", {"ema_decay": 0.9}, {"ema": True}),
    ("adamw", None, {"clip_norm": 3.0}, {}),
    ("momentum", "bf16", {}, {}),
)


def kept_and_lost(pair, step):
    """The own interval of every series is the replicated step's; the unmapped are refused."""
    whole, part = pair
    for series in SERIES:
        span = step.shard.mine(series)
        if span.size:
            np.testing.assert_array_equal(part.read(span), whole.read(span), err_msg=series)
    for span in (whole.plan.series_range("A", half=True), whole.plan.series_range("W", "bias")):
        np.testing.assert_array_equal(part.read(span), whole.read(span))
    refused = [lambda: part["conv1.weight"], lambda: part["fc.weight"], step.collect]
    faults = 0
    for call in refused:
        try:
            call()
        except PlanError as error:
            assert "reach into a hole of this arena" in str(error), error
            faults += 1
    assert faults >= 2, "nobody refused a hole"


def sharded(world, ranks, arena):
    """Sharded equals replicated to the bit, a skipped step in the middle."""
    for optimizer, half, extra, options in SHARDED:
        if common.DEVICE == "cpu" and (half == "bf16" or (world.size > 2 and half is None)):
            continue  # each process compiles its own loops; two GPUs run all
        plan = small_plan(optimizer, half=half, **options)
        shard = Shard(plan, world.rank, world.size)
        unmapped = shard.unmapped(masters=True) if half == "fp16" else []
        pair = [
            Arena(plan, device=common.DEVICE),
            Arena(plan, device=common.DEVICE, unmapped=unmapped),
        ]
        for one in pair:
            start(one)
        made = [Ranks(one, world) for one in pair]
        more = {**OPTIONS, **extra, "check": True}
        steps = [ReplicatedStep(made[0], **more), ShardedStep(made[1], **more)]
        steps[1].gather_weights()
        for k in range(4):
            for one, step in zip(pair, steps, strict=True):
                gradients(one, k, world.rank, half is not None, 1 if k == 2 else None)
                step()
        assert pair[0].scalars.step == pair[1].scalars.step == 3
        if unmapped:
            kept_and_lost(pair, steps[1])
        else:
            steps[1].collect()
            one, two = map(state, pair)
            for name, bits in one.items():
                np.testing.assert_array_equal(two[name], bits, err_msg=f"{optimizer} {half} {name}")
        assert not pair[1].read(plan.series_range("G")).any()
        for r in made:
            r.close()
    lars = Ranks(arena_of("lars"), world)
    try:
        ShardedStep(lars, **OPTIONS)
    except PlanError as error:
        assert "got lars, expected an optimizer without norms by tensor" in str(error)
    else:
        raise AssertionError("LARS was sharded")
    lars.close()

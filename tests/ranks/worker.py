"""One rank of the tests in test_ranks.py: runs the scenarios it is told and says how each went."""

from __future__ import annotations

import sys
import time
import traceback

import numpy as np

from plan import MemoryPlan, PlanConfig, PlanError, Range, Region
from rangeops import Arena, OptimizerStep, write_kept
from rangeops.kernels.half import from_half, to_half
from rangeops.ranks import (
    RankInfo,
    RankMismatch,
    Ranks,
    ReplicatedStep,
    Shard,
    ShardedStep,
    World,
    rank_info,
)
from tests import tolerance
from tests.helpers import small_plan

DEVICE = "cpu"
STARTED = time.perf_counter()


def arena_of(optimizer="adamw", **options):
    return Arena(small_plan(optimizer, **options), device=DEVICE)


def put(arena, name, values):
    """Write FP32 values to a tensor of any type, rounded."""
    tensor = arena.plan.tensors[name]
    if tensor.dtype.is_half:
        bits = to_half(np.ascontiguousarray(values, np.float32), tensor.dtype.label)
        values = bits if tensor.dtype.label == "bf16" else bits.view(np.float16)
    arena[tensor] = values


def start(arena):
    """Write the same weights on every rank, and their half copies unless masters have unmapped."""
    rng = np.random.default_rng(1)
    for tensor in arena.plan.weights():
        values = rng.standard_normal(tensor.shape).astype(np.float32)
        write_kept(arena, tensor, values)
        if f"{tensor.name}#A16" in arena.plan.tensors and not arena.unmapped:
            put(arena, f"{tensor.name}#A16", values)


def gradients(arena, step, rank, halves, bad=None):
    """Write what a rank's backward pass would: whole numbers, so that any order adds the same."""
    rng = np.random.default_rng(1000 * step + rank)
    for tensor in arena.plan.weights():
        name = f"{tensor.name}#G"
        if halves and f"{name}16" in arena.plan.tensors:
            name = f"{name}16"
        values = rng.integers(-8, 9, tensor.shape).astype(np.float32)
        if bad == rank and values.size and "conv2" in name:
            values.flat[-1] = np.nan
        put(arena, name, values)


def collectives(world, ranks, arena):
    n, me, plan = world.size, world.rank, arena.plan
    every = range(n)
    span = plan.bucket1

    def give(values, at=span, dtype="f4"):
        arena.view(at, dtype)[:] = arena_values(arena, values.astype(dtype))

    def got(at=span, dtype="f4"):
        return arena.read(at, dtype)

    count = span.size // 4
    shape = np.arange(count) % 101
    give(shape + 1.0 + me)
    ranks.all_reduce_sum(span)()
    np.testing.assert_array_equal(got(), (n * (shape + 1.0) + sum(every)).astype("f4"))
    give(np.full(count, 1.0 + me))
    ranks.all_reduce_mean(span)()
    np.testing.assert_array_equal(got(), np.float32((n + 1) / 2))
    give(shape * (1.0 if me == n - 1 else -1.0))
    ranks.broadcast(span, root=n - 1)()
    np.testing.assert_array_equal(got(), shape.astype("f4"))
    half = plan.series_range("G", "weight", half=True)
    numel = half.size // 2 // (128 * n) * 128 * n
    part = Range(half.base_offset, 2 * numel)
    bits = np.float16(np.arange(numel) % 50 + me)
    give(bits.view("u2"), part, "u2")
    ranks.reduce_scatter(part)()
    shard = numel // n
    mine = slice(me * shard, (me + 1) * shard)
    want = np.float16(n * (np.arange(numel) % 50) + sum(every))
    np.testing.assert_array_equal(got(part, "f2")[mine], want[mine])
    ranks.all_gather(part)()
    np.testing.assert_array_equal(got(part, "f2"), want)
    give(np.full(numel, 60000, np.float16).view("u2"), part, "u2")
    ranks.all_reduce_mean(part)()  # a sum would be infinite
    np.testing.assert_allclose(got(part, "f2").astype("f4"), 60000, rtol=tolerance.FP16)
    flag, _ = plan.scalar("found_inf")
    arena.write(flag, np.array([me == 1], np.int32))
    ranks.all_reduce_max(Range(flag, 4))()
    assert arena.scalars.found_inf == 1
    arena.write(flag, np.array([0], np.int32))
    assert ranks.same_bits(half)
    empty = ranks.all_reduce_sum(Range(span.base_offset, 0))
    empty()


def bn_stats(world, ranks, arena):
    plan = MemoryPlan(PlanConfig("sgd"))
    for region in (Region.B_PREV_MEAN, Region.B_NEXT_VAR):
        plan.alloc(region, (5,), f"{region.name}.5")
    plan.parameter("w", "fc_weight", (3,))
    other = Arena(plan.finalize(), device=DEVICE)
    together = Ranks(other, world)
    other["B_PREV_MEAN.5"] = float(world.rank)
    other["B_NEXT_VAR.5"] = float(2 * world.rank)
    together.all_reduce_bn_stats()()
    middle = (world.size - 1) / 2
    np.testing.assert_array_equal(other.download("B_PREV_MEAN.5"), np.float32(middle))
    np.testing.assert_array_equal(other.download("B_NEXT_VAR.5"), np.float32(2 * middle))
    together.close()


def bf16(world, ranks, arena):
    other = arena_of(half="bf16")
    together = Ranks(other, world)
    span = other.plan.series_range("G", "weight", half=True)
    values = (np.arange(span.size // 2) % 32 + world.rank).astype(np.float32)
    bits = to_half(values, "bf16")
    other.view(span, "u2")[:] = arena_values(other, bits)
    together.all_reduce_sum(span)()
    found = from_half(other.read(span, "u2"), "bf16")
    want = world.size * (np.arange(span.size // 2) % 32) + sum(range(world.size))
    np.testing.assert_allclose(found, want, rtol=tolerance.BF16)
    together.close()


def arena_values(arena, values):
    """Return host values as the arena's library takes them."""
    if not arena.on_gpu:
        return values
    import cupy

    return cupy.asarray(values)


SERIES = "WMVE"
"""What a step moves, beside half copies."""


def state(arena):
    """Return the bits of every series that a step moves."""
    out = {}
    for series in SERIES:
        span = arena.plan.series_range(series)
        if span.size:
            out[series] = arena.read(span)
    if arena.plan.config.half:
        out["A"] = arena.read(arena.plan.series_range("A", half=True))
    out["step"] = np.array([arena.scalars.step, arena.scalars.loss_scale])
    return out


OPTIONS = {"lr": 0.02, "weight_decay": 0.1}


def joined(world, ranks, arena):
    """The step of n ranks is that of one process with the sum of their gradients, over n."""
    for half in (None, "fp16"):
        plans = [arena_of(half=half, ema=half is not None) for _ in range(2)]
        for one in plans:
            start(one)
        together = Ranks(plans[0], world)
        step = ReplicatedStep(together, **OPTIONS)
        alone = OptimizerStep(plans[1], ranks=float(world.size), **OPTIONS)
        for k in range(3):
            gradients(plans[0], k, world.rank, half is not None)
            plans[0]["result.loss"] = float(world.rank)
            step()
            total = {}
            for rank in range(world.size):
                gradients(plans[1], k, rank, half is not None)
                for tensor in plans[1].plan:
                    if "#G" in tensor.name:
                        add = plans[1].download(tensor).astype(np.float32)
                        total[tensor.name] = total.get(tensor.name, 0) + add
            for name, value in total.items():
                put(plans[1], name, value)
            alone()
            assert plans[0].download("result.loss")[..., 0] == (world.size - 1) / 2
        for name, bits in state(plans[1]).items():
            np.testing.assert_array_equal(state(plans[0])[name], bits, err_msg=f"{half} {name}")
        together.close()


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
        if DEVICE == "cpu" and (half == "bf16" or (world.size > 2 and half is None)):
            continue  # each process compiles its own loops; two GPUs run all
        plan = small_plan(optimizer, half=half, **options)
        shard = Shard(plan, world.rank, world.size)
        unmapped = shard.unmapped(masters=True) if half == "fp16" else []
        pair = [Arena(plan, device=DEVICE), Arena(plan, device=DEVICE, unmapped=unmapped)]
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


def s13(world, ranks, arena):
    """S13: a NaN on one rank skips the step on all, whichever rank it is."""
    one = arena_of(half="fp16")
    start(one)
    together = Ranks(one, world)
    step = ReplicatedStep(together, lr=0.1, loss_scale=64.0)
    for bad in range(world.size):
        before = one.read(one.plan.series_range("W"))
        gradients(one, bad, world.rank, True, bad=bad)
        step()
        np.testing.assert_array_equal(one.read(one.plan.series_range("W")), before)
        assert one.scalars.loss_scale == 64.0 / 2 ** (bad + 1)
        assert together.same_bits(one.plan.series_range("W"))
    gradients(one, 99, world.rank, True)
    step()
    assert one.scalars.step == 1 and together.same_bits(one.plan.series_range("W"))
    assert one.scalars.skipped_steps == world.size
    together.close()


def s33(world, ranks, arena):
    """S33: other layouts are an error on every rank, with the first difference."""
    order = ("a", "b") if world.rank == 0 else ("b", "a")
    plan = MemoryPlan(PlanConfig("sgd"))
    for name in order:
        plan.parameter(name, "fc_weight", (6,))
    try:
        Ranks(Arena(plan.finalize(), device=DEVICE), world)
    except PlanError as error:
        assert "rank 0 differs from that of rank 1: tensor a" in str(error), error
    else:
        raise AssertionError("two layouts went together")


def mismatch(world, ranks, arena):
    """Ranks that call different collectives are told on every rank, before data move."""
    region = arena.plan.bucket1 if world.rank == 0 else arena.plan.bucket2
    before = arena.read(arena.plan.bucket1)
    try:
        ranks.all_reduce_sum(region)()
    except RankMismatch as error:
        assert "of rank 1 is all_reduce_sum fp32" in str(error), error
    else:
        raise AssertionError("different calls went together")
    np.testing.assert_array_equal(arena.read(arena.plan.bucket1), before)


def schedule(world, ranks, arena):
    """Steps with other options are refused when they are made, also where NCCL would hang."""
    try:
        ReplicatedStep(ranks, check=world.rank == 0, **OPTIONS)
    except RankMismatch as error:
        assert "rank 0 calls all_reduce_max int32 x 1 (S_SCALAR_INT32) where that of" in str(error)
    else:
        raise AssertionError("different steps went together")


def gloo(world, ranks, arena):
    """torch.distributed's gloo, on views of the same memory, says the same."""
    try:
        import torch
        from torch import distributed
    except ImportError:
        print("skipped gloo: torch is not installed")
        return
    address = f"tcp://127.0.0.1:{world.info.port + 1}"
    distributed.init_process_group(
        "gloo", init_method=address, rank=world.rank, world_size=world.size
    )
    span = arena.plan.bucket1
    values = np.random.default_rng(world.rank).standard_normal(span.size // 4).astype(np.float32)
    arena.view(span, "f4")[:] = values
    theirs = torch.from_numpy(values.copy())
    distributed.all_reduce(theirs)
    ranks.all_reduce_sum(span)()
    np.testing.assert_allclose(arena.read(span, "f4"), theirs.numpy(), **tolerance.ADDED)
    distributed.destroy_process_group()


def digits(world, ranks, arena):
    """Training by all ranks ends where one process with the joined batch does."""
    try:
        from examples.digits_ranks import train
    except ImportError:
        print("skipped digits: scikit-learn is not installed")
        return
    alone = train(World(RankInfo()), DEVICE, 80, False)
    for sharded in (False, True):
        found = train(world, DEVICE, 80, sharded)
        loss = sum(world.exchange(found["loss"])) / world.size
        # Float32 sums in another order; 1.4e-7 was seen behind 150 steps of two ranks.
        assert abs(loss - alone["loss"]) < 1e-4 * alone["loss"], (loss, alone)
        assert abs(found["accuracy"] - alone["accuracy"]) < 0.006, (found, alone)


def graph(world, ranks, arena):
    """200 replays of the step with its collectives equal 200 eager ones, on a GPU in a graph."""
    pair = [arena_of(half="fp16", ema=True) for _ in range(2)]
    made = [Ranks(one, world) for one in pair]
    steps = [ReplicatedStep(r, **OPTIONS) for r in made]
    for one, step in zip(pair, steps, strict=True):
        start(one)
        gradients(one, 0, world.rank, True)
        step()
    captured = steps[1].capture()
    for k in range(200):
        for one in pair:
            if k % 20 == 0:
                gradients(one, k, world.rank, True, bad=0 if k == 40 else None)
        steps[0]()
        captured.replay()
    one, two = map(state, pair)
    for name, bits in one.items():
        np.testing.assert_array_equal(two[name], bits, err_msg=name)
    assert one["step"][0] == 200
    for r in made:
        r.close()


def forever(world, ranks, arena):
    """Step until somebody kills a rank; say when the steps begin."""
    if DEVICE == "cpu":  # what waits on the CPU is the collective; it needs no compiler
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


def main() -> int:
    """Run the scenarios named on the command line; print a line for each."""
    global DEVICE
    DEVICE = "cpu" if sys.argv[1] == "cpu" else rank_info().take_device()
    failed = 0
    with World(timeout=60.0) as world:
        print(f"met after {time.perf_counter() - STARTED:.1f} s", flush=True)
        arena = arena_of(half="fp16")
        ranks = Ranks(arena, world)
        for name in sys.argv[2:]:
            began = time.perf_counter()
            try:
                globals()[name](world, ranks, arena)
                print(f"passed {name} {time.perf_counter() - began:.1f} s", flush=True)
            except AssertionError:
                failed = 1
                print(f"failed {name}\n{traceback.format_exc()}", flush=True)
        ranks.close()
    print(f"ends after {time.perf_counter() - STARTED:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

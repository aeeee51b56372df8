"""Scenarios of checkpoints that ranks write and read."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile

import numpy as np

import rangeops
from plan import MemoryPlan, PlanConfig, Range
from rangeops import Arena
from rangeops.arena.sparse import outside
from rangeops.checkpoint import saving
from rangeops.ranks import Ranks, ReplicatedStep, Shard, ShardedStep
from tests.helpers import SHAPES
from tests.ranks import common
from tests.ranks.common import gradients, start

OPTIONS = {"lr": 0.02, "weight_decay": 0.1, "ema_decay": 0.9}
CONFIGS = {"fp32": {}, "half": {"half": "fp16"}}
FILES = ("replicated.safetensors", "sharded.safetensors", "sharded.json")


def planned(options):
    """Return a plan with averages in which one weight is planned as frozen."""
    plan = MemoryPlan(PlanConfig("adamw", ema=True, **options))
    for name, kind, shape in SHAPES:
        plan.parameter(name, kind, shape, trainable=name != "conv1.weight")
    return plan.finalize()


def used(plan):
    """Return the ranges that a checkpoint of it gives back."""
    spans = [span for letter in "WMVE" for span in plan.in_use(letter)]
    return [*spans, plan.series_range("A")] if plan.config.half else spans


def contents(arena, unmapped=()):
    """Return the bytes of what a checkpoint gives back, where an arena has memory."""
    out = {}
    for span in used(arena.plan):
        for part in outside(unmapped, span):
            out[part] = arena.read(part)
    return out


def same(arena, wanted, without=()):
    """Hold what an arena keeps, ``without`` some ranges, to the bytes of a whole one."""
    found = contents(arena, [*arena.unmapped, *without])
    assert found
    for part, bits in found.items():
        span = next(s for s in wanted if s.base_offset <= part.base_offset < s.end)
        first = part.base_offset - span.base_offset
        np.testing.assert_array_equal(bits, wanted[span][first : first + part.size], err_msg=part)


def folder():
    return pathlib.Path(os.environ["RANGEOPS_TEST_DIR"])


def written(world, ranks, arena):
    """Train replicated and sharded, save in every form, and leave the replicated bits beside."""
    for label, options in CONFIGS.items():
        plan = planned(options)
        unmapped = Shard(plan, world.rank, world.size).unmapped()
        arenas = [Arena(plan, device=common.DEVICE, unmapped=u) for u in ((), (), unmapped)]
        made = [Ranks(one, world) for one in arenas]
        kinds = (ReplicatedStep, ShardedStep, ShardedStep)
        for one, kind, together, file in zip(arenas, kinds, made, FILES, strict=True):
            start(one)
            one.groups.add("head", "fc.weight", lr=2.0)
            step = kind(together, **OPTIONS)
            for k in range(3):
                gradients(one, k, world.rank, bool(options))
                step()
            path, sharded = folder() / f"{label}.{file}", file.endswith("json")
            for epoch in range(2):  # the second replaces the first
                more = {"sharded": True} if sharded else {}
                step.save(path, {"epoch": epoch}, **more)
            together.close()
        if world.rank == 0:
            wanted = contents(arenas[0])
            spans = [[*map(int, span)] for span in wanted]
            (folder() / f"{label}.spans").write_text(json.dumps(spans))
            np.concatenate(list(wanted.values())).tofile(folder() / f"{label}.bits")
            parts = sorted(file.name for file in folder().glob(f"{label}.sharded.*-of-*"))
            assert len(parts) == world.size, parts  # those of the first save are gone
    world.exchange(0)


def kept(label):
    """Return the bits of the replicated run."""
    raw = np.fromfile(folder() / f"{label}.bits", np.uint8)
    out, at = {}, 0
    for base, size in json.loads((folder() / f"{label}.spans").read_text()):
        out[Range(base, size)] = raw[at : at + size]
        at += size
    return out


def read(world, ranks, arena):
    """Load every form into whole and sharded arenas, and go on with the same bits in all."""
    for label, options in CONFIGS.items():
        plan, wanted, ends = planned(options), kept(label), []
        shard = Shard(plan, world.rank, world.size)
        for file in FILES:
            for unmapped in ((), shard.unmapped(), shard.unmapped(masters=True)):
                one = Arena(plan, device=common.DEVICE, unmapped=unmapped)
                found = rangeops.load(one, folder() / f"{label}.{file}")
                assert (found.extra, found.step) == ({"epoch": 1}, 3), found
                assert not found.missing and not found.unexpected
                # Half copies of others' masters come by gather_weights.
                same(one, wanted, [plan.series_range("A")] if options and unmapped else [])
                ends.append(going_on(world, one, wanted))
        for end in ends:
            for span, bits in ends[0].items():
                np.testing.assert_array_equal(end[span], bits, err_msg=f"{label} {span}")


def going_on(world, arena, wanted):
    """Take two steps more; return the weights that the forward pass reads."""
    plan = arena.plan
    together = Ranks(arena, world)
    step = (ShardedStep if arena.unmapped else ReplicatedStep)(together, resume=True, **OPTIONS)
    if arena.unmapped:
        step.gather_weights()
        same(arena, wanted)
    assert arena.groups.settings(arena.groups.of("fc.weight")) == {"lr": 2.0}
    for k in range(2):
        gradients(arena, 10 + k, world.rank, plan.config.half is not None)
        step()
    step.close()
    together.close()
    forward = plan.series_range("A") if plan.config.half else plan.series_range("W")
    return {span: arena.read(span) for span in (forward, plan.series_range("W", "bias"))}


def unwritten(world, ranks, arena):
    """A rank that cannot write is an error on every rank, and the old checkpoint stays."""
    (place,) = set(world.exchange(tempfile.mkdtemp() if world.rank == 0 else "")) - {""}
    plan = planned({})
    one, again = (Arena(plan, device=common.DEVICE) for _ in range(2))
    start(one)
    together = Ranks(one, world)
    step = ShardedStep(together, **OPTIONS)
    files = [pathlib.Path(place) / name for name in ("run.json", "run.safetensors")]
    step.save(files[0], 1, sharded=True)
    step.save(files[1], 1)
    was = sorted(os.listdir(place))
    gradients(one, 0, world.rank, False)
    step()
    write = saving.archive.write
    for bad in range(world.size):
        for file, sharded in zip(files, (True, False), strict=True):
            if bad and not sharded:
                continue  # rank 0 alone writes
            if world.rank == bad:
                saving.archive.write = full
            try:
                step.save(file, 2, sharded=sharded)
            except OSError as error:
                told = "No space left" if world.rank == bad else f"rank {bad} could not write"
                assert told in str(error), error
            else:
                raise AssertionError("nobody was told")
            saving.archive.write = write
            world.exchange(0)
            assert sorted(os.listdir(place)) == was, os.listdir(place)
            found = rangeops.load(again, file)
            assert (found.extra, found.step) == (1, 0)
    step.save(files[0], 3, sharded=True)
    assert rangeops.load(again, files[0]).extra == 3
    together.close()


def full(*arguments):
    raise OSError(28, "No space left on device")

"""load: a checkpoint into an arena, everything checked before the first byte is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plan import DTensor, MemoryPlan, PlanError, Range
from plan.scalars import FP32_SCALARS, INT32_SCALARS
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.arena.ownership import restart_average
from rangeops.arena.scalars import check
from rangeops.arena.settings import stored
from rangeops.arena.sparse import outside
from rangeops.checkpoint import archive
from rangeops.checkpoint.archive import Archive, Entry
from rangeops.checkpoint.contents import MOMENTS, names_of
from rangeops.checkpoint.transfer import Uploads

MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class Loaded:
    """What ``load`` found beside what it wrote.

    Attributes:
        extra: what ``save`` was given.
        step: the arena's count of steps.
        missing: names that the plan has and the file has not; weights and statistics among them
            keep their values, moments are zero, averages begin anew.
        unexpected: names that the file has and the plan has not.

    """

    extra: Any
    step: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


def load(arena: Arena, file: str | os.PathLike[str], strict: bool = True) -> Loaded:
    """Read a file of ``save`` into the arena, whose driver goes on from there.

    A driver made afterwards takes the state over with ``OptimizerStep(arena, resume=True)``.

    Args:
        arena: a planned arena of the same parameters.
        file: a file of ``save``, or the index of ``ShardedStep.save``.
        strict: refuse a file that has not exactly the plan's tensors, its optimizer and the
            driver's options; else report what is missing and what is unexpected.

    Raises:
        PlanError: damaged, of another shape or type, or not fitting; nothing is written then.
        RuntimeError: averaged weights are swapped in.
        OSError: the file cannot be read.

    """
    plan = arena.planned("load")
    arena.owner.check_live("load")
    found = archive.read(file)
    facts = _checked_facts(plan, found.facts)
    fits = facts["config"].get("optimizer") == plan.config.kind.label
    wanted = names_of(plan)
    if strict:
        _check_strictly(arena, facts, wanted, found)
    writes = _writes(plan, wanted, found, fits)
    missing = tuple(name for name in wanted if name not in writes)
    _write(arena, writes, wanted)
    _complete(arena, facts, [wanted[name] for name in missing], fits)
    arena.owner.resumable(facts["options"] if strict else None)
    unexpected = tuple(name for name in found.entries if name not in writes)
    return Loaded(facts["extra"], facts["scalars"]["step"], missing, unexpected)


def _checked_facts(plan: MemoryPlan, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a file, refusing settings that cannot be."""
    try:
        for name, value in facts["scalars"].items():
            if name not in plan.config.own_scalars:
                check(name, value)
        if facts["scalars"]["step"] < 0:
            raise ValueError("step is negative")
        for name, step in facts["steps"].items():
            if type(step) is not int or not 0 <= step <= MOST_STEPS:
                raise ValueError(f"step of {name} is {step!r}")
        for group in facts["groups"]["groups"].values():
            stored(group["settings"])
            list(map(str, group["of"]))
        list(map(str, facts["groups"]["frozen"]))
        dict(facts["options"]), dict(facts["config"]), facts["extra"]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PlanError(f"load: the file has damaged facts ({error}); give another one") from None
    own = [n for n in facts["scalars"] if n not in (*FP32_SCALARS, *INT32_SCALARS)]
    kept = {
        n: v for n, v in facts["scalars"].items() if n not in own or n in plan.config.own_scalars
    }
    return facts | {"scalars": kept}


def _check_strictly(
    arena: Arena, facts: Mapping[str, Any], wanted: Mapping[str, DTensor], found: Archive
) -> None:
    """Refuse a file that is not exactly of this plan and its driver."""
    has, plan = facts["config"].get("optimizer"), arena.planned("load")
    if has != plan.config.kind.label:
        raise PlanError(
            f"load: the file is of {has}, the plan for {plan.config.kind.label}, expected the same "
            "optimizer; with strict=False moments begin anew"
        )
    for name in sorted(wanted.keys() ^ found.entries.keys()):
        where, lacks = ("plan", "file") if name in wanted else ("file", "plan")
        raise PlanError(
            f"load: the {where} has {name}, the {lacks} has none, expected it in both; use "
            "strict=False for what both have"
        )
    if arena.owner.driver is not None:
        arena.owner.check_options(facts["options"], arena.owner.options)


def _writes(
    plan: MemoryPlan, wanted: Mapping[str, DTensor], found: Archive, fits: bool
) -> dict[str, Entry]:
    """Return what is to be written by name, refusing other shapes and types."""
    out = {}
    for name, tensor in wanted.items():
        entry = found.entries.get(name)
        if entry is None or (tensor.region.series in MOMENTS and not fits):
            continue
        if entry.shape != tensor.shape or entry.dtype != "F32":
            raise PlanError(
                f"load: {name} got {entry.dtype} {entry.shape}, the plan has F32 {tensor.shape}; "
                "give a file of the same model"
            )
        out[name] = entry
    return out


def _write(arena: Arena, writes: Mapping[str, Entry], wanted: Mapping[str, DTensor]) -> None:
    """Read every tensor into what has memory of its place."""
    uploads = Uploads(arena)
    for name, entry in writes.items():
        offset = wanted[name].offset
        for piece in entry.pieces:
            span = Range(offset + 4 * piece.first, 4 * (piece.last - piece.first))
            for part in outside(arena.unmapped, span):
                uploads.read(piece, part.base_offset - span.base_offset, part)
    uploads.finish()


def _complete(
    arena: Arena, facts: Mapping[str, Any], missing: Sequence[DTensor], fits: bool
) -> None:
    """Write scalars, steps, groups, what follows from the weights, and what a file lacks."""
    plan = arena.planned("load")
    arena.scalars.set(**facts["scalars"])
    if plan.weights():
        known = {t.name for t in plan.weights()}
        steps = {n: s if fits else 0 for n, s in facts["steps"].items() if n in known}
        arena.groups.set_steps(dict.fromkeys(known, 0) | steps)
        arena.groups.restore(facts["groups"])
    for tensor in missing:
        if tensor.region.series in MOMENTS:
            arena.clear(tensor.span)
    if any(tensor.region.series == "E" for tensor in missing):
        restart_average(arena)
    refresh_halves(arena)


def refresh_halves(arena: Arena) -> None:
    """Round half copies from the weights, and half averages from the averages."""
    plan = arena.planned("refresh_halves")
    for letter, full, half in _halves(plan):
        for used in plan.in_use(letter, "weight"):
            for part in outside(arena.unmapped, used):
                first = (part.base_offset - full.base_offset) // 2
                target = Range(half.base_offset + first, part.size // 2)
                ops.cast_fp32_to_fp16(arena, target, part)


def _halves(plan: MemoryPlan) -> Iterator[tuple[str, Range, Range]]:
    config = plan.config
    if config.half is not None and plan.series_range("A").size:
        yield "W", plan.series_range("W", "weight"), plan.series_range("A")
        if config.ema and plan.series_range("E", "weight", half=True).size:
            yield "E", plan.series_range("E", "weight"), plan.series_range("E", "weight", half=True)

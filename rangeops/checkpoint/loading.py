"""load: a checkpoint into an arena, everything checked before the first byte is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plan import DTensor, MemoryPlan, PlanError, Range
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.arena.sparse import outside
from rangeops.checkpoint import archive
from rangeops.checkpoint.archive import Archive, Entry
from rangeops.checkpoint.contents import MOMENTS, PREFIXES, names_of
from rangeops.checkpoint.facts import checked
from rangeops.checkpoint.transfer import Uploads


@dataclass(frozen=True)
class Loaded:
    """What ``load`` found beside what it wrote.

    Attributes:
        extra: what ``save`` was given.
        step: the arena's count of steps.
        missing: names that the plan has and the file has not; weights and statistics among them
            keep their values; a tensor that lacks a moment begins anew (moments and step zero),
            an average is the weights.
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
    facts = checked(arena, found.facts, strict)
    fits = facts["config"].get("optimizer") == plan.config.kind.label
    wanted = names_of(plan)
    if strict:
        _check_strictly(arena, facts, wanted, found)
    writes = _writes(plan, wanted, found, fits)
    missing = {name: tensor for name, tensor in wanted.items() if name not in writes}
    _write(arena, writes, wanted)
    _complete(arena, facts, missing, fits)
    if arena.owner.driver is None:
        arena.owner.options = dict(facts["options"])  # a file of this arena says them again
    arena.owner.resumable(facts["options"] if strict and facts["options"] else None)
    unexpected = tuple(name for name in found.entries if name not in writes)
    return Loaded(facts["extra"], facts["scalars"]["step"], tuple(missing), unexpected)


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
    if arena.owner.driver is not None and facts["options"]:  # none: no driver saved it
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
    for weight in plan.weights():  # half of its moments are none
        moments = [m for m in _moments(weight.name) if m in wanted]
        if not all(name in out for name in moments):
            out = {name: entry for name, entry in out.items() if name not in moments}
    return out


def _moments(weight: str) -> tuple[str, ...]:
    """Return the names that moments of a weight have in a checkpoint."""
    return tuple(f"{PREFIXES[letter]}{weight}" for letter in MOMENTS)


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
    arena: Arena, facts: Mapping[str, Any], missing: Mapping[str, DTensor], fits: bool
) -> None:
    """Write scalars, steps, groups, what follows from the weights, and what a file lacks."""
    plan = arena.planned("load")
    arena.scalars.set(**facts["scalars"])
    if plan.weights():
        known = [t.name for t in plan.weights()]
        went_on = {n for n in known if fits and not missing.keys() & {*_moments(n)}}
        steps = {n: facts["steps"].get(n, 0) if n in went_on else 0 for n in known}
        arena.groups.set_steps(steps)
        arena.groups.restore(facts["groups"])
        arena.groups.rest(name for name in facts["groups"]["resting"] if name in steps)
    for name, tensor in missing.items():
        if tensor.region.series in MOMENTS:
            arena.clear(tensor.span)
        if tensor.region.series == "E":
            _restart(arena, tensor, plan.tensors[name.removeprefix(PREFIXES["E"])])
    refresh_halves(arena)


def _restart(arena: Arena, average: DTensor, weight: DTensor) -> None:
    """Let one average be its weight."""
    away = average.offset - weight.offset
    for part in outside(arena.holes, Range(average.offset, average.nbytes)):
        for kept in outside(arena.holes, Range(part.base_offset - away, part.size)):
            arena.copy_bytes(kept.base_offset + away, kept)


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

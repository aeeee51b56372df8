"""save: an arena's training state into one file, or a rank's part of it into its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from plan import Range
from rangeops.arena.arena import Arena
from rangeops.checkpoint import archive
from rangeops.checkpoint.contents import facts_of, sources_of


def save(arena: Arena, file: str | os.PathLike[str], extra: Any = None) -> None:
    """Write the arena's training state to ``file``; see ``rangeops.checkpoint``.

    Args:
        arena: a planned arena.
        file: a path; a file of that name is replaced in one move, or kept if anything fails.
        extra: plain data of the caller's (epoch, seeds, schedule), as JSON holds it.

    Raises:
        PlanError: no plan; ranges without memory, see ``ShardedStep.save``; names that clash.
        TypeError: ``extra`` is no plain data.

    >>> import tempfile, pathlib
    >>> from rangeops.checkpoint.loading import load
    >>> from plan import PlanConfig
    >>> from plan.models import mlp, plan_model
    >>> arena = Arena(plan_model(mlp((2, 1)), PlanConfig("adamw")), device="cpu")
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.safetensors"
    >>> save(arena, path, extra={"epoch": 3})
    >>> load(arena, path).extra
    {'epoch': 3}

    """
    sources = sources_of(arena)
    read = arena.download if arena.on_gpu else arena.__getitem__  # no copy in host memory
    tensors = {name: read(tensor) for name, tensor in sources.items()}
    archive.write(file, tensors, facts_of(arena, extra))


def save_part(
    arena: Arena, file: str | os.PathLike[str], owned: Sequence[Range], extra: Any = None
) -> None:
    """Write what lies in ``owned`` ranges: one rank's file of a checkpoint in several."""
    tensors, pieces = {}, {}
    for name, source in sources_of(arena).items():
        for span in owned:
            first = max(span.base_offset, source.offset)
            end = min(span.end, source.offset + source.nbytes)
            if first < end:
                tensors[name] = arena.read(Range(first, end - first), "f4")
                start = (first - source.offset) // 4
                pieces[name] = [start, start + (end - first) // 4, list(source.shape)]
    archive.write(file, tensors, facts_of(arena, extra) | {"pieces": pieces})

"""save: an arena's training state into one file, or a rank's part of it into its own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
        ValueError: the name ends in ".json", as that of an index does.
        OSError: no room or no right to write.

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
    if Path(file).suffix == archive.INDEX:
        raise ValueError(
            f"save: got {Path(file).name}, which load would read as an index, expected another "
            "suffix; use .safetensors"
        )
    _check_plain(extra)
    sources = sources_of(arena)
    read = arena.download if arena.on_gpu else arena.__getitem__  # no copy in host memory
    tensors = {name: read(tensor) for name, tensor in sources.items()}
    archive.write(file, tensors, facts_of(arena, extra))


def save_part(
    arena: Arena, file: str | os.PathLike[str], owned: Sequence[Range], extra: Any = None
) -> None:
    """Write what lies in ``owned`` ranges: one rank's file of a checkpoint in several."""
    _check_plain(extra)
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    pieces: dict[str, list[Any]] = {}
    for name, source in sources_of(arena).items():
        if not source.nbytes:  # every rank has all of it
            tensors[name], pieces[name] = np.empty(0, np.float32), [0, 0, list(source.shape)]
        for span in owned:
            first = max(span.base_offset, source.offset)
            end = min(span.end, source.offset + source.nbytes)
            if first < end:
                tensors[name] = arena.read(Range(first, end - first), "f4")
                start = (first - source.offset) // 4
                pieces[name] = [start, start + (end - first) // 4, list(source.shape)]
    archive.write(file, tensors, facts_of(arena, extra) | {"pieces": pieces})


def _check_plain(extra: Any) -> None:
    """Refuse what JSON cannot hold.

    Raises:
        TypeError: it cannot.

    """
    try:
        json.dumps(extra, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"save: extra got what JSON cannot hold ({error}), expected plain data; give numbers "
            "that are finite, strings, lists and dicts"
        ) from None

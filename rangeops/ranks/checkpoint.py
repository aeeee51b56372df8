"""Checkpoints of ranks: one file by rank 0, or a file a rank with an index.

``rangeops.load`` reads either into an arena of any number of ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from plan import Range
from rangeops.arena.arena import Arena
from rangeops.checkpoint.archive import INDEX, write_text
from rangeops.checkpoint.saving import save, save_part
from rangeops.ranks.world import World


def save_whole(world: World, arena: Arena, file: str | os.PathLike[str], extra: Any) -> None:
    """Write the arena of rank 0, whose state is whole; every rank calls it.

    Raises:
        OSError: on every rank, if rank 0 could not write.

    """
    _together(world, lambda: save(arena, file, extra) if world.rank == 0 else None)


def save_parts(
    world: World,
    arena: Arena,
    file: str | os.PathLike[str],
    owned: Sequence[Range],
    extra: Any,
) -> None:
    """Write what each rank owns into a file of its own, then the index ``file`` (".json").

    Raises:
        ValueError: the index has another suffix.
        OSError: on every rank, if one could not write; an old index is as it was.

    """
    index = Path(file)
    if index.suffix != INDEX:
        raise ValueError(f"save: index got {index.name}, expected a name that ends in {INDEX}")
    run = world.exchange(os.urandom(4).hex())[0]  # files of an old index stay until it is replaced
    names = [f"{index.stem}.{run}.{rank}-of-{world.size}.safetensors" for rank in range(world.size)]
    mine = index.with_name(names[world.rank])
    old = _files_of(index) if world.rank == 0 else []
    text = json.dumps({"files": names})
    try:
        _together(world, lambda: save_part(arena, mine, owned, extra))
        _together(world, lambda: write_text(index, text) if world.rank == 0 else None)
    except Exception:
        mine.unlink(missing_ok=True)
        raise
    for name in old:
        index.with_name(name).unlink(missing_ok=True)


def _files_of(index: Path) -> list[str]:
    """Return the files of an index that is about to be replaced, those that such a save wrote."""
    try:
        names = [Path(name).name for name in json.loads(index.read_text())["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for name in names if fnmatchcase(name, "*.*.*-of-*.safetensors")]


def _together(world: World, work: Callable[[], None]) -> None:
    """Run ``work`` and let every rank know if one failed."""
    failed: Exception | None = None
    try:
        work()
    except Exception as error:
        failed = error
    for rank, said in enumerate(world.exchange("" if failed is None else f"{failed}")):
        if said and failed is None:
            failed = OSError(f"save: rank {rank} could not write its part ({said})")
    if failed is not None:
        raise failed

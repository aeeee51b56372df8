"""communicators: the engines that move data between ranks, one file an engine.

``Ranks(arena, world, communicator="sockets")`` takes the file of that name beside this one.  A new
engine is one new file with

    def connect(world: World, arena: Arena) -> Communicator

which every rank calls at the same time.  Here are what all engines share: a ``Call``, what one does
with it (``Communicator``), and how an engine is found.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from plan import DType, Range
from rangeops.arena.arena import Arena
from rangeops.ranks.world import World

NUMPY = {d.label: d.bits for d in DType if d is not DType.INT8} | {"fp64": "f8"}
"""Element types that ranks exchange, as they lie in memory; fp64 is that of norms."""


class RankMismatch(RuntimeError):
    """The ranks called different collectives; nothing was exchanged."""


@dataclass(frozen=True)
class Call:
    """One collective on one range, in place.

    Attributes:
        name: "all_reduce", "reduce_scatter", "all_gather" or "broadcast".
        span: the range in bytes; of a scatter or gather all ranks' shards, rank r's the r-th.
        dtype: "fp32", "fp64", "int32", "fp16" or "bf16".
        op: "sum" or "max" of a reduction, else "".
        root: the rank that a broadcast comes from.
        label: the regions, for messages.

    """

    name: str
    span: Range
    dtype: str
    op: str = ""
    root: int = 0
    label: str = ""

    @property
    def count(self) -> int:
        """Elements of the range."""
        return self.span.size // np.dtype(NUMPY[self.dtype]).itemsize

    @property
    def is_half(self) -> bool:
        """Whether the elements are 16-bit floats, which a view has as their bits."""
        return NUMPY[self.dtype] == "u2"

    def __str__(self) -> str:
        """Return it as messages name it."""
        how = "_".join(filter(None, (self.name, self.op)))
        return f"{how} {self.dtype} x {self.count} ({self.label})"


class Communicator(Protocol):
    """What moves the data of calls between the ranks."""

    def run(self, calls: tuple[Call, ...], views: list[Any], stream: int) -> None:
        """Run calls on their views, one after the other or together, in order of ``stream``."""

    def copy_poison(self, ptr: int, stream: int) -> None:
        """Copy the poison word to device address ``ptr`` in order of ``stream``."""

    def abort(self) -> None:
        """End what is under way, since a rank is gone."""

    def close(self) -> None:
        """Give everything back; every rank calls it, after its graphs are gone."""


def engines() -> tuple[str, ...]:
    """Return the names of the engines: the files of this package."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def default_engine(world: World, arena: Arena) -> str:
    """Return the engine for who names none: NCCL between GPUs, else sockets."""
    return "nccl" if arena.on_gpu and world.size > 1 else "sockets"


def connect(name: str, world: World, arena: Arena) -> Communicator:
    """Return the communicator of the engine ``name``; every rank calls it at the same time.

    Raises:
        ValueError: there is no such engine.
        RankMismatch: the ranks name different ones; on every rank.

    """
    if name not in engines():
        raise ValueError(
            f"Ranks: communicator got {name!r}, expected {', '.join(map(repr, engines()))} or None"
        )
    for rank, other in enumerate(world.exchange(name)):
        if other != name:
            raise RankMismatch(
                f"ranks: rank {rank} has communicator {other!r}, rank {world.rank} {name!r}, "
                "expected one on all; give all ranks the same"
            )
    engine = importlib.import_module(f"{__name__}.{name}")
    communicator: Communicator = engine.connect(world, arena)
    return communicator

"""Ranks: the range ops between ranks, bound on an arena like any other op.

    all_reduce_sum, all_reduce_max      every rank has the sum, or the maximum
    all_reduce_mean                     FP32: sum, then x / n; 16 bits: x / n, then sum
    all_reduce_bn_stats                 mean of B_PREV_MEAN..B_NEXT_VAR
    broadcast                           every rank has the root's
    reduce_scatter, all_gather          rank r has the r-th shard of the sum; all have all shards

All work in place, in FP32, fp16, bf16 or INT32, and may be captured in a graph with the step.
Source: the origin's collectives, in which SUM is followed by a scale kernel; here 1/n is in the
update's coefficient.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from typing import Any

from plan import MemoryPlan, PlanError, Region, digest, first_difference, from_json, to_json
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.device.base import Launchable
from rangeops.device.streams import handle_of
from rangeops.launch.graph import Graph
from rangeops.ranks import communicators
from rangeops.ranks.communicators import NUMPY, Call, RankMismatch
from rangeops.ranks.world import World

OPERATIONS = {"all_reduce": ("sum", "max"), "reduce_scatter": ("sum",)}
"""What a reduction may be asked for; other collectives have none."""


def same_plan(world: World, plan: MemoryPlan) -> None:
    """Refuse ranks with different layouts, before a byte of them moves.

    Raises:
        PlanError: on every rank, with the first difference.

    """
    digests = world.exchange(digest(plan))
    if len(set(digests)) == 1:
        return
    mine = digests[world.rank] != digests[0] or world.rank == 0
    texts = world.exchange(to_json(plan) if mine else "")
    for rank, text in enumerate(texts):
        if digests[rank] != digests[0]:
            what = first_difference(from_json(texts[0]), from_json(text))
            raise PlanError(
                f"ranks: the plan of rank 0 differs from that of rank {rank}: {what}; "
                "plan the same model on all ranks"
            )


def same_schedule(world: World, launches: Iterable[Launchable]) -> None:
    """Refuse ranks whose steps call different collectives: on a GPU they would wait for ever.

    Raises:
        RankMismatch: on every rank, with the first difference.

    """
    mine = [str(call) for launch in launches for call in getattr(launch, "calls", ())]
    first, *others = world.exchange(mine)
    for rank, other in enumerate(others, 1):
        for one, two in itertools.zip_longest(first, other, fillvalue="nothing"):
            if one != two:
                raise RankMismatch(
                    f"ranks: the step of rank 0 calls {one} where that of rank {rank} calls {two}, "
                    "expected one schedule; give all ranks the same options"
                )


class Collective:
    """Calls bound to an arena; calling it runs them on a stream.

    Attributes:
        calls: what is exchanged, as one group.

    """

    def __init__(self, ranks: Ranks, calls: tuple[Call, ...]) -> None:
        self._ranks, self.calls = ranks, tuple(c for c in calls if c.count)
        arena = ranks.arena
        self._views = [arena.view(c.span, NUMPY[c.dtype]) for c in self.calls]
        self._label = ", ".join(map(str, self.calls))

    def __repr__(self) -> str:
        """Return what is exchanged, among how many."""
        return f"<collective of {self._ranks.world.size} ranks: {self._label or 'nothing'}>"

    def __call__(self, stream: Any = None) -> None:
        """Run on ``stream`` (default: the framework's current one)."""
        ranks = self._ranks
        if not self.calls or ranks.world.size == 1:
            return
        ranks.world.check()
        ranks.number += 1
        ranks.world.doing = f"{self._label}, collective {ranks.number}"
        ranks.communicator.run(self.calls, self._views, ranks.handle(stream))


class InTurn:
    """Launches and collectives one after the other."""

    def __init__(self, *calls: Launchable) -> None:
        self._calls = calls

    def __repr__(self) -> str:
        """Return what runs, in order."""
        return f"<in turn: {', '.join(map(repr, self._calls))}>"

    def __call__(self, stream: Any = None) -> None:
        """Run all on ``stream`` (default: the framework's current one)."""
        for call in self._calls:
            call(stream)


class Ranks:
    """The collectives of one arena with the same arena of every other rank.

    Every rank makes it at the same time, and binds and calls the same in the same order.

    Args:
        arena: a planned arena.
        world: the ranks.
        communicator: the engine that moves the data, a file of ``rangeops.ranks.communicators``:
            "nccl" (the extra ``nccl``) or "sockets"; None for NCCL between GPUs, else sockets.

    Raises:
        PlanError: no plan, or ranks with different layouts (S33).
        ValueError: an engine that there is not, or not for this arena.
        RankMismatch: ranks that name different engines.

    """

    def __init__(self, arena: Arena, world: World, communicator: str | None = None) -> None:
        self.arena, self.world, self.plan = arena, world, arena.planned("Ranks")
        self.number = 0
        self.graphs: list[Graph] = []
        self._current = arena.backend.stream_reader(arena.framework)
        same_plan(world, self.plan)
        self._engine = communicator or communicators.default_engine(world, arena)
        self.communicator = communicators.connect(self._engine, world, arena)
        arena.scalars.ranks = float(world.size)

    def __repr__(self) -> str:
        """Return the rank, the engine and the device."""
        world, where = self.world, self.arena.device
        return f"<Ranks: rank {world.rank} of {world.size} by {self._engine} on {where}>"

    def handle(self, stream: Any) -> int:
        """Return a stream's raw handle, the current one's for None."""
        return self._current() if stream is None else handle_of(stream)

    def call(
        self, name: str, span: Any, op: str = "", root: int = 0, dtype: str | None = None
    ) -> Call:
        """Return the call of a collective on what ``plan.resolve`` takes as a range.

        The element type is the plan's there, unless ``dtype`` says otherwise (norms are "fp64").

        Raises:
            PlanError: a range of several element types, or of none that ranks exchange.
            ValueError: an operation that the collective has not; a scatter or gather that does not
                divide among the ranks.

        """
        if op not in OPERATIONS.get(name, ("",)):
            expected = " or ".join(map(repr, OPERATIONS.get(name, ("",))))
            raise ValueError(
                f"{name}: op got {op!r}, expected {expected}; a mean is all_reduce_mean"
            )
        span = self.plan.resolve(span, name)
        tensors = self.plan.tensors_at(span)
        names = list(dict.fromkeys(t.region.name for t in tensors))
        label = "..".join(dict.fromkeys((names[0], names[-1]))) if names else "nothing"
        kinds = sorted({t.dtype.label for t in tensors}) if dtype is None else [dtype]
        if span.size and (len(kinds) != 1 or kinds[0] not in NUMPY):
            raise PlanError(
                f"{name}: range {label} holds {', '.join(kinds) or 'no tensor'}, expected one of "
                f"{', '.join(NUMPY)}; give regions of one type"
            )
        call = Call(name, span, kinds[0] if kinds else "fp32", op, root, label)
        if name in ("reduce_scatter", "all_gather") and call.count % self.world.size:
            raise ValueError(
                f"{name}: {label} holds {call.count} elements, expected a multiple of "
                f"{self.world.size} ranks; give a range that divides"
            )
        return call

    def bind(self, *calls: Call) -> Collective:
        """Return calls as one group."""
        return Collective(self, calls)

    def all_reduce_sum(self, *spans: Any) -> Collective:
        """Bind the sum over ranks of ranges, in place."""
        return self.bind(*(self.call("all_reduce", span, "sum") for span in spans))

    def all_reduce_max(self, *spans: Any) -> Collective:
        """Bind the maximum over ranks of ranges, in place."""
        return self.bind(*(self.call("all_reduce", span, "max") for span in spans))

    def all_reduce_mean(self, span: Any) -> InTurn:
        """Bind the mean over ranks of a range, in place.

        FP32 is divided after the sum; 16 bits before it, since a sum of 16 bits may overflow where
        the mean does not, and NCCL's own average of them is biased.
        """
        call = self.call("all_reduce", span, "sum")
        if call.is_half:
            average = ops.average_half.bind(self.arena, x=call.span, half=call.dtype)
            return InTurn(average, self.bind(call))
        return InTurn(self.bind(call), ops.average.bind(self.arena, x=call.span))

    def all_reduce_bn_stats(self) -> InTurn:
        """Bind the mean over ranks of all running means and variances."""
        return self.all_reduce_mean((Region.B_PREV_MEAN, Region.B_NEXT_VAR))

    def broadcast(self, *spans: Any, root: int = 0) -> Collective:
        """Bind the copy of ranges from rank ``root`` to all."""
        return self.bind(*(self.call("broadcast", span, root=root) for span in spans))

    def reduce_scatter(self, span: Any) -> Collective:
        """Bind the sum of a range of which rank r gets the r-th of n shards, where it lies."""
        return self.bind(self.call("reduce_scatter", span, "sum"))

    def all_gather(self, span: Any) -> Collective:
        """Bind the exchange of a range of which rank r has the r-th of n shards."""
        return self.bind(self.call("all_gather", span))

    def poison(self) -> Launchable:
        """Bind the copy of the poison word to the device, behind collectives and before a step."""
        ptr = self.arena.ptr_at(self.plan.scalar("poisoned")[0])

        def run(stream: Any = None) -> None:
            self.communicator.copy_poison(ptr, self.handle(stream))

        return run

    def same_bits(self, span: Any) -> bool:
        """Return whether a range holds the same bytes on all ranks; every rank calls it."""
        content = self.arena.read(self.plan.resolve(span, "same_bits")).tobytes()
        return len(set(self.world.exchange(hashlib.sha256(content).hexdigest()))) == 1

    def close(self) -> None:
        """Destroy the steps' graphs, for which NCCL would wait, then the communicator.

        Every rank calls it.
        """
        for graph in self.graphs:
            graph.close()
        self.graphs.clear()
        self.communicator.close()

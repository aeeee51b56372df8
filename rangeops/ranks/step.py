"""The optimizer step of many ranks: replicated, or sharded by element interval (ZeRO-1).

    ReplicatedStep   all-reduce gradients and metrics; check; agree on the flag; update everywhere
    ShardedStep      reduce-scatter gradients; check; update the own shard; all-gather weights

Every element has one owner (``rangeops.ranks.shard``), so both steps give the same bits (on GPUs as
far as NCCL adds in one order), and norms add up.

Bytes a parameter that a rank sends a step, f = (n-1)/n (Rajbhandari et al. 2020, ZeRO, section 7):
all-reduce FP32 8f;  reduce-scatter FP32 and all-gather of half copies 6f;  both in 16 bits 4f.
Update traffic of Adam 30 and 30/n;  state in use 20 and 8 + 12/n:

    n                            2          8          64         1024
    sent                       4 / 3    7 / 5.25   7.88 / 5.91  7.99 / 5.99
    update traffic            30 / 15   30 / 3.75   30 / 0.47    30 / 0.03
    state in use              20 / 14   20 / 9.5    20 / 8.19    20 / 8.01

``Arena(plan, unmapped=shard.unmapped(masters=True))`` takes memory for the state in use only.

Past two hosts the network is the limit: by the table, GPT-2 124M on 64 ranks sends 0.98 GB a rank
and step, 20 ms at 50 GB/s.  So send less (16 bits, sharded: half), overlap the two buckets with the
backward pass, and use trees within hosts, as NCCL does.  Sums of 16 bits lose digits as the number
of ranks grows.  The connections to rank 0 carry only signs of life then, all in one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from plan import Range, Region
from rangeops import ops
from rangeops.arena.sparse import outside
from rangeops.device.base import Launchable
from rangeops.launch.graph import Graph
from rangeops.optim.step import OptimizerStep
from rangeops.ranks.agreement import Agreement
from rangeops.ranks.checkpoint import save_whole
from rangeops.ranks.communicators import Call
from rangeops.ranks.group import Ranks, same_schedule


class RanksStep:
    """What both have: the optimizer step of one rank, and the collectives around its parts."""

    def __init__(self, ranks: Ranks, step: OptimizerStep) -> None:
        self.ranks, self.arena, self.step = ranks, ranks.arena, step
        self.groups, self.status = step.groups, step.status
        self.agreement = Agreement(ranks)
        self.launches: tuple[Launchable, ...] = ()

    def __repr__(self) -> str:
        """Return the optimizer, the rank, and how much runs a step."""
        kind, world = self.ranks.plan.config.kind.label, self.ranks.world
        return (
            f"<{type(self).__name__} of {kind} on {self.arena.device}: rank {world.rank} of "
            f"{world.size}, {len(self.launches)} launches and collectives a step>"
        )

    def _metrics(self) -> Call:
        """Return the sum of loss, top1 and top5."""
        return self.ranks.call("all_reduce", Region.R_RESULT, "sum")

    def _sums(self, *spans: Range) -> list[Call]:
        """Return the sums of gradients, of what is used of ranges."""
        parts = [part for span in spans for part in outside(self.ranks.plan.idle, span)]
        return [self.ranks.call("all_reduce", part, "sum") for part in parts]

    def _mean_metrics(self) -> Launchable:
        """Divide the sums of loss, top1 and top5 by the number of ranks."""
        return ops.average.bind(self.arena, x=self.ranks.plan.range(Region.R_RESULT))

    def ready(self) -> None:
        """Refuse a step that must not run; a graph asks before every replay.

        Raises:
            RuntimeError: the step is closed, or averaged weights are swapped in.
            RankMismatch: settings that differ between ranks, by name.

        """
        self.step.ready()
        self.agreement.prepare()

    def close(self) -> None:
        """Give the arena free for another driver."""
        self.step.close()

    def save(self, file: str | os.PathLike[str], extra: Any = None) -> None:
        """Write a checkpoint by rank 0; every rank calls it.  See ``rangeops.save``."""
        save_whole(self.ranks.world, self.arena, file, extra)

    def _agreement(self) -> list[Launchable]:
        """Make one flag for all: any rank's non-finite gradient skips the step on all."""
        offset, _ = self.ranks.plan.scalar("found_inf")
        agree = [self.ranks.all_reduce_max(Range(offset, 4))] if self.step.check else []
        return [*agree, self.ranks.poison(), self.agreement.listen]

    def __call__(self, stream: Any = None) -> None:
        """Run one step on ``stream`` (default: the framework's current one); every rank does.

        Raises:
            RankLost: a rank is gone; weights are those of the last finished step.
            RankMismatch: settings that differ between ranks, by name; weights are those of the
                last step with the same ones.

        """
        self.ready()
        for launch in self.launches:
            launch(stream)

    def _quietly(self, stream: Any = None) -> None:
        """Run a step of several in one graph, whose last one alone tells of their settings."""
        for launch in self.launches:
            if launch != self.agreement.listen:
                launch(stream)

    def capture(self, steps: int = 1, before: Iterable[Callable[..., Any]] = ()) -> Graph:
        """Return a graph of ``steps`` steps, the caller's ``before`` ahead of each.

        Every rank captures, after one step outside, and replays as often as the others.  Settings
        are compared once a replay.
        """
        inner = [*before, self._quietly] * (steps - 1)
        graph = Graph(self.arena, [*inner, *before, self])
        self.ranks.graphs.append(graph)
        return graph

    def _bind(self, *launches: Launchable) -> None:
        """Keep what a step runs, which has to be the same on all ranks."""
        self.launches = launches
        same_schedule(self.ranks.world, launches)


class ReplicatedStep(RanksStep):
    """Every rank updates all weights from the sum of all gradients.

    FP32 gradients go in the origin's two buckets, metrics in the first; half gradients as they
    are, with ``accumulate=True`` gathered in FP32 first.

    Args:
        ranks: the collectives of this rank's arena.
        arguments: as of ``OptimizerStep``.

    """

    def __init__(self, ranks: Ranks, **arguments: Any) -> None:
        super().__init__(ranks, OptimizerStep(ranks.arena, **arguments))
        plan = ranks.plan
        if self.step.half_grad:
            spans = plan.series_range("G", "weight", half=True), plan.series_range("G", "bias")
            calls = [*self._sums(*spans), self._metrics()]
        else:
            calls = self._sums(plan.bucket1, plan.bucket2)
        self._bind(
            ranks.bind(*calls, self.agreement.call),
            self._mean_metrics(),
            *self.step.check,
            *self._agreement(),
            *self.step.begin,
            *self.step.update,
        )

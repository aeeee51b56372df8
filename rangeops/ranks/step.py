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

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from plan import OptimizerKind, PlanError, Range, Region
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.device.base import Launchable
from rangeops.launch.graph import Graph
from rangeops.launch.launch import BoundLaunch
from rangeops.launch.op import REGISTRY
from rangeops.optim.step import OptimizerStep
from rangeops.ranks.communicators import Call
from rangeops.ranks.group import Ranks, same_schedule
from rangeops.ranks.shard import Shard


class _RanksStep:
    """What both have: the optimizer step of one rank, and the collectives around its parts."""

    def __init__(self, ranks: Ranks, step: OptimizerStep) -> None:
        self.ranks, self.arena, self.step = ranks, ranks.arena, step
        self.groups, self.status = step.groups, step.status
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

    def _mean_metrics(self) -> Launchable:
        """Divide the sums of loss, top1 and top5 by the number of ranks."""
        return ops.average.bind(self.arena, x=self.ranks.plan.range(Region.R_RESULT))

    def _agreement(self) -> list[Launchable]:
        """Make one flag for all: any rank's non-finite gradient skips the step on all."""
        offset, _ = self.ranks.plan.scalar("found_inf")
        agree = [self.ranks.all_reduce_max(Range(offset, 4))] if self.step.check else []
        return [*agree, self.ranks.poison()]

    def __call__(self, stream: Any = None) -> None:
        """Run one step on ``stream`` (default: the framework's current one); every rank does.

        Raises:
            RankLost: a rank is gone; weights are those of the last finished step.

        """
        for launch in self.launches:
            launch(stream)

    def capture(self, steps: int = 1, before: Iterable[Callable[..., Any]] = ()) -> Graph:
        """Return a graph of ``steps`` steps, the caller's ``before`` ahead of each.

        Every rank captures, after one step outside, and replays as often as the others.
        """
        graph = Graph(self.arena, [*before, self] * steps)
        self.ranks.graphs.append(graph)
        return graph

    def _bind(self, *launches: Launchable) -> None:
        """Keep what a step runs, which has to be the same on all ranks."""
        self.launches = launches
        same_schedule(self.ranks.world, launches)


class ReplicatedStep(_RanksStep):
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
            calls = [*(ranks.call("all_reduce", s, "sum") for s in spans), self._metrics()]
        else:
            calls = [ranks.call("all_reduce", s, "sum") for s in (plan.bucket1, plan.bucket2)]
        self._bind(
            ranks.bind(*calls),
            self._mean_metrics(),
            *self.step.check,
            *self._agreement(),
            *self.step.begin,
            *self.step.update,
        )


def _shard_update(
    arena: Arena, shard: Shard, half_grad: bool, clear_grad: bool
) -> Iterator[BoundLaunch]:
    """Bind the update of the own shard, and at rank 0 that of biases and norms."""
    config = arena.planned("ShardedStep").config
    op, half = REGISTRY[config.kind.label], config.half is not None
    spans = {"p": shard.mine("W"), "g": shard.mine("G")}
    spans |= {name.lower(): shard.mine(name) for name in config.kind.series}
    if config.ema:
        spans["e"] = shard.mine("E")
    if half:
        spans["a"] = shard.mine("A")
    if half_grad:
        spans["h"] = shard.mine("G", half=True)
    if spans["p"].size:
        yield op.bind(arena, **spans, clear_grad=clear_grad)
    if half and shard.rank == 0:
        yield op.bind(arena, part="bias", ema=config.ema, clear_grad=clear_grad)


class ShardedStep(_RanksStep):
    """Every rank updates its own shard from the sum of gradients, and all get the weights (ZeRO-1).

    Bit-identical to ``ReplicatedStep`` on the CPU; the global norm adds in another order, in
    float64, so a clip may differ by a rounding of its float32 coefficient.  A tensor's moments,
    average, and with halves its FP32 master, are up to date at its owner only: ``collect()`` before
    a checkpoint, an evaluation with averaged weights, or a change of the number of ranks.

    What others own needs no memory: see ``Shard.unmapped``; then save each rank's own intervals
    (``shard.mine("M")``) instead of collecting, and ``gather_weights()`` once they are loaded.

    Args:
        ranks: the collectives of this rank's arena.
        arguments: as of ``OptimizerStep``.

    Attributes:
        shard: the own interval.

    Raises:
        PlanError: LARS or LAMB, whose ratios need whole tensors.

    """

    def __init__(self, ranks: Ranks, **arguments: Any) -> None:
        kind = ranks.plan.config.kind
        if kind in (OptimizerKind.LARS, OptimizerKind.LAMB):
            raise PlanError(
                f"ShardedStep: got {kind.label}, expected an optimizer without norms by tensor; "
                "use ReplicatedStep"
            )
        self.shard = Shard(ranks.plan, ranks.world.rank, ranks.world.size)
        update = partial(_shard_update, ranks.arena, self.shard)
        super().__init__(ranks, OptimizerStep(ranks.arena, update=update, **arguments))
        self._bind(
            self._reduce(),
            self._mean_metrics(),
            *self._forget(),
            *self.step.check,
            *self._norms(),
            *self._agreement(),
            *self.step.begin,
            *self.step.update,
            self._weights(),
        )

    def _reduce(self) -> Launchable:
        """Bring every shard of the sum of gradients to its owner, the rest and metrics to all."""
        ranks, shard, half = self.ranks, self.shard, self.step.half_grad
        rest = shard.span("G", shard.shared, shard.numel, half)
        calls = [
            ranks.call("reduce_scatter", shard.span("G", 0, shard.shared, half), "sum"),
            ranks.call("all_reduce", rest, "sum"),
            self._metrics(),
        ]
        if shard.half:
            calls.append(ranks.call("all_reduce", ranks.plan.series_range("G", "bias"), "sum"))
        return ranks.bind(*calls)

    def _forget(self) -> list[Launchable]:
        """Clear the gradients of others' shards: checks and norms see the own ones alone."""
        spans = self.shard.others("G", self.step.half_grad)
        return [ops.clear.bind(self.arena, span) for span in spans]

    def _norms(self) -> list[Launchable]:
        """Add the norms' sums over ranks, so that tensors across a border are whole."""
        if not self.step.norms:
            return []
        sums = self.ranks.plan.tensors["norm.sums"]
        folds = self.ranks.plan.tensors["norm.folds"].numel - 1
        add = self.ranks.call("all_reduce", Range(sums.offset, 8 * folds), "sum", dtype="fp64")
        return [self.ranks.bind(add), ops.total_norm.bind(self.arena)]

    def _gather(self, *series: str) -> Launchable:
        """Return the exchange of shards of series, the rest from the last rank, biases from 0."""
        ranks, shard = self.ranks, self.shard
        calls = []
        for name in series:
            calls.append(ranks.call("all_gather", shard.span(name, 0, shard.shared)))
            rest = shard.span(name, shard.shared, shard.numel)
            calls.append(ranks.call("broadcast", rest, root=shard.size - 1))
            if shard.half:
                bias = ranks.plan.series_range("W" if name == "A" else name, "bias")
                calls.append(ranks.call("broadcast", bias, root=0))
        return ranks.bind(*calls)

    def _weights(self) -> Launchable:
        """Return the exchange of the weights that the forward pass reads."""
        return self._gather("A" if self.shard.half else "W")

    def gather_weights(self) -> None:
        """Bring all weights from their owners, as the forward pass reads them.

        With halves the own masters are rounded first.  Every rank calls it once its own intervals
        are written: at the start if masters are unmapped, or after loading a checkpoint by rank.
        """
        shard = self.shard
        if shard.half and shard.mine("W").size:
            ops.cast_fp32_to_fp16(self.arena, src=shard.mine("W"), dst=shard.mine("A"))
        self._weights()()

    def collect(self) -> None:
        """Bring every rank's masters, moments and averages up to date; every rank calls it.

        Raises:
            PlanError: the arena has no memory where they would go, see ``Shard.unmapped``.

        """
        config = self.ranks.plan.config
        state = [*config.kind.series, *("E" * config.ema), *("W" * self.shard.half)]
        self._gather(*state)()

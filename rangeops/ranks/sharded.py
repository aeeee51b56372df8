"""The sharded step: every rank updates its own interval of the weights (ZeRO-1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from plan import OptimizerKind, PlanError, Range, Region
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.arena.sparse import outside
from rangeops.device.base import Launchable
from rangeops.launch.launch import BoundLaunch
from rangeops.launch.op import REGISTRY
from rangeops.optim.step import OptimizerStep
from rangeops.ranks.checkpoint import save_parts
from rangeops.ranks.group import Collective, Ranks
from rangeops.ranks.shard import Shard
from rangeops.ranks.step import RanksStep
from rangeops.ranks.world import BETWEEN, WHOLE


def _shard_update(
    arena: Arena, shard: Shard, half_grad: bool, clear_grad: bool
) -> Iterator[BoundLaunch]:
    """Bind the update of the own shard, and at rank 0 that of biases and norms."""
    config = arena.planned("ShardedStep").config
    op, half = REGISTRY[config.kind.label], config.half is not None
    spans = {"p": shard.mine("W")}
    spans |= {name.lower(): shard.mine(name) for name in config.kind.series}
    if config.ema:
        spans["e"] = shard.mine("E")
    if half:
        spans["a"] = shard.mine("A")
    spans |= {"h": shard.mine("G", half=True)} if half_grad else {"g": shard.mine("G")}
    if spans["p"].size:
        yield op.bind(arena, **spans, clear_grad=clear_grad)
    if half and shard.rank == 0:
        yield op.bind(arena, part="bias", ema=config.ema, clear_grad=clear_grad)


class _Weights:
    """The exchange of updated weights; who loses a rank in it has some of two steps."""

    def __init__(self, ranks: Ranks, exchange: Collective) -> None:
        self._ranks, self._exchange, self.calls = ranks, exchange, exchange.calls

    def __call__(self, stream: Any = None) -> None:
        """Run on ``stream``; on a GPU nobody knows when it is done, so the word stays."""
        world = self._ranks.world
        world.weights = BETWEEN
        self._exchange(stream)
        if not self._ranks.arena.on_gpu:
            world.weights = WHOLE


class ShardedStep(RanksStep):
    """Every rank updates its own shard from the sum of gradients, and all get the weights (ZeRO-1).

    Bit-identical to ``ReplicatedStep`` on the CPU; the global norm adds in another order, in
    float64, so a clip may differ by a rounding of its float32 coefficient.  A tensor's moments,
    average, and with halves its FP32 master, are up to date at its owner only: ``collect()`` before
    a checkpoint, an evaluation with averaged weights, or a change of the number of ranks.

    What others own needs no memory: see ``Shard.unmapped``; then save with ``sharded=True``,
    each rank its own intervals, instead of collecting, and ``gather_weights()`` once they are
    loaded.

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
            _Weights(ranks, self._weights()),
        )

    def _reduce(self) -> Launchable:
        """Bring every shard of the sum of gradients to its owner, the rest and metrics to all."""
        ranks, shard, half = self.ranks, self.shard, self.step.half_grad
        rest = shard.span("G", shard.shared, shard.numel, half)
        calls = [
            ranks.call("reduce_scatter", shard.span("G", 0, shard.shared, half), "sum"),
            ranks.call("all_reduce", rest, "sum"),
            self._metrics(),
            self.agreement.call,
        ]
        if shard.half:
            calls += self._sums(ranks.plan.series_range("G", "bias"))
        return ranks.bind(*calls)

    def _forget(self) -> list[Launchable]:
        """Clear the gradients of others' shards: checks and norms see the own ones alone."""
        idle, others = self.ranks.plan.idle, self.shard.others("G", self.step.half_grad)
        spans = [part for span in others for part in outside(idle, span)]
        return [ops.clear.bind(self.arena, span) for span in spans]

    def _norms(self) -> list[Launchable]:
        """Add the norms' sums over ranks, so that tensors across a border are whole."""
        if not self.step.norms:
            return []
        sums = self.ranks.plan.tensors["norm.sums"]
        folds = self.ranks.plan.tensors["norm.folds"].numel - 1
        add = self.ranks.call("all_reduce", Range(sums.offset, 8 * folds), "sum", dtype="fp64")
        return [self.ranks.bind(add), ops.total_norm.bind(self.arena)]

    def _gather(self, *series: str) -> Collective:
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

    def _weights(self) -> Collective:
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

    def save(self, file: str | os.PathLike[str], extra: Any = None, sharded: bool = False) -> None:
        """Write a checkpoint; every rank calls it.

        Args:
            file: a file that rank 0 writes after ``collect``, or with ``sharded`` an index
                (".json") beside which every rank writes what it owns.
            extra: as of ``rangeops.save``.
            sharded: needs no memory for what others own.

        """
        if not sharded:
            self.collect()
            super().save(file, extra)
            return
        config = self.ranks.plan.config
        owned = [self.shard.mine(name) for name in ("W", *config.kind.series, *("E" * config.ema))]
        if self.ranks.world.rank == 0:
            owned += [self.ranks.plan.range(Region.B_PREV_MEAN, Region.B_NEXT_VAR)]
            owned += self.shard.flat() if self.shard.half else []
        save_parts(self.ranks.world, self.arena, file, owned, extra)

    def collect(self) -> None:
        """Bring every rank's masters, moments and averages up to date; every rank calls it.

        Raises:
            PlanError: the arena has no memory where they would go, see ``Shard.unmapped``.

        """
        config = self.ranks.plan.config
        state = [*config.kind.series, *("E" * config.ema), *("W" * self.shard.half)]
        self._gather(*state)()

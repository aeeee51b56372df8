"""The optimizer step of many ranks: replicated, or sharded by element interval (ZeRO-1).

    ReplicatedStep   all-reduce gradients and metrics; check; agree on the flag; update everywhere
    ShardedStep      reduce-scatter gradients; check; update the own shard; all-gather weights

Element e of the span is the same weight in W, G, M, V, E and A, so a shard is one interval of all
of them: rank r of n has [r*K, (r+1)*K) with K = numel // (128*n) * 128, and the last rank the rest
as well.  With halves the FP32 biases and norms are rank 0's.  Every element has one owner, so
both steps give the same bits (on GPUs as far as NCCL adds in one order), and norms add up.

Bytes a parameter that a rank sends a step, f = (n-1)/n (Rajbhandari et al. 2020, ZeRO, section 7):
all-reduce FP32 8f;  reduce-scatter FP32 and all-gather of half copies 6f;  both in 16 bits 4f.
Update traffic of Adam 30 and 30/n;  state in use 20 and 8 + 12/n:

    n                            2          8          64         1024
    wire                       4 / 3    7 / 5.25   7.88 / 5.91  7.99 / 5.99
    update traffic            30 / 15   30 / 3.75   30 / 0.47    30 / 0.03
    state in use              20 / 14   20 / 9.5    20 / 8.19    20 / 8.01

Past two hosts the wire is the limit: at 64 ranks and 50 GB/s a rank, GPT-2 124M exchanges 0.98 GB,
20 ms, beside an update of 1.2 ms; so reduce what goes over it (16 bits, sharded: half), overlap the
two buckets with the backward pass, and use trees within hosts, as NCCL does.  Sums of 16 bits
lose digits with n (mean off by 2e-4 at 2 ranks, 4e-3 at 1,024).  Rank 0's star of sockets carries
only signs of life then: 1,023 connections, one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from plan import GRANULE, OptimizerKind, PlanError, Range, Region
from rangeops import ops
from rangeops.graph import Graph
from rangeops.op import REGISTRY
from rangeops.ranks.collectives import Ranks
from rangeops.ranks.communicator import Call
from rangeops.step import OptimizerStep


class _RanksStep:
    """What both have: a step of one rank, and the collectives around it.

    ``OptimizerStep`` is told by its own arguments what the step does; its launches up to
    ``begin_step`` look at gradients, those behind it move weights.
    """

    def __init__(self, ranks: Ranks, **arguments: Any) -> None:
        self.ranks, self.arena = ranks, ranks.arena
        self.step = OptimizerStep(ranks.arena, **arguments)
        self.groups, self.status = self.step.groups, self.step.status
        names = [launch.binding.op.name for launch in self.step.launches]
        self._begin = names.index("begin_step")
        self._checks = any(name in ("check_nan", "grad_norm") for name in names)
        self._half_grad = bool(self.step.launches[-1].binding.flags.get("half_grad"))
        self._half = ranks.plan.config.half is not None
        self.launches: tuple[Callable[..., Any], ...] = ()
        self._graphs: list[Graph] = []

    def _metrics(self) -> list[Call]:
        """Loss, top1, top5: rank 0 adds them up with the FP32 gradients, all get the sums."""
        return [self.ranks.call("all_reduce", Region.R_RESULT, "sum")]

    def _mean_metrics(self) -> Callable[..., Any]:
        return ops.average.bind(self.arena, x=self.ranks.plan.range(Region.R_RESULT))

    def _agreement(self) -> list[Callable[..., Any]]:
        """One flag for all: any rank's non-finite gradient skips the step on all."""
        offset, _ = self.ranks.plan.scalar("found_inf")
        agree = self.ranks.all_reduce_max(Range(offset, 4))
        return [*([agree] if self._checks else []), self.ranks.poison()]

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
        graph = Graph(self.arena, [*before, *self.launches] * steps)
        self._graphs.append(graph)
        return graph

    def close(self) -> None:
        """Drop the graphs, which a communicator waits for when it ends; they replay no more."""
        for graph in self._graphs:
            graph.close()
        self._graphs.clear()


class ReplicatedStep(_RanksStep):
    """Every rank updates all weights from the sum of all gradients.

    FP32 gradients go in the origin's two buckets, metrics in the first; half gradients as they
    are, with ``accumulate=True`` gathered in FP32 first.

    Args:
        ranks: the collectives of this rank's arena.
        arguments: as of ``OptimizerStep``.

    """

    def __init__(self, ranks: Ranks, **arguments: Any) -> None:
        super().__init__(ranks, **arguments)
        plan = ranks.plan
        if self._half_grad:
            spans = plan.series_range("G", "weight", half=True), plan.series_range("G", "bias")
            calls = [*(ranks.call("all_reduce", s, "sum") for s in spans), *self._metrics()]
        else:
            buckets = plan.bucket1, plan.bucket2
            calls = [ranks.call("all_reduce", s, "sum") for s in buckets]
        look, move = self.step.launches[: self._begin], self.step.launches[self._begin :]
        reduce = ranks.bind(*calls)
        self.launches = (reduce, self._mean_metrics(), *look, *self._agreement(), *move)


class ShardedStep(_RanksStep):
    """Every rank updates its own shard from the sum of gradients, and all get the weights (ZeRO-1).

    Bit-identical to ``ReplicatedStep`` on the CPU; the global norm adds in another order, in
    float64, so a clip may differ by a rounding of its float32 coefficient.  A tensor's moments,
    average, and with halves its FP32 master, are up to date at its owner only: ``collect()`` before
    a checkpoint, an evaluation with averaged weights, or a change of the number of ranks.

    Raises:
        PlanError: LARS or LAMB, whose ratios need whole tensors; clip_value together with them.

    """

    def __init__(self, ranks: Ranks, **arguments: Any) -> None:
        kind = ranks.plan.config.kind
        if kind in (OptimizerKind.LARS, OptimizerKind.LAMB):
            raise PlanError(
                f"ShardedStep: got {kind.label}, expected an optimizer without norms by tensor; "
                "use ReplicatedStep"
            )
        super().__init__(ranks, **arguments)
        plan = ranks.plan
        self._part = "weight" if self._half else "all"
        numel = plan.series_range("W", self._part).size // 4
        size, rank = ranks.world.size, ranks.world.rank
        self.shard = numel // (GRANULE * size) * GRANULE
        self._shared = self.shard * size
        self._rest = numel - self._shared
        last = rank == size - 1
        self.own = (rank * self.shard, (rank + 1) * self.shard + (self._rest if last else 0))
        self._numel = numel
        look, move = self.step.launches[: self._begin], self.step.launches[self._begin :]
        self.launches = (
            self._reduce(),
            self._mean_metrics(),
            *self._forget(),
            *look,
            *self._norms(),
            *self._agreement(),
            move[0],
            *self._updates(move[-1]),
            self._gather("A" if self._half else "W"),
        )

    def _span(self, series: str, first: int, last: int, half: bool = False) -> Range:
        """Return elements first .. last of the sharded part of a series in bytes."""
        whole = self.ranks.plan.series_range(series, self._part, half)
        item = 2 if half or series == "A" else 4
        return Range(whole.base_offset + item * first, item * (last - first))

    def _reduce(self) -> Callable[..., Any]:
        ranks, half = self.ranks, self._half_grad
        calls = [
            ranks.call("reduce_scatter", self._span("G", 0, self._shared, half), "sum"),
            ranks.call("all_reduce", self._span("G", self._shared, self._numel, half), "sum"),
            *self._metrics(),
        ]
        if self._half:
            calls.append(ranks.call("all_reduce", ranks.plan.series_range("G", "bias"), "sum"))
        return ranks.bind(*calls)

    def _forget(self) -> list[Callable[..., Any]]:
        """Clear the gradients that are others': nobody reads them, and checks and norms add up."""
        half = self._half_grad
        spans = [
            self._span("G", 0, self.own[0], half),
            self._span("G", self.own[1], self._numel, half),
        ]
        if self._half and self.ranks.world.rank:
            spans.append(self.ranks.plan.series_range("G", "bias"))
        return [ops.clear.bind(self.arena, span) for span in spans if span.size]

    def _norms(self) -> list[Callable[..., Any]]:
        """Add the norms' sums over ranks, so that tensors across a border are whole."""
        names = [launch.binding.op.name for launch in self.step.launches]
        if "fold_norms" not in names:
            return []
        sums = self.ranks.plan.tensors["norm.sums"]
        folds = self.ranks.plan.tensors["norm.folds"].numel - 1
        add = self.ranks.call("all_reduce", Range(sums.offset, 8 * folds), "sum", dtype="fp64")
        return [self.ranks.bind(add), ops.total_norm.bind(self.arena)]

    def _updates(self, whole: Any) -> list[Callable[..., Any]]:
        """Return the update of the own shard, and at rank 0 that of biases and norms."""
        op, flags = REGISTRY[self.ranks.plan.config.kind.label], dict(whole.binding.flags)
        flags.pop("half", None)
        first, last = self.own
        spans = {"p": self._span("W", first, last), "g": self._span("G", first, last)}
        for name, series in (("m", "M"), ("v", "V")):
            if name in whole.binding.bound:
                spans[name] = self._span(series, first, last)
        if flags["ema"]:
            spans["e"] = self._span("E", first, last)
        if flags["half_copy"]:
            spans["a"] = self._span("A", first, last)
        if flags["half_grad"]:
            spans["h"] = self._span("G", first, last, half=True)
        out: list[Callable[..., Any]] = []
        if last > first:
            out.append(op.bind(self.arena, **spans, **flags))
        if self._half and self.ranks.world.rank == 0:
            plain = flags | {"half_grad": False, "half_copy": False}
            out.append(op.bind(self.arena, part="bias", **plain))
        return out

    def _gather(self, *series: str) -> Callable[..., Any]:
        """Return the exchange of shards of series, the rest from the last rank, biases from 0."""
        ranks, last = self.ranks, self.ranks.world.size - 1
        calls = []
        for name in series:
            calls.append(ranks.call("all_gather", self._span(name, 0, self._shared)))
            rest = self._span(name, self._shared, self._numel)
            calls.append(ranks.call("broadcast", rest, root=last))
            if self._half:
                bias = ranks.plan.series_range("W" if name == "A" else name, "bias")
                calls.append(ranks.call("broadcast", bias, root=0))
        return ranks.bind(*calls)

    def collect(self) -> None:
        """Bring every rank's masters, moments and averages up to date; every rank calls it."""
        config = self.ranks.plan.config
        state = [
            *config.kind.series,
            *(["E"] if config.ema else []),
            *(["W"] if self._half else []),
        ]
        self._gather(*state)()

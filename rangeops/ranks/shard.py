"""Shard: which elements of every series a rank owns (ZeRO-1, by element interval).

Element e of the span is the same weight in W, G, M, V, E and A, so a shard is one interval of all
of them: rank r of n has [r*K, (r+1)*K) with K = numel // (128*n) * 128, and the last rank the rest
as well.  With halves the FP32 biases and norms are rank 0's.
"""

from __future__ import annotations

from plan import GRANULE, MemoryPlan, Range


class Shard:
    """One rank's interval of every series: of all weights, or with halves of those that have them.

    >>> from plan import MemoryPlan, PlanConfig
    >>> plan = MemoryPlan(PlanConfig("momentum"))
    >>> w = plan.parameter("w", "fc_weight", (600,))
    >>> _ = plan.finalize()
    >>> [Shard(plan, rank, size=2).own for rank in (0, 1)]
    [(0, 256), (256, 640)]

    Args:
        plan: a finalized plan.
        rank, size: this rank and the number of all.

    Attributes:
        own: first and last element of the interval.
        shared: elements that divide among the ranks; the last rank has the rest too.
        numel: all elements.

    """

    def __init__(self, plan: MemoryPlan, rank: int, size: int) -> None:
        self._plan, self.rank, self.size = plan, rank, size
        self.half = plan.config.half is not None
        self._part = "weight" if self.half else "all"
        self.numel = plan.series_range("W", self._part).size // 4
        each = self.numel // (GRANULE * size) * GRANULE
        self.shared = each * size
        self.own = (rank * each, (rank + 1) * each if rank < size - 1 else self.numel)

    def __repr__(self) -> str:
        """Return the own interval and of how many elements it is."""
        first, last = self.own
        return f"<Shard {self.rank} of {self.size}: elements {first} .. {last} of {self.numel}>"

    def span(self, series: str, first: int, last: int, half: bool = False) -> Range:
        """Return elements first .. last of a series in bytes."""
        whole = self._plan.series_range(series, self._part, half)
        item = 2 if half or series == "A" else 4
        return Range(whole.base_offset + item * first, item * (last - first))

    def mine(self, series: str, half: bool = False) -> Range:
        """Return the own interval of a series in bytes."""
        return self.span(series, *self.own, half)

    def flat(self) -> list[Range]:
        """Return the FP32 biases and norms of the state, which with halves are rank 0's."""
        config = self._plan.config
        names = ("W", *config.kind.series.replace("N", ""), *("E" * config.ema))
        return [self._plan.series_range(name, "bias") for name in names]

    def others(self, series: str, half: bool = False, bias: bool = True) -> list[Range]:
        """Return what of a series other ranks own, with ``bias`` biases and norms too."""
        first, last = self.own
        spans = [self.span(series, 0, first, half), self.span(series, last, self.numel, half)]
        if bias and self.half and self.rank:
            spans.append(self._plan.series_range(series, "bias"))
        return [span for span in spans if span.size]

    def unmapped(self, masters: bool = False) -> list[Range]:
        """Return what this rank never touches, for ``Arena(plan, unmapped=...)``.

        These are the moments of other ranks: 8 - 8/n bytes a parameter with Adam.  With ``masters``
        also their averages and, with halves, their FP32 masters: 12 - 12/n and more.  Write
        weights by ``rangeops.write_kept`` then, and round them by ``ShardedStep.gather_weights``.
        """
        unmapped = [span for name in self._plan.config.kind.series for span in self.others(name)]
        if masters and self._plan.config.ema:
            unmapped += self.others("E")
        if masters and self.half:  # the forward pass reads biases and norms in FP32
            unmapped += self.others("W", bias=False)
        return unmapped

"""Binding: what a launch is made of, and where each of its kernel's arguments lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plan import GRANULE, PlanError, Range, Region
from rangeops.arena.arena import Arena
from rangeops.launch.operands import Bound

if TYPE_CHECKING:
    from typing import Any

    from rangeops.kernels.spec import OpSpec


@dataclass(frozen=True)
class Binding:
    """What a launch is made of, all checked.

    ``raw`` launches read scalars and coefficients from a small arena of their own (``state``)
    instead of the plan's; ``values`` are the hyper-parameters they start with, ``fresh`` says
    that this state was made for this binding.
    """

    op: OpSpec
    arena: Arena
    state: Arena
    flags: dict[str, Any]
    bound: dict[str, Bound]
    options: int
    raw: bool
    fresh: bool
    values: dict[str, float]
    step: int | None

    @property
    def first(self) -> Bound | None:
        """The operand that counts the elements, None for an op on scalars."""
        return next(iter(self.bound.values()), None)

    @property
    def rows(self) -> int:
        """Rows of the coefficient table: tensors of the plan, 1 when raw."""
        return len(self.state.plan.weights()) if self.state.plan is not None else 0

    def place(self, name: str) -> tuple[Arena, Range | None]:
        """Return where a kernel argument lies; None for one that these flags do not use."""
        if name in self.bound:
            return self.arena, self.bound[name].span
        plan = self.state.plan
        assert plan is not None
        if name in _STATE_REGIONS:
            return self.state, plan.range(_STATE_REGIONS[name])
        if name == "norms":
            if "N" not in plan.config.kind.series:
                raise PlanError(
                    f"{self.op.name}: the plan for {plan.config.kind.label} keeps no norms, "
                    "expected one for lars or lamb; change PlanConfig"
                )
            span = plan.series_range("N")
            return self.state, span if span.size else None
        if name not in _STATE_TENSORS:
            return self.arena, None
        tensor = plan.tensors.get(_STATE_TENSORS[name])
        if tensor is None:
            raise PlanError(
                f"{self.op.name}: the plan has no parameters, expected at least one; "
                "announce them with plan.parameter(...)"
            )
        skip = 4 * self.first_granule if name == "segments" else 0
        return self.state, Range(tensor.offset + skip, tensor.nbytes - skip)

    @property
    def biases(self) -> int:
        """Rows of tensors below the weights, which have no halves and no N_ results."""
        plan = self.state.plan
        assert plan is not None
        return len(plan.tensors_in(Region.W_BN_BIAS, Region.W_FC_BIAS))

    def sums(self) -> dict[str, int]:
        """Return the numbers of chunks, folds and totals of the parameters."""
        plan = self.state.plan
        if plan is None or "norm.sums" not in plan.tensors:
            return {"chunks": 0, "folds": 0, "totals": 0}
        return {
            "chunks": plan.tensors["norm.chunks"].numel - 1,
            "folds": plan.tensors["norm.folds"].numel - 1,
            "totals": plan.tensors["norm.totals"].numel // 2,
        }

    @property
    def half_start(self) -> int:
        """The element from which halves are used: the number of elements where there are none."""
        count = self.first.numel if self.first else 0
        halves = [b.numel for b in self.bound.values() if b.operand.element == "half"]
        return count - halves[0] if halves else count

    @property
    def first_granule(self) -> int:
        """The granule of the weights at which the first range starts (0 when raw)."""
        plan, first = self.arena.plan, self.first
        if self.raw or plan is None or first is None or not first.operand.series:
            return 0
        half = first.operand.element == "half"
        whole = plan.series_range(first.operand.series, "all", half)
        inside = (first.span.base_offset - whole.base_offset) // (GRANULE * (2 if half else 4))
        weights_only = half or first.operand.series in "AN"
        before = plan.range(Region.W_BN_BIAS, Region.W_FC_BIAS).size // (4 * GRANULE)
        return inside + (before if weights_only else 0)


_STATE_REGIONS = {
    "s": Region.S_SCALAR_FP32,
    "k": Region.S_SCALAR_INT32,
    "result": Region.R_RESULT,
    "accumulated": Region.R_RESULT_ACCUMULATED,
}
_STATE_TENSORS = {
    "c": "step.coefficients",
    "segments": "step.segments",
    "groups": "step.groups",
    "group_of": "step.group_of_tensor",
    "chunks": "norm.chunks",
    "folds": "norm.folds",
    "fold_of": "norm.fold_of_tensor",
    "partials": "norm.partials",
    "sums": "norm.sums",
    "totals": "norm.totals",
}

"""Binding: what a launch is made of, and where each of its kernel's arguments lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from plan import GRANULE, MemoryPlan, PlanError, Range, Region
from plan.scratch import STATE_OF
from plan.series import SERIES, WEIGHT_KINDS
from rangeops.arena.arena import Arena
from rangeops.kernels.spec import OpSpec
from rangeops.launch import coefficients
from rangeops.launch.operands import Resolved

OWN_SCALAR = "scalar."
"""What the name of a kernel's argument begins with where it is a scalar of the op's own."""


class Located(NamedTuple):
    """A pointer argument of a kernel: whose bytes, which, of what element; None for no bytes."""

    arena: Arena
    span: Range | None
    element: str

    @property
    def ptr(self) -> int:
        """The raw address; of an argument without bytes the arena's, which nobody reads."""
        return self.arena.ptr if self.span is None else self.arena.ptr_at(self.span.base_offset)

    def view(self) -> Any:
        """Return its elements as they lie in the memory."""
        if self.span is None:
            return np.empty(0, self.element)
        return self.arena.view(self.span, self.element)

    def read(self) -> np.ndarray:
        """Return a host copy of its elements, after the current stream's work."""
        if self.span is None:
            return np.empty(0, self.element)
        return self.arena.read(self.span, self.element)


@dataclass(frozen=True)
class Binding:
    """What a launch is made of, all checked.

    Attributes:
        op: the declaration.
        arena: the memory of its ranges.
        state: the arena of its scalars and coefficients: the plan's, or a small one of its own.
        flags: the variant's compile-time choices.
        resolved: its operands in order, by name.
        options: the option word.
        raw: whether ``state`` is not the plan's: coefficients then come from ``set``.
        fresh: whether ``state`` was made for this binding.
        values: the hyper-parameters that a raw launch starts with.
        step: the step that they are for, None for the first.

    """

    op: OpSpec
    arena: Arena
    state: Arena
    flags: Mapping[str, Any]
    resolved: Mapping[str, Resolved]
    options: int
    raw: bool
    fresh: bool
    values: Mapping[str, float]
    step: int | None

    @cached_property
    def arguments(self) -> tuple[Located, ...]:
        """Every pointer argument of the kernel, located once.

        Raises:
            PlanError: the plan keeps no such part of its state.

        """
        pairs = zip(self.op.kernel.arguments, self.op.kernel.pointers, strict=True)
        return tuple(Located(*self.locate(name), element) for (name, _), element in pairs)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """What a kernel's threads may be spread over, by the name of ``Kernel.count``."""
        return {"n": self.elements, "one": 1, "tensors": self.rows, **self.sums}

    @cached_property
    def integers(self) -> list[int]:
        """The kernel's int64 arguments."""
        menu = {
            **self.sizes,
            "half_start": self.half_start,
            "shift": 63 if self.raw else GRANULE.bit_length() - 1,
            "granule0": self.first_granule,
            "biases": self.biases,
            "options": self.options,
            "quads": coefficients.quads_written(self.plan.config.kind.label),
        }
        return [menu[name] for name in self.op.kernel.integers]

    @property
    def first(self) -> Resolved | None:
        """The operand that counts the elements, None for an op on scalars."""
        return next(iter(self.resolved.values()), None)

    @property
    def elements(self) -> int:
        """Elements of the first operand, 0 for an op on scalars."""
        return self.first.numel if self.first else 0

    @property
    def unit(self) -> str:
        """What the kernel's threads are spread over, in words."""
        return {"n": "elements", "one": "launch"}.get(self.op.kernel.count, self.op.kernel.count)

    @property
    def plan(self) -> MemoryPlan:
        """The plan of its state."""
        return self.state.planned(self.op.name)

    @property
    def rows(self) -> int:
        """Rows of the coefficient table: tensors of the plan, 1 when raw."""
        return len(self.plan.weights())

    def locate(self, name: str) -> tuple[Arena, Range | None]:
        """Return where a kernel argument lies; None for one that these flags do not use.

        Raises:
            PlanError: the plan keeps no such part of its state.

        """
        if name in self.resolved:
            return self.arena, self.resolved[name].span
        if name.startswith(OWN_SCALAR):
            return self.state, self._own_scalar(name.removeprefix(OWN_SCALAR))
        if name not in STATE_OF:
            return self.arena, None
        part = STATE_OF[name]
        if part.region.series == "N":
            return self.state, self._norms()
        if not part.tensor:
            return self.state, self.plan.range(part.region)
        tensor = self.plan.tensors.get(part.tensor)
        if tensor is None:
            raise PlanError(
                f"{self.op.name}: the plan has no parameters, expected at least one; "
                "announce them with plan.parameter(...)"
            )
        skip = 4 * self.first_granule if name == "segments" else 0
        return self.state, Range(tensor.offset + skip, tensor.nbytes - skip)

    def _own_scalar(self, name: str) -> Range:
        """Return the place of a scalar that the op has declared for itself."""
        try:
            offset, _ = self.plan.scalar(name)
        except KeyError:
            raise PlanError(
                f"{self.op.name}: the plan has no scalar {name}, expected the op's own; plan with "
                f"PlanConfig(..., scalars={dict(self.op.scalars)})"
            ) from None
        return Range(offset, 4)

    def _norms(self) -> Range | None:
        """Return the norms of all weights, None where no weight is of a kind that has them."""
        kind = self.plan.config.kind
        if "N" not in kind.series:
            raise PlanError(
                f"{self.op.name}: the plan for {kind.label} keeps no norms, "
                "expected one for lars or lamb; change PlanConfig"
            )
        span = self.plan.series_range("N")
        return span if span.size else None

    @property
    def biases(self) -> int:
        """Rows of tensors below the weights, which have no halves and no N_ results."""
        return len(self.plan.tensors_in(Region.W_BN_BIAS, Region.W_FC_BIAS))

    @property
    def sums(self) -> dict[str, int]:
        """The numbers of chunks, folds and totals of the parameters."""
        tensors = self.plan.tensors
        if "norm.sums" not in tensors:
            return {"chunks": 0, "folds": 0, "totals": 0}
        return {
            "chunks": tensors["norm.chunks"].numel - 1,
            "folds": tensors["norm.folds"].numel - 1,
            "totals": tensors["norm.totals"].numel // 2,
        }

    @property
    def half_start(self) -> int:
        """The element from which halves are used: the number of elements where there are none."""
        halves = [r.numel for r in self.resolved.values() if r.operand.element == "half"]
        return self.elements - halves[0] if halves else self.elements

    @property
    def first_granule(self) -> int:
        """The granule of the weights at which the first range starts (0 when raw)."""
        plan, first = self.arena.plan, self.first
        if self.raw or plan is None or first is None or not first.operand.series:
            return 0
        half = first.operand.element == "half"
        whole = plan.series_range(first.operand.series, "all", half)
        inside = (first.span.base_offset - whole.base_offset) // (GRANULE * (2 if half else 4))
        weights_only = SERIES[first.operand.series].kinds_of(half=half) == WEIGHT_KINDS
        before = plan.range(Region.W_BN_BIAS, Region.W_FC_BIAS).size // (4 * GRANULE)
        return inside + (before if weights_only else 0)

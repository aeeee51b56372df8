"""Equal offsets across variants: one tensor id, one offset, in all plans of one model.

Variants of a model (other batch sizes, other resolutions) announce the same tensors in the same
order with other shapes.  Each slot becomes the largest over the variants, so a graph captured for
one variant names the same bytes in all.
"""

from __future__ import annotations

from collections.abc import Sequence

from plan.errors import PlanError
from plan.memory_plan import MemoryPlan


def finalize_variants(plans: Sequence[MemoryPlan]) -> None:
    """Finalize ``plans`` with equal offsets.

    Raises:
        PlanError: a plan is finalized already, or the plans differ in names, order, regions,
            dtypes, config or what is trained; the message names the first difference.

    >>> small, large = MemoryPlan(), MemoryPlan()
    >>> a, b = small.alloc_feature((1, 8), "x"), large.alloc_feature((64, 8), "x")
    >>> finalize_variants([small, large])
    >>> a.offset == b.offset, a.slot_bytes == b.slot_bytes
    (True, True)

    """
    for plan in plans:
        if plan.finalized:
            raise PlanError("variants: a plan is finalized already, give fresh ones")
        if plan.config != plans[0].config:
            raise PlanError(f"variants: got {plan.config}, expected {plans[0].config} in all")
    names = [list(plan.tensors) for plan in plans]
    for other in names[1:]:
        if len(other) != len(names[0]):
            raise PlanError(
                f"variants: got {len(other)} tensors, expected {len(names[0])} in all plans"
            )
    for same in zip(*(plan.tensors.values() for plan in plans), strict=True):
        first = same[0]
        for tensor in same[1:]:
            if (tensor.name, tensor.region, tensor.dtype) != (
                first.name,
                first.region,
                first.dtype,
            ):
                raise PlanError(
                    f"variants: tensor {tensor.id} is {tensor.name} in {tensor.region.name}, "
                    f"expected {first.name} in {first.region.name}"
                )
        _check_frozen(plans, first.name)
        largest = max(tensor.slot_bytes for tensor in same)
        for tensor in same:
            tensor.settle(largest)
    for plan in plans:
        plan.finalize()


def _check_frozen(plans: Sequence[MemoryPlan], name: str) -> None:
    """Refuse a parameter that some plans train and others do not: those lie behind the trained."""
    trained = [not plan.is_frozen(name) for plan in plans]
    if len(set(trained)) > 1:
        raise PlanError(
            f"variants: parameter {name} is planned with trainable={trained[0]} and with "
            f"trainable={not trained[0]}, expected the same in all; give all one"
        )

"""A layout as JSON, and its digest: two plans with one digest are byte-compatible."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Set
from typing import Any

from plan.config import PlanConfig
from plan.dtype import DType
from plan.errors import PlanError
from plan.memory_plan import MemoryPlan
from plan.region import Region
from plan.scratch import SCRATCH

FORMAT = 1


def _document(plan: MemoryPlan) -> dict[str, Any]:
    options, own = plan.config, plan.config.own_scalars
    config: dict[str, Any] = {
        "optimizer": options.kind.label,
        "half": options.half,
        "ema": options.ema,
        "bn_folded": options.bn_folded,
        **({"accumulate": True} if options.accumulate else {}),
        **({"scalars": own} if own else {}),
    }
    tensors = [
        [t.name, t.region.name, t.dtype.label, list(t.shape), t.slot_bytes, t.offset]
        for t in plan.tensors.values()
    ]
    parameters = [
        [p.name, p.kind, *([False] if plan.is_frozen(p.name) else [])]
        for p in plan.parameters.values()
    ]
    return {"format": FORMAT, "config": config, "tensors": tensors, "parameters": parameters}


def to_json(plan: MemoryPlan) -> str:
    """Return the finalized layout as JSON text.

    Raises:
        PlanError: the plan is not finalized.

    >>> to_json(MemoryPlan(PlanConfig("sgd")).finalize())[:48]
    '{"format":1,"config":{"optimizer":"sgd","half":n'

    """
    if not plan.finalized:
        raise PlanError("to_json: the plan is not finalized, call finalize() first")
    return json.dumps(_document(plan), separators=(",", ":"))


def from_json(text: str) -> MemoryPlan:
    """Return the finalized plan that ``to_json`` wrote, offsets equal.

    Raises:
        PlanError: another format, an optimizer that nobody has registered here, or a layout that
            this version would lay out differently.

    >>> plan = MemoryPlan(PlanConfig("sgd")).finalize()
    >>> digest(from_json(to_json(plan))) == digest(plan)
    True

    """
    document = json.loads(text)
    if document.get("format") != FORMAT:
        raise PlanError(f"from_json: format got {document.get('format')}, expected {FORMAT}")
    plan = MemoryPlan(PlanConfig(**document["config"]))
    kinds = {name: rest for name, *rest in document["parameters"]}
    stored = {row[0]: row for row in document["tensors"]}
    for name, region, dtype, shape, _, _ in document["tensors"]:
        if name in plan.tensors or name in SCRATCH:
            continue
        if name in kinds:
            kind, *trainable = kinds[name]
            plan.parameter(name, kind, tuple(shape), *trainable)
        elif name.partition("#")[0] not in kinds:
            plan.alloc(Region[region], tuple(shape), name, DType.named(dtype))
    _check_names(stored.keys() - SCRATCH, plan.tensors.keys())
    for tensor in plan.tensors.values():
        tensor.settle(stored[tensor.name][4])
    plan.finalize()
    _check_names(stored.keys(), plan.tensors.keys())
    for tensor in plan.tensors.values():
        if tensor.offset != stored[tensor.name][5]:
            raise PlanError(
                f"from_json: {tensor.name} would lie at byte {tensor.offset}, "
                f"expected {stored[tensor.name][5]}; the layout rules have changed"
            )
    return plan


def _check_names(stored: Set[str], planned: Set[str]) -> None:
    """Refuse a plan that has other tensors than its text."""
    for name in sorted(stored ^ planned):
        has, lacks = ("text", "plan") if name in stored else ("plan", "text")
        raise PlanError(
            f"from_json: the {has} has tensor {name}, the {lacks} has none, expected it in both; "
            "the layout rules, or what the optimizer keeps, have changed"
        )


def digest(plan: MemoryPlan) -> str:
    """Return the SHA-256 of the layout: names, shapes, dtypes, slots, offsets and config.

    >>> len(digest(MemoryPlan().finalize()))
    64
    """
    return hashlib.sha256(to_json(plan).encode()).hexdigest()


def first_difference(a: MemoryPlan, b: MemoryPlan) -> str | None:
    """Return one sentence naming the first difference of two layouts, None if there is none.

    >>> one, two = (MemoryPlan(PlanConfig(kind)).finalize() for kind in ("sgd", "lion"))
    >>> first_difference(one, one) is None
    True
    >>> first_difference(one, two)[:28]
    "config {'optimizer': 'sgd', "
    """
    one, two = _document(a), _document(b)
    if one["config"] != two["config"]:
        return f"config {one['config']} against {two['config']}"
    for x, y in zip(one["tensors"], two["tensors"], strict=False):
        if x != y:
            return f"tensor {x[0]} {x[1:]} against {y[0]} {y[1:]}"
    if len(one["tensors"]) != len(two["tensors"]):
        return f"{len(one['tensors'])} tensors against {len(two['tensors'])}"
    for x, y in zip(one["parameters"], two["parameters"], strict=True):
        if x != y:
            return f"parameter {x[0]} {_said(x)} against {y[0]} {_said(y)}"
    return None


def _said(row: list[Any]) -> str:
    """Return kind of a parameter, and whether it is trained, in words."""
    return f"({row[1]}, trainable={len(row) == 2})"

"""A layout as JSON, and its digest: two plans with one digest are byte-compatible."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from plan.config import PlanConfig
from plan.dtensor import DType
from plan.errors import PlanError
from plan.memory_plan import MemoryPlan
from plan.region import Region
from plan.scratch import SCRATCH

FORMAT = 1


def _document(plan: MemoryPlan) -> dict[str, Any]:
    config = asdict(plan.config) | {"optimizer": plan.config.kind.label}
    tensors = [
        [t.name, t.region.name, t.dtype.label, list(t.shape), t.slot_bytes, t.offset]
        for t in plan.tensors.values()
    ]
    parameters = [[p.name, p.kind] for p in plan.parameters.values()]
    return {"format": FORMAT, "config": config, "tensors": tensors, "parameters": parameters}


def to_json(plan: MemoryPlan) -> str:
    """Return the finalized layout as JSON text.

    Raises:
        PlanError: the plan is not finalized.

    """
    if not plan.finalized:
        raise PlanError("to_json: the plan is not finalized, call finalize() first")
    return json.dumps(_document(plan), separators=(",", ":"))


def from_json(text: str) -> MemoryPlan:
    """Return the finalized plan that ``to_json`` wrote, offsets equal.

    Raises:
        PlanError: another format, or a layout that this version would lay out differently.

    """
    document = json.loads(text)
    if document.get("format") != FORMAT:
        raise PlanError(f"from_json: format got {document.get('format')}, expected {FORMAT}")
    plan = MemoryPlan(PlanConfig(**document["config"]))
    kinds = dict(document["parameters"])
    stored = {row[0]: row for row in document["tensors"]}
    for name, region, dtype, shape, _, _ in document["tensors"]:
        if name in plan.tensors or name in SCRATCH:
            continue
        if name in kinds:
            plan.parameter(name, kinds[name], tuple(shape))
        elif name.partition("#")[0] not in kinds:
            plan.alloc(Region[region], tuple(shape), name, DType[dtype.upper()])
    for tensor in plan.tensors.values():
        object.__setattr__(tensor, "slot_bytes", stored[tensor.name][4])
    plan.finalize()
    for tensor in plan.tensors.values():
        if tensor.offset != stored[tensor.name][5]:
            raise PlanError(
                f"from_json: {tensor.name} would lie at byte {tensor.offset}, "
                f"expected {stored[tensor.name][5]}; the layout rules have changed"
            )
    return plan


def digest(plan: MemoryPlan) -> str:
    """Return the SHA-256 of the layout: names, shapes, dtypes, slots, offsets and config."""
    return hashlib.sha256(to_json(plan).encode()).hexdigest()


def first_difference(a: MemoryPlan, b: MemoryPlan) -> str | None:
    """Return one sentence naming the first difference of two layouts, None if there is none."""
    one, two = _document(a), _document(b)
    if one["config"] != two["config"]:
        return f"config {one['config']} against {two['config']}"
    for x, y in zip(one["tensors"], two["tensors"], strict=False):
        if x != y:
            return f"tensor {x[0]} {x[1:]} against {y[0]} {y[1:]}"
    if len(one["tensors"]) != len(two["tensors"]):
        return f"{len(one['tensors'])} tensors against {len(two['tensors'])}"
    return None

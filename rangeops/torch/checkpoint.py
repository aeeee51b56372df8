"""State dicts in torch's format, both ways: logical tensors only, never padding or the arena.

``state`` has exp_avg, exp_avg_sq and step, or momentum_buffer, as torch's AdamW, Adam and SGD have
them, by the order of parameters in ``param_groups``; a further key "rangeops", which torch ignores,
keeps the step count, the loss scale and the averaged weights by name.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rangeops.torch.adopt import Adopted, Slot
    from rangeops.torch.optimizer import RangeOptimizer

OWN = "rangeops"


def views(
    adopted: Adopted, slot: Slot, names: tuple[tuple[str, str], ...]
) -> dict[str, torch.Tensor]:
    """Return the moments of one parameter, by torch's names, as views of the arena."""
    found = {name: adopted.series(slot, series) for name, series in names}
    return {name: view for name, view in found.items() if view is not None}


def save(optimizer: RangeOptimizer) -> dict[str, Any]:
    """Return an optimizer's state dict."""
    adopted, scalars = optimizer._adopted, optimizer._adopted.arena.scalars
    step = int(scalars.step)
    state: dict[int, dict[str, Any]] = {}
    groups, index = [], 0
    for group in optimizer.param_groups:
        indices = list(range(index, index + len(group["params"])))
        index += len(indices)
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": indices})
    for k, slot in enumerate(optimizer._slots):
        found = views(adopted, slot, optimizer.state_names)
        if step and found and slot.param.requires_grad:
            state[k] = {name: view.clone() for name, view in found.items()}
            if "exp_avg_sq" in found:
                state[k]["step"] = torch.tensor(float(step))
    own: dict[str, Any] = {"step": step, "loss_scale": scalars.loss_scale}
    average = {slot.name: adopted.series(slot, "ema") for slot in adopted.slots}
    averaged = {name: view.clone() for name, view in average.items() if view is not None}
    masters = {s.name: s.weight.clone() for s in adopted.slots if s.data is not s.weight}
    own |= {k: v for k, v in (("ema", averaged), ("masters", masters)) if v}
    return {"state": state, "param_groups": copy.deepcopy(groups), OWN: own}


def load(optimizer: RangeOptimizer, found: dict[str, Any]) -> None:
    """Load a state dict into the arena, in place; nothing is written if it does not fit."""
    name = type(optimizer).__name__
    groups, saved = optimizer.param_groups, found["param_groups"]
    sizes = [len(g["params"]) for g in groups], [len(g["params"]) for g in saved]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{name}: load_state_dict got groups of {sizes[1]} parameters, expected {sizes[0]}; "
            "make the same groups"
        )
    ids = [k for group in saved for k in group["params"]]
    own = found.get(OWN, {})
    states = [found["state"].get(k, {}) for k in ids]
    step = own["step"] if "step" in own else _step(name, states)
    writes = []
    for stored, slot in zip(states, optimizer._slots, strict=True):
        for key, view in views(optimizer._adopted, slot, optimizer.state_names).items():
            value = stored.get(key)
            if value is not None and value.shape != view.shape:
                raise ValueError(
                    f"{name}: load_state_dict got {key} of {tuple(value.shape)} for {slot.name}, "
                    f"expected {tuple(view.shape)}; load the same model"
                )
            writes.append((view, value))
    with torch.no_grad():
        for view, value in writes:
            view.zero_() if value is None else view.copy_(value)
        for slot in optimizer._adopted.slots:
            average = optimizer._adopted.series(slot, "ema")
            if slot.name in own.get("ema", {}) and average is not None:
                average.copy_(own["ema"][slot.name])
            if slot.name in own.get("masters", {}):
                slot.weight.copy_(own["masters"][slot.name])
    scalars = optimizer._adopted.arena.scalars
    scalars.set(step=step, found_inf=0, skip_step=0)
    if optimizer._scales and "loss_scale" in own:
        scalars.loss_scale = own["loss_scale"]
    for group, kept in zip(groups, saved, strict=True):
        group.update({k: v for k, v in kept.items() if k != "params"})


def _step(name: str, states: list[dict[str, Any]]) -> int:
    """Return the one step count of torch's state; SGD keeps none, its buffers say "not first"."""
    steps = {int(s["step"]) for s in states if "step" in s}
    if len(steps) > 1:
        raise ValueError(
            f"{name}: load_state_dict got steps {sorted(steps)}, expected one for all parameters; "
            "the arena counts steps once"
        )
    return steps.pop() if steps else int(any(s.get("momentum_buffer") is not None for s in states))

"""State dicts in torch's format, both ways: logical tensors only, never padding or the arena.

``state`` has exp_avg, exp_avg_sq and step, or momentum_buffer, as torch's AdamW, Adam and SGD have
them, by the order of parameters in ``param_groups``; a further key "rangeops", which torch ignores,
keeps the step count, the loss scale and the averaged weights by name.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rangeops.torch.adopt import Adopted, Slot

OWN = "rangeops"


@dataclass(frozen=True)
class Contents:
    """What the state dict of one optimizer is made of.

    Attributes:
        name: the optimizer's name, for messages.
        adopted: the module and its arena.
        slots: the optimizer's parameters in the order of its groups.
        state_names: torch's name of a moment, and the name of the tensor ("m", "v").
        groups: the optimizer's ``param_groups``; loading changes their hyper-parameters.
        scaled: whether the optimizer has its own loss scale, which is loaded then.

    """

    name: str
    adopted: Adopted
    slots: Sequence[Slot]
    state_names: tuple[tuple[str, str], ...]
    groups: list[dict[str, Any]]
    scaled: bool

    def views(self, slot: Slot) -> dict[str, torch.Tensor]:
        """Return the moments of one parameter, by torch's names, as views of the arena."""
        pairs = ((name, self.adopted.series(slot, series)) for name, series in self.state_names)
        return {name: view for name, view in pairs if view is not None}

    def save(self) -> dict[str, Any]:
        """Return the state dict."""
        step = int(self.adopted.arena.scalars.step)
        groups, first = [], 0
        for group in self.groups:
            indices = list(range(first, first + len(group["params"])))
            first += len(indices)
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": indices})
        state = {
            k: self._moments(slot, step)
            for k, slot in enumerate(self.slots)
            if step and self.views(slot) and slot.param.requires_grad
        }
        return {"state": state, "param_groups": copy.deepcopy(groups), OWN: self._own(step)}

    def _moments(self, slot: Slot, step: int) -> dict[str, torch.Tensor]:
        """Return copies of one parameter's moments, with the step where torch keeps it there."""
        moments = {name: view.clone() for name, view in self.views(slot).items()}
        if "exp_avg_sq" in moments:
            moments["step"] = torch.tensor(float(step))
        return moments

    def _own(self, step: int) -> dict[str, Any]:
        """Return what torch's state dict has no place for."""
        slots = self.adopted.slots
        average = {slot.name: self.adopted.series(slot, "ema") for slot in slots}
        averaged = {name: view.clone() for name, view in average.items() if view is not None}
        masters = {s.name: s.weight.clone() for s in slots if s.data is not s.weight}
        own: dict[str, Any] = {"step": step, "loss_scale": self.adopted.arena.scalars.loss_scale}
        return own | {k: v for k, v in (("ema", averaged), ("masters", masters)) if v}

    def load(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict into the arena, in place.

        Raises:
            ValueError: other groups, shapes or steps; nothing is written then.

        """
        saved, own = state_dict["param_groups"], state_dict.get(OWN, {})
        sizes = [len(g["params"]) for g in self.groups], [len(g["params"]) for g in saved]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{self.name}: load_state_dict got groups of {sizes[1]} parameters, expected "
                f"{sizes[0]}; make the same groups"
            )
        ids = [k for group in saved for k in group["params"]]
        states = [state_dict["state"].get(k, {}) for k in ids]
        step = own["step"] if "step" in own else _step(self.name, states)
        writes = self._writes(states)
        with torch.no_grad():
            for view, value in writes:
                view.zero_() if value is None else view.copy_(value)
            self._load_own(own)
        scalars = self.adopted.arena.scalars
        scalars.set(step=step, found_inf=0, skip_step=0)
        if self.scaled and "loss_scale" in own:
            scalars.loss_scale = own["loss_scale"]
        for group, hyper in zip(self.groups, saved, strict=True):
            group.update({k: v for k, v in hyper.items() if k != "params"})

    def _writes(self, states: list[dict[str, Any]]) -> list[tuple[torch.Tensor, Any]]:
        """Return every moment with what is to be written there, None for zeros."""
        writes = []
        for stored, slot in zip(states, self.slots, strict=True):
            for key, view in self.views(slot).items():
                value = stored.get(key)
                if value is not None and value.shape != view.shape:
                    raise ValueError(
                        f"{self.name}: load_state_dict got {key} of {tuple(value.shape)} for "
                        f"{slot.name}, expected {tuple(view.shape)}; load the same model"
                    )
                writes.append((view, value))
        return writes

    def _load_own(self, own: dict[str, Any]) -> None:
        """Write averages and masters where both the checkpoint and the arena have them."""
        for slot in self.adopted.slots:
            average = self.adopted.series(slot, "ema")
            if slot.name in own.get("ema", {}) and average is not None:
                average.copy_(own["ema"][slot.name])
            if slot.name in own.get("masters", {}):
                slot.weight.copy_(own["masters"][slot.name])


def _step(name: str, states: list[dict[str, Any]]) -> int:
    """Return the one step count of torch's state; SGD keeps none, its buffers say "not first"."""
    steps = {int(s["step"]) for s in states if "step" in s}
    if len(steps) > 1:
        raise ValueError(
            f"{name}: load_state_dict got steps {sorted(steps)}, expected one for all parameters; "
            "the arena counts steps once"
        )
    return steps.pop() if steps else int(any(s.get("momentum_buffer") is not None for s in states))

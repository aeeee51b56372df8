"""State dicts in torch's format, both ways: logical tensors only, never padding or the arena.

``state`` has exp_avg, exp_avg_sq and step, or momentum_buffer, as torch's AdamW, Adam and SGD have
them, by the order of parameters in ``param_groups``, for parameters that a step has moved.  A
further key "rangeops", which torch ignores, keeps by parameter name what torch has no place for:

    step, steps      of the arena, and of every parameter
    skipped_steps    and of an optimizer with its own scaler loss_scale, growth_tracker,
                     hysteresis_tracker, floor_hits
    frozen           the names of ``arena.groups.frozen``
    ema              the averaged weights, and in ``weights`` a mark of the weights they belong to
    masters          the live FP32 weights that the module's own state dict does not have: of half
                     weights, and inside ``averaged()`` of all

Names are true inside ``averaged()`` too: ``ema`` are the averages, ``masters`` the live weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rangeops.torch.adopt import Adopted
from rangeops.torch.hooks import mark
from rangeops.torch.slot import Slot

OWN = "rangeops"

SCALER = ("loss_scale", "growth_tracker", "hysteresis_tracker", "floor_hits")
"""What the library's own loss scaler goes on from."""

COUNTED = (*SCALER, "skipped_steps")


@dataclass(frozen=True)
class Contents:
    """What the state dict of one optimizer is made of.

    Attributes:
        name: the optimizer's name, for messages.
        adopted: the module and its arena.
        slots: the optimizer's parameters in the order of its groups.
        state_names: torch's name of a moment, and the name of the tensor ("m", "v").
        groups: the optimizer's ``param_groups``.
        scaled: whether the optimizer has its own loss scale, which is loaded then.

    """

    name: str
    adopted: Adopted
    slots: Sequence[Slot]
    state_names: tuple[tuple[str, str], ...]
    groups: list[dict[str, Any]]
    scaled: bool

    @property
    def counts(self) -> bool:
        """Whether torch keeps a step beside the moments."""
        return "exp_avg_sq" in dict(self.state_names)

    def views(self, slot: Slot) -> dict[str, torch.Tensor]:
        """Return the moments of one parameter, by torch's names, as views of the arena."""
        pairs = ((name, self.adopted.series(slot, series)) for name, series in self.state_names)
        return {name: view for name, view in pairs if view is not None}

    def shown(self, slot: Slot) -> dict[str, torch.Tensor]:
        """Return what ``optimizer.state`` has of one parameter: views that are always true."""
        views = self.views(slot)
        return views | ({"step": self.adopted.step_of(slot)} if self.counts and views else {})

    def save(self) -> dict[str, Any]:
        """Return the state dict."""
        steps = self.adopted.arena.groups.steps()
        groups, first = [], 0
        for group in self.groups:
            indices = list(range(first, first + len(group["params"])))
            first += len(indices)
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": indices})
        state = {
            k: self._state(slot, steps[slot.name])
            for k, slot in enumerate(self.slots)
            if steps[slot.name] and self.views(slot)
        }
        return {"state": state, "param_groups": copy.deepcopy(groups), OWN: self._own(steps)}

    def _state(self, slot: Slot, step: int) -> dict[str, torch.Tensor]:
        """Return copies of one parameter's moments, with the step where torch keeps it there."""
        moments = {name: view.clone() for name, view in self.views(slot).items()}
        return moments | ({"step": torch.tensor(float(step))} if self.counts else {})

    def _own(self, steps: dict[str, int]) -> dict[str, Any]:
        """Return what torch's state dict has no place for."""
        arena, slots = self.adopted.arena, self.adopted.slots
        swapped = arena.owner.swapped
        own: dict[str, Any] = {"step": int(arena.scalars.step), "steps": steps}
        own |= {n: arena.scalars.get(n) for n in COUNTED if self.scaled or n not in SCALER}
        own["frozen"] = list(arena.groups.frozen)
        series = {slot.name: self.adopted.series(slot, "ema") for slot in slots}
        live = {s.name: s.weight for s in slots}
        averages = {name: view for name, view in series.items() if view is not None}
        if swapped:
            live, averages = live | averages, {name: live[name] for name in averages}
        masters = {s.name: live[s.name] for s in slots if swapped or s.data is not s.weight}
        if averages:
            own["ema"] = {name: view.clone() for name, view in averages.items()}
            own["weights"] = {name: mark(live[name]) for name in averages}
        if masters:
            own["masters"] = {name: view.clone() for name, view in masters.items()}
        return own

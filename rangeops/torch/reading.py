"""Reading a state dict: everything is checked before the first byte is written.

A state dict of this optimizer or of torch's is compared with the optimizer; a ValueError names what
does not fit.  Where both are there, a parameter's own ``step`` goes before the steps by name;
without either, a moment counts as one step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from rangeops.torch.checkpoint import COUNTED, OWN, SCALER, Contents
from rangeops.torch.slot import Slot

PLAIN = (torch.Tensor, nn.Parameter)
"""Types of tensors that may be loaded; others are distributed, fake, or no tensors."""

MOST = 3.4028234e38
"""The float32 limit."""


@dataclass
class Reading:
    """A state dict that fits: what is to be written.

    Attributes:
        groups: the settings of every param group, merged into the present ones.
        writes: views of the arena with their new values, None for zeros.
        scalars: of the arena.
        steps: of every parameter, by name.
        averages, masters: by name; averages None if the state dict has none.
        marks: of the weights that the averages belong to.
        frozen: names, None if the state dict does not say.

    """

    groups: list[dict[str, Any]]
    writes: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)
    scalars: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    averages: Mapping[str, torch.Tensor] | None = None
    masters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    marks: Mapping[str, int] = field(default_factory=dict)
    frozen: list[str] | None = None


class Reader:
    """What checks state dicts for one optimizer.

    Args:
        contents: what its own are made of.
        check_groups: refuses param groups whose settings cannot be.

    """

    def __init__(
        self, contents: Contents, check_groups: Callable[[list[dict[str, Any]]], None]
    ) -> None:
        self._contents, self._check_groups = contents, check_groups
        self._subject = f"{contents.name}: load_state_dict"

    def read(self, state_dict: Any) -> Reading:
        """Return what is to be written.

        Raises:
            ValueError: something is missing or does not fit; nothing is written.

        """
        if not isinstance(state_dict, Mapping):
            raise self._error("", state_dict, "a state dict")
        saved, state = (self._part(state_dict, key) for key in ("param_groups", "state"))
        reading = Reading(self._groups(saved))
        own = state_dict.get(OWN, {})
        reading.steps = dict.fromkeys((s.name for s in self._contents.adopted.slots), 0)
        self._read_counts(self._mapping(OWN, own), reading)
        self._read_tensors(own, reading)
        ids = [k for group in saved for k in group["params"]]
        for key, slot in zip(ids, self._contents.slots, strict=True):
            self._read_state(state.get(key), slot, reading)
        reading.scalars.setdefault("step", max(reading.steps.values(), default=0))
        self._contents.adopted.arena.scalars.check(**reading.scalars)
        return reading

    def _error(self, what: str, got: Any, expected: str, remedy: str = "") -> ValueError:
        shown = type(got).__name__ if isinstance(got, Mapping | list | torch.Tensor) else repr(got)
        remedy = remedy or "load what this optimizer or torch's has saved"
        return ValueError(f"{self._subject} got {what} {shown}, expected {expected}; {remedy}")

    def _part(self, state_dict: Mapping[str, Any], key: str) -> Any:
        if key not in state_dict:
            raise ValueError(
                f"{self._subject} got no {key!r}, expected one; load a whole state dict"
            )
        return state_dict[key] if key == "param_groups" else self._mapping(key, state_dict[key])

    def _mapping(self, what: str, value: Any, named: bool = False) -> Mapping[Any, Any]:
        """Refuse what is no dict; with ``named`` one of names that are no adopted parameters'."""
        if not isinstance(value, Mapping):
            raise self._error(what, value, "a dict")
        names = {slot.name for slot in self._contents.adopted.slots}
        for name in value if named else ():
            if name not in names:
                raise self._error(f"{what} of", name, "adopted parameters", "load the same model")
        return value

    def _groups(self, saved: Any) -> list[dict[str, Any]]:
        """Return the present groups with the saved settings, which are checked."""
        own = self._contents.groups
        if not isinstance(saved, list | tuple):
            raise self._error("param_groups", saved, "a list")
        for group in saved:
            if not isinstance(group, Mapping) or not isinstance(group.get("params"), list | tuple):
                raise self._error("a param group", group, 'a dict with a list "params"')
        sizes = [len(g["params"]) for g in own], [len(g["params"]) for g in saved]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{self._subject} got groups of {sizes[1]} parameters, expected {sizes[0]}; make "
                "the same groups"
            )
        hyper = [{k: v for k, v in group.items() if k != "params"} for group in saved]
        merged = [group | new for group, new in zip(own, copy.deepcopy(hyper), strict=True)]
        if self._contents.adopted.arena.planned(self._subject).config.kind.label == "adamw":
            for group in merged:  # as in torch, which lets AdamW go on from Adam's
                group |= {k: True for k in ("decoupled_weight_decay",) if k in group}
        self._check_groups(merged)
        return merged

    def _read_counts(self, own: Mapping[str, Any], reading: Reading) -> None:
        """Take the numbers of the arena, the steps and the frozen names."""
        for name in ("step", *COUNTED):
            if name in own:
                whole = name != "loss_scale"
                value = self._count(name, own[name]) if whole else self._scale(own[name])
                if self._contents.scaled or name not in SCALER:
                    reading.scalars[name] = value
        if "steps" in own:
            steps = self._mapping("steps", own["steps"], named=True)
            self._check_whole("steps", steps, reading.steps)
            reading.steps |= {name: self._count(f"step of {name}", n) for name, n in steps.items()}
        if "frozen" in own:
            if not isinstance(own["frozen"], list | tuple):
                raise self._error("frozen", own["frozen"], "a list of names")
            reading.frozen = list(self._mapping("frozen", dict.fromkeys(own["frozen"]), named=True))

    def _read_tensors(self, own: Mapping[str, Any], reading: Reading) -> None:
        """Take averages and masters."""
        adopted = self._contents.adopted
        views = {slot.name: adopted.series(slot, "ema") for slot in adopted.slots}
        averages = {name: view for name, view in views.items() if view is not None}
        if averages and "ema" in own:
            reading.averages = self._mapping("ema", own["ema"], named=True)
            self._check_whole("ema", reading.averages, averages)
            for name, view in averages.items():
                self._check_tensor("ema", name, reading.averages[name], view)
            marks = self._mapping("weights", own.get("weights", {}), named=True)
            if not all(isinstance(value, int) for value in marks.values()):
                raise self._error("weights", dict(marks), "whole numbers")
            reading.marks = marks
        reading.masters = self._mapping("masters", own.get("masters", {}), named=True)
        for slot in adopted.slots:
            if slot.name in reading.masters:
                value = reading.masters[slot.name]
                self._check_tensor("masters", slot.name, value, slot.weight)

    def _check_whole(self, what: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        missing = next((name for name in wanted if name not in given), None)
        if missing is not None:
            raise ValueError(
                f"{self._subject} got {what} without {missing}, expected every parameter's; load "
                "the same model"
            )

    def _read_state(self, stored: Any, slot: Slot, reading: Reading) -> None:
        """Take the moments and the step of one parameter."""
        views, name = self._contents.views(slot), slot.name
        stored = self._mapping(f"state of {name}", {} if stored is None else stored)
        unknown = [k for k, v in stored.items() if k not in {*views, "step"} and v is not None]
        missing = [k for k in self._needed(views) if k not in stored]
        moved = reading.steps[name]
        if unknown or (missing and (stored or (views and moved))):
            raise ValueError(
                f"{self._subject} got {', '.join(map(str, stored)) or 'no state'} for {name} "
                f"({moved} steps), expected {', '.join(self._needed(views)) or 'none'}; load the "
                "state of the same kind of optimizer"
            )
        begun = False
        for key, view in views.items():
            value = stored.get(key)
            if key in stored and not (value is None and key == "momentum_buffer"):
                self._check_tensor(key, name, value, view)
                self._check_finite(key, name, value)
                begun = True
            reading.writes.append((view, value))
        if "step" in stored:
            reading.steps[name] = self._count(f"step of {name}", stored["step"])
        elif views:
            reading.steps[name] = (moved or int(reading.scalars.get("step", 0)) or 1) * begun

    def _needed(self, views: Mapping[str, Any]) -> list[str]:
        """Return what the state of a parameter has to have."""
        counted = ["step"] if self._contents.counts and views else []
        return [*views, *counted]

    def _check_tensor(self, key: str, name: str, value: Any, view: torch.Tensor) -> None:
        """Refuse what cannot be copied to a view as it is."""
        what, plain = f"{key} of {name}:", type(value) in PLAIN
        if not plain or value.layout != torch.strided or value.is_meta:
            kind = f"a {value.layout} tensor on {value.device}" if plain else type(value).__name__
            raise ValueError(
                f"{self._subject} got {what} {kind}, expected a dense torch tensor; convert it"
            )
        if not value.is_floating_point():
            raise ValueError(
                f"{self._subject} got {what} {value.dtype}, expected floating point; load the same "
                "kind of state"
            )
        if value.shape != view.shape:
            raise ValueError(
                f"{self._subject} got {key} of {tuple(value.shape)} for {name}, expected "
                f"{tuple(view.shape)}; load the same model"
            )

    def _check_finite(self, key: str, name: str, value: torch.Tensor) -> None:
        """Refuse moments that would make the weights non-finite."""
        if not value.numel():
            return
        low, high = (bound.item() for bound in torch.aminmax(value.detach().float()))
        least = 0.0 if dict(self._contents.state_names)[key] == "v" else -MOST
        if not (least <= low and high <= MOST):
            raise ValueError(
                f"{self._subject} got {key} of {name} between {low} and {high}, expected finite "
                f"values{' >= 0' if not least else ''}; load an undamaged one"
            )

    def _number(self, what: str, value: Any) -> float:
        """Return a finite number, or that of a tensor of one element."""
        if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(what, value, "a number")
        return value

    def _count(self, what: str, value: Any) -> int:
        number = self._number(what, value)
        if not 0 <= number < 2**31 or number != int(number):
            raise self._error(what, number, "a whole number from 0 to 2**31 - 1")
        return int(number)

    def _scale(self, value: Any) -> float:
        number = self._number("loss_scale", value)
        if not 0 < number <= MOST:
            raise self._error("loss_scale", number, "a finite number above 0")
        return float(number)

"""The settings of a tensor: those of its group, where that has them, else the arena's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rangeops.arena.settings import READS

DECAYED = ("fc", "conv")
"""The tensors of a trial that the plan's own groups decay and adapt: the weights."""

GROUPS: dict[str, dict[str, Any]] = {
    "scale": {
        "lr": 0.5, "weight_decay": 3.0, "adapt": False, "trust_coefficient": 0.05, "beta1": 0.8,
        "beta2": 0.95, "eps": 1e-5, "momentum": 0.7, "dampening": 0.25, "nesterov": False,
        "maximize": True, "decay": "l2", "bias_correction": False, "grad_averaging": True,
    },
    "conv": {
        "lr": 2.0, "weight_decay": 0.25, "adapt": True, "trust_coefficient": 0.03, "beta1": 0.85,
        "beta2": 0.98, "eps": 1e-4, "momentum": 0.8, "dampening": 0.0, "nesterov": True,
        "maximize": False, "decay": "decoupled", "bias_correction": True, "grad_averaging": False,
    },
}  # fmt: skip
"""What the groups of two tensors set for themselves: everything, and no two alike."""

STEPS = {"bias": 6, "scale": 0, "fc": 5, "conv": 40}
"""Steps that each tensor has made."""

BY_TENSOR = (
    "lr", "weight_decay", "trust_coefficient", "beta1", "beta2", "eps", "momentum", "dampening",
    "t",
)  # fmt: skip
"""The names of a tensor's numbers."""


def allowed(settings: Mapping[str, Any], optimizer: str) -> dict[str, Any]:
    """Return the settings that an optimizer acts by; what else is set is refused."""
    reads = READS[optimizer]
    return {
        name: value
        for name, value in settings.items()
        if name in reads and (not reads[name] or value in reads[name])
    }


class Own:
    """What holds for one tensor, in Python's numbers.

    Attributes:
        adapts: whether LARS and LAMB adapt it.
        t: the step that it makes, from 1.

    """

    def __init__(
        self,
        tensor: str,
        hyper: Mapping[str, float],
        group: Mapping[str, Any] | None,
        chosen: Callable[[str], bool],
    ) -> None:
        plain = tensor in DECAYED
        group = {"weight_decay": float(plain), "adapt": plain} if group is None else group
        self.lr = hyper["lr"] * group.get("lr", 1.0)
        self.weight_decay = hyper["weight_decay"] * group.get("weight_decay", 1.0)
        self.adapts = group.get("adapt", True)
        self.t = STEPS[tensor] + 1
        for name in BY_TENSOR[2:-1]:
            setattr(self, name, group.get(name, hyper[name]))
        self._group, self._chosen = group, chosen

    def __getattr__(self, name: str) -> Any:
        """Numbers are set by name."""
        raise AttributeError(name)

    def on(self, option: str) -> bool:
        """Return whether an option is on: as the group says, else as it is for the whole step."""
        if option == "decoupled" and "decay" in self._group:
            return bool(self._group["decay"] == "decoupled")
        return bool(self._group.get(option, self._chosen(option)))

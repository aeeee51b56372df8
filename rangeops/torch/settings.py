"""What a torch param group sets, as a group of the arena has it.

Names are torch's, but for ``betas`` (beta1 and beta2) and ``decoupled_weight_decay`` (decay).  A
setting that the optimizer would not act by is refused by name, so that no group says one thing and
the step does another; what is no setting of any optimizer ("initial_lr", "name") is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from plan.scalars import DEVICE_OWNED
from rangeops.arena.settings import CHOICES, NAMES, SCALARS, check_read, stored

SPELLED = {"betas": ("beta1", "beta2"), "decoupled_weight_decay": ("decay",)}
"""torch's names that are not the arena's, and what they are there."""

REFUSED = ("amsgrad", "differentiable")
"""Options of torch's groups that no range op has."""

ON = ("adapt", "bias_correction", "grad_averaging")
"""Choices that an optimizer makes where nobody says otherwise."""


def check_options(subject: str, options: Mapping[str, Any]) -> None:
    """Refuse an optimizer's argument that is a setting of its groups or the device's own count.

    Raises:
        TypeError: there is one.

    """
    for name in options:
        if name in SCALARS or name in DEVICE_OWNED:
            raise TypeError(
                f"{subject}: got an unexpected argument {name!r}, expected settings as torch "
                "spells them, and options of OptimizerStep; leave it out"
            )


class Settings:
    """The settings that groups of one optimizer may have.

    Args:
        kind: the optimizer for which the module was adopted.
        subject: opens the messages.
        names: names of a group's settings beside ``lr`` and ``weight_decay``; those that are no
            setting of the arena's groups are scalars with one value for the model.

    Attributes:
        names: the settings, those two first.
        shared: the scalars among them.

    """

    def __init__(self, kind: str, subject: str, names: tuple[str, ...]) -> None:
        self._kind, self._subject = kind, subject
        self._names = [name for name in names if name in NAMES or name in SPELLED]
        self.shared = [name for name in names if name not in self._names]
        self.names = ("lr", "weight_decay", *names)
        self._listed = {"lr", "weight_decay", *self._names}

    def lr(self, index: int, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the learning rate of param group ``index`` alone.

        Raises:
            ValueError: a value that cannot be.

        """
        out = {"lr": _number(f"{self._subject}: param group {index}", "lr", group["lr"])}
        self._check(index, out)
        return out

    def of(self, index: int, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of param group ``index``.

        Raises:
            ValueError: a value that cannot be, or a setting that has no effect.

        """
        where = f"{self._subject}: param group {index}"
        if "lr" not in group:
            raise ValueError(f"{where}: got no lr, expected one; give it")
        out: dict[str, Any] = {"weight_decay": 0.0}
        for name in ("lr", "weight_decay", *self._names):
            if name in group:
                out.update(_spelled(where, name, group[name]))
        self._check_others(where, group)
        momentum = out.get("momentum", 0.0)
        if out.get("nesterov") and "momentum" in out and momentum == 0:
            raise ValueError(
                f"{where}: nesterov got True with momentum 0, expected a momentum; set both"
            )
        if not momentum and self._kind == "sgd":
            out.pop("dampening", None)  # of a momentum that there is not
        self._check(index, out)
        return out

    def shared_by(self, groups: list[dict[str, Any]]) -> dict[str, float]:
        """Return the scalars that have one value for the model.

        Raises:
            ValueError: groups that differ in them.

        """
        rows = [tuple(group[name] for name in self.shared) for group in groups]
        if any(row != rows[0] for row in rows):
            raise ValueError(
                f"{self._subject}: param groups differ in {', '.join(self.shared)}, expected one "
                "value for the model; it is no setting of a group"
            )
        return dict(zip(self.shared, rows[0], strict=True)) if rows else {}

    def _check(self, index: int, settings: Mapping[str, Any]) -> None:
        """Refuse values that the arena's groups cannot have, or have no use for."""
        try:
            stored(settings)
            check_read(self._kind, settings)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self._subject}: param group {index}: {error}") from None

    def _check_others(self, where: str, group: Mapping[str, Any]) -> None:
        """Refuse what the group says and this optimizer does not read."""
        for name, value in group.items():
            if name in REFUSED and value:
                raise ValueError(
                    f"{where}: {name} got {value!r}, expected False; it has no range op"
                )
            known = name in NAMES or name in SPELLED
            if known and name not in self._listed and not _says_nothing(name, value):
                raise ValueError(
                    f"{where}: {name} got {value!r}, which is no setting of this optimizer, "
                    f"expected some of {', '.join(sorted(self._listed))}; leave it out"
                )


def _says_nothing(name: str, value: Any) -> bool:
    return value is None or bool(value) == (name in ON)


def _spelled(where: str, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a torch setting under the arena's names, numbers as floats."""
    if name == "decoupled_weight_decay":
        yield "decay", None if value is None else "decoupled" if value else "l2"
    elif name == "betas":
        try:
            one, two = value
        except (TypeError, ValueError):
            raise ValueError(f"{where}: betas got {value!r}, expected a pair; give two") from None
        yield "beta1", _number(where, "betas", one)
        yield "beta2", _number(where, "betas", two)
    elif name in SCALARS:
        yield name, _number(where, name, value)
    elif name in CHOICES and value is not None:
        if value not in (False, True):
            raise ValueError(f"{where}: {name} got {value!r}, expected True or False; give one")
        yield name, bool(value)
    else:
        yield name, value


def _number(where: str, name: str, value: Any) -> float:
    """Return a number, or a tensor of one element, as a float."""
    single = isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex()
    try:
        if isinstance(value, torch.Tensor | str | bytes) and not single:
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError, NotImplementedError):
        raise ValueError(f"{where}: {name} got {value!r}, expected a number; give one") from None

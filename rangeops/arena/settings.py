"""settings: what a parameter group may set, as a caller spells it and as its row stores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from plan.scalars import FP32_SCALARS
from plan.scratch import GROUP
from rangeops.arena.fields import COMPLEMENTS
from rangeops.arena.scalars import check

_WHOLE = {complement: name for name, complement in COMPLEMENTS.items()}

SCALARS = tuple(dict.fromkeys(_WHOLE.get(name, name) for name in GROUP if name in FP32_SCALARS))
"""Settings that are numbers; lr and weight_decay multiply, the others stand for the scalar."""

CHOICES = tuple(name for name in GROUP if name not in FP32_SCALARS and name != "decoupled")
"""Settings that are yes or no."""

DECAYS = {"l2": 0.0, "decoupled": 1.0}

MULTIPLIERS = ("lr", "weight_decay")

NAMES = (*SCALARS, *CHOICES, "decay")
"""Every setting of a group."""


READS: dict[str, dict[str, tuple[Any, ...]]] = {}
"""Optimizer -> the settings that its groups may have, each with the values that it may take, none
for any; an optimizer enters its own when it is declared."""


def check_read(optimizer: str, settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the optimizer would not act by.

    Raises:
        ValueError: it would have no effect.

    """
    if optimizer not in READS:
        return
    reads = READS[optimizer]
    for name, value in settings.items():
        idle = value is None or not value or name == "adapt"  # says what is so anyway
        allowed = reads.get(name)
        if allowed is None and not idle and name in NAMES:
            raise ValueError(
                f"groups: got {name}={value!r} for {optimizer}, which has none, expected one of "
                f"{', '.join(reads)}; leave it out"
            )
        if allowed and not idle and value not in allowed:
            raise ValueError(
                f"groups: got {name}={value!r} for {optimizer}, expected "
                f"{' or '.join(map(repr, allowed))}; its rule has no other"
            )


def stored(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return settings as a row has them, by the names of ``plan.scratch.GROUP``.

    Raises:
        TypeError: an unknown setting.
        ValueError: a value that it cannot have.

    """
    out: dict[str, float] = {}
    for name, value in settings.items():
        if name not in NAMES:
            raise TypeError(f"groups: got {name!r}, expected one of {', '.join(NAMES)}")
        if name == "decay":
            out["decoupled"] = _decay(value)
        elif name in CHOICES:
            out[name] = _choice(name, value)
        elif value is None:
            follows = 1.0 if name in MULTIPLIERS else np.nan
            out |= dict.fromkeys(_stored_names(name), follows)
        else:
            check(name, value)
            out |= {key: 1.0 - value if key != name else value for key in _stored_names(name)}
    return out


def spelled(row: Mapping[str, float], follows: Mapping[str, float]) -> dict[str, Any]:
    """Return what of a row is a setting of the group's own, as a caller spells it."""
    out: dict[str, Any] = {}
    for name in NAMES:
        key = "decoupled" if name == "decay" else _stored_names(name)[-1]
        value, default = row[key], follows[key]
        if value == default or (np.isnan(value) and np.isnan(default)):
            continue
        if name == "decay":
            out[name] = "decoupled" if value else "l2"
        elif name in CHOICES:
            out[name] = bool(value)
        else:
            out[name] = value if key == name else 1.0 - value
    return out


def _stored_names(name: str) -> tuple[str, ...]:
    """Return the columns of a setting: beta1 has two, since no complement is taken in float32."""
    if name == "beta1":
        return (COMPLEMENTS[name], name)
    return (COMPLEMENTS.get(name, name),)


def _choice(name: str, value: Any) -> float:
    if value is None:
        return 1.0 if name == "adapt" else float("nan")
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"groups: {name} got {value!r}, expected True, False or None")
    return float(value)


def _decay(value: Any) -> float:
    if value is None:
        return float("nan")
    if value not in DECAYS:
        known = ", ".join(map(repr, DECAYS))
        raise ValueError(f"groups: decay got {value!r}, expected one of {known} or None")
    return DECAYS[value]

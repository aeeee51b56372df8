"""Scalars: the hyper-parameters and counters that live in the arena.

``scalars.lr = 1e-3`` writes the device scalar in stream order; ``scalars.set(lr=..., eps=...)``
writes several with one upload.  Complements are rounded from Python floats here, on the host:
setting ``beta1`` also sets ``one_minus_beta1``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from plan.scalars import DEVICE_OWNED, FP32_SCALARS, INT32_SCALARS, fp32_index, int32_index

_COMPLEMENTS = {
    "beta1": "one_minus_beta1",
    "beta2": "one_minus_beta2",
    "dampening": "one_minus_dampening",
    "ema_decay": "one_minus_ema_decay",
}
_SHORT_OF_ONE = ("beta1", "beta2")
_UP_TO_ONE = ("ema_decay", "dampening", "one_minus_ema_decay", "one_minus_dampening")
_POSITIVE = ("eps", "loss_scale", "grad_scale", "min_loss_scale", "max_loss_scale", "ranks")
_POSITIVE_INT = ("growth_interval", "hysteresis", "batch_size", "global_batch_size")

NAMES = frozenset(FP32_SCALARS) | frozenset(INT32_SCALARS) | frozenset(_COMPLEMENTS)
"""Every name that ``set`` takes."""


def check(name: str, value: float) -> None:
    """Refuse a value that a hyper-parameter cannot have.

    Raises:
        ValueError: non-finite, negative, or outside the scalar's own limits.
        TypeError: unknown name.

    """
    if name not in NAMES:
        raise TypeError(f"scalars: got {name!r}, expected one of {', '.join(sorted(NAMES))}")
    if not math.isfinite(value):
        raise ValueError(f"{name}: got {value}, expected a finite number; check the schedule")
    if value < 0:
        raise ValueError(f"{name}: got {value}, expected >= 0; for ascent use maximize=True")
    if name in _SHORT_OF_ONE and value >= 1:
        raise ValueError(f"{name}: got {value}, expected 0 <= {name} < 1; give the decay rate")
    if name in _UP_TO_ONE and value > 1:
        raise ValueError(f"{name}: got {value}, expected 0 <= {name} <= 1; give a fraction")
    if name in _POSITIVE and np.float32(value) <= 0:
        raise ValueError(f"{name}: got {value}, expected > 0 in float32; give at least 1e-38")
    if name in _POSITIVE_INT and value < 1:
        raise ValueError(f"{name}: got {value}, expected a whole number >= 1; give a count")
    if name in FP32_SCALARS and value > 3.4028234e38:
        raise ValueError(f"{name}: got {value}, expected at most 3.4e38, the float32 limit")
    if name in INT32_SCALARS and (value != int(value) or value > 2**31 - 1):
        raise ValueError(f"{name}: got {value}, expected a whole number below 2**31")


class Scalars:
    """Named scalars of one arena, read and written by attribute.

    Reading a scalar of the host costs nothing; reading one that the device changes (loss_scale,
    step, found_inf …) waits for the device.
    """

    _upload: Callable[[str, int, np.ndarray], None]

    def __init__(
        self,
        upload: Callable[[str, int, np.ndarray], None],
        download: Callable[[str, int], Any],
    ) -> None:
        """Take the arena's ``upload(kind, element, values)`` and ``download(kind, element)``."""
        fp32 = np.zeros(fp32_index(list(FP32_SCALARS)[-1]) + 1, np.float32)
        int32 = np.zeros(int32_index(list(INT32_SCALARS)[-1]) + 1, np.int32)
        for name, value in FP32_SCALARS.items():
            fp32[fp32_index(name)] = value
        for key, count in INT32_SCALARS.items():
            int32[int32_index(key)] = count
        object.__setattr__(self, "_mirror", {"fp32": fp32, "int32": int32})
        object.__setattr__(self, "_upload", upload)
        object.__setattr__(self, "_download", download)

    def reset(self) -> None:
        """Write the initial value of every scalar."""
        for kind, mirror in self._mirror.items():
            self._upload(kind, 0, mirror)

    def __getattr__(self, name: str) -> Any:
        """Return the value of scalar ``name``."""
        for kind, table, index in (
            ("fp32", FP32_SCALARS, fp32_index),
            ("int32", INT32_SCALARS, int32_index),
        ):
            if name in table:
                if name in DEVICE_OWNED:
                    return self._download(kind, index(name))
                return self._mirror[kind][index(name)].item()
        if name in _COMPLEMENTS:
            return 1.0 - float(getattr(self, _COMPLEMENTS[name]))
        raise AttributeError(f"scalars: no scalar is named {name!r}")

    def __setattr__(self, name: str, value: float) -> None:
        """Write scalar ``name`` in stream order."""
        self.set(**{name: value})

    def set(self, **values: float) -> None:
        """Write several scalars; neighbours of one type are one upload.

        Raises:
            ValueError, TypeError: see ``check``; nothing is written then.

        """
        for name, value in values.items():
            check(name, value)
        full: dict[str, float] = {}
        for name, value in values.items():
            if name in _COMPLEMENTS:
                full[_COMPLEMENTS[name]] = 1.0 - value
            if name in FP32_SCALARS or name in INT32_SCALARS:
                full[name] = value
            if name == "loss_scale":
                full["grad_scale"] = value
        for kind, table, index in (
            ("fp32", FP32_SCALARS, fp32_index),
            ("int32", INT32_SCALARS, int32_index),
        ):
            mirror = self._mirror[kind]
            for owned in (False, True):
                places = [index(n) for n in full if n in table and (n in DEVICE_OWNED) == owned]
                for n in full:
                    if n in table:
                        mirror[index(n)] = full[n]
                if owned:
                    for place in places:
                        self._upload(kind, place, mirror[place : place + 1])
                elif places:
                    self._upload(kind, min(places), mirror[min(places) : max(places) + 1])

    def host_values(self) -> dict[str, float]:
        """Return the FP32 scalars as the host last set them."""
        return {name: float(self._mirror["fp32"][fp32_index(name)]) for name in FP32_SCALARS}

"""Scalars: the hyper-parameters and counters that live in the arena.

``scalars.lr = 1e-3`` writes the device scalar in stream order; ``scalars.set(lr=..., eps=...)``
writes several with one upload.  Complements are rounded from Python floats here, on the host:
setting ``beta1`` also sets ``one_minus_beta1``.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from plan import MemoryPlan, Range, Region
from plan.scalars import DEVICE_OWNED, FP32_SCALARS, INT32_SCALARS, fp32_index, int32_index
from rangeops.arena.fields import COMPLEMENTS, NAMES, ScalarFields

__all__ = ["NAMES", "Scalars", "check"]

_SHORT_OF_ONE = ("beta1", "beta2")
_UP_TO_ONE = ("ema_decay", "dampening", "one_minus_ema_decay", "one_minus_dampening")
_POSITIVE = ("eps", "loss_scale", "grad_scale", "min_loss_scale", "max_loss_scale", "ranks")
_POSITIVE_INT = ("growth_interval", "hysteresis", "batch_size", "global_batch_size")

_TABLES = (
    ("fp32", FP32_SCALARS, fp32_index),
    ("int32", INT32_SCALARS, int32_index),
)
"""Kind, names with initial values, and the place of a name in its region in elements."""


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


class Memory(Protocol):
    """What scalars need of the arena that they lie in."""

    def write(self, offset: int, values: np.ndarray) -> None:
        """Copy host values to byte ``offset`` in order of the current stream."""

    def read(self, span: Range, dtype: str) -> np.ndarray:
        """Return a host copy of a byte range, after the current stream's work."""


class Scalars(ScalarFields):
    """Named scalars of one arena, read and written by attribute.

    Reading a scalar of the host costs nothing; reading one that the device changes (loss_scale,
    step, found_inf …) waits for the device.
    """

    _memory: Memory
    _base: dict[str, int]
    _mirror: dict[str, np.ndarray]

    def __init__(self, memory: Memory, plan: MemoryPlan) -> None:
        base, mirror = {}, {}
        regions, types = (Region.S_SCALAR_FP32, Region.S_SCALAR_INT32), (np.float32, np.int32)
        for (kind, table, index), region, dtype in zip(_TABLES, regions, types, strict=True):
            base[kind] = plan.range(region).base_offset
            mirror[kind] = np.zeros(index(list(table)[-1]) + 1, dtype)
            for name, value in table.items():
                mirror[kind][index(name)] = value
        for attribute, own in (("_memory", memory), ("_base", base), ("_mirror", mirror)):
            object.__setattr__(self, attribute, own)

    def __repr__(self) -> str:
        """Return the scalars of the host that are not as in a fresh arena; asks no device."""
        changed = [
            f"{name}={self.get(name):g}"
            for _, table, _ in _TABLES
            for name, value in table.items()
            if name not in DEVICE_OWNED and self.get(name) != np.float32(value)
        ]
        counts = f"{len(FP32_SCALARS)} fp32, {len(INT32_SCALARS)} int32"
        return f"<Scalars: {counts}; {', '.join(changed) or 'all as in a fresh arena'}>"

    def reset(self) -> None:
        """Write the initial value of every scalar."""
        for kind, mirror in self._mirror.items():
            self._upload(kind, 0, mirror)

    def get(self, name: str) -> Any:
        """Return scalar ``name``, waiting for the device if that is who changes it.

        Raises:
            KeyError: no such scalar.

        """
        for kind, table, index in _TABLES:
            if name in table and name in DEVICE_OWNED:
                span = Range(self._base[kind] + 4 * index(name), 4)
                return self._memory.read(span, "f4" if kind == "fp32" else "i4")[0].item()
            if name in table:
                return self._mirror[kind][index(name)].item()
        return 1.0 - float(self.get(COMPLEMENTS[name]))

    def _upload(self, kind: str, element: int, values: np.ndarray) -> None:
        self._memory.write(self._base[kind] + 4 * element, values)

    def set(self, **values: float) -> None:
        """Write several scalars; neighbours of one type are one upload.

        Raises:
            ValueError, TypeError: see ``check``; nothing is written then.

        """
        for name, value in values.items():
            check(name, value)
        full: dict[str, float] = {}
        for name, value in values.items():
            if name in COMPLEMENTS:
                full[COMPLEMENTS[name]] = 1.0 - value
            if name in FP32_SCALARS or name in INT32_SCALARS:
                full[name] = value
            if name == "loss_scale":
                full["grad_scale"] = value
        for kind, table, index in _TABLES:
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

"""Scalars: the hyper-parameters and counters that live in the arena.

``scalars.lr = 1e-3`` writes the device scalar in stream order; ``scalars.set(lr=..., eps=...)``
writes several with one upload.  Complements are rounded from Python floats here, on the host:
setting ``beta1`` also sets ``one_minus_beta1``.
"""

from __future__ import annotations

import math
import reprlib
from typing import Any, Protocol

import numpy as np

from plan import MemoryPlan, Range
from plan.scalars import DEVICE_OWNED, FP32_SCALARS, INT32_SCALARS
from plan.scratch import STATE_OF
from rangeops.arena.fields import COMPLEMENTS, NAMES, ScalarFields

__all__ = ["NAMES", "Scalars", "check"]

_SHORT_OF_ONE = ("beta1", "beta2")
_SHORT_OF_ZERO = ("one_minus_beta1", "one_minus_beta2")
_UP_TO_ONE = (
    "ema_decay", "dampening", "one_minus_ema_decay", "one_minus_dampening", *_SHORT_OF_ZERO,
)  # fmt: skip
_POSITIVE = (
    "eps", "loss_scale", "grad_scale", "min_loss_scale", "max_loss_scale", "ranks",
    *_SHORT_OF_ZERO,
)  # fmt: skip
_POSITIVE_INT = ("growth_interval", "hysteresis", "batch_size", "global_batch_size")


def said(value: Any) -> str:
    """Return a value as error sentences say it; Python writes no integer of very many digits."""
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def number(name: str, value: Any) -> float:
    """Return a value as a float.

    Raises:
        ValueError: no number, or none that a float holds.

    """
    try:
        wide = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        wide = math.nan
    if not math.isfinite(wide):
        got = value if isinstance(value, float) else said(value)
        raise ValueError(f"{name}: got {got}, expected a finite number; check the schedule")
    return wide


def check(name: str, value: float) -> None:
    """Refuse a value that a hyper-parameter cannot have.

    Raises:
        ValueError: no finite number, negative, or outside the scalar's own limits.
        TypeError: unknown name.

    """
    if name not in NAMES:
        raise TypeError(f"scalars: got {name!r}, expected one of {', '.join(sorted(NAMES))}")
    wide = number(name, value)
    if wide < 0:
        raise ValueError(f"{name}: got {value}, expected >= 0; for ascent use maximize=True")
    if name in _SHORT_OF_ONE and wide >= 1:
        raise ValueError(f"{name}: got {value}, expected 0 <= {name} < 1; give the decay rate")
    if name in _UP_TO_ONE and wide > 1:
        raise ValueError(f"{name}: got {value}, expected 0 <= {name} <= 1; give a fraction")
    if name in FP32_SCALARS and wide > 3.4028234e38:
        raise ValueError(f"{name}: got {value}, expected at most 3.4e38, the float32 limit")
    if name in _POSITIVE and np.float32(wide) <= 0:
        raise ValueError(f"{name}: got {value}, expected > 0 in float32; give at least 1e-38")
    if name in _POSITIVE_INT and wide < 1:
        raise ValueError(f"{name}: got {value}, expected a whole number >= 1; give a count")
    if name in INT32_SCALARS and (wide != int(wide) or wide > 2**31 - 1):
        raise ValueError(f"{name}: got {value}, expected a whole number below 2**31")


def _meet(one: Range, other: Range) -> bool:
    return one.base_offset < other.end and other.base_offset < one.end


class Memory(Protocol):
    """What scalars need of the arena that they lie in."""

    def write(self, offset: int, values: np.ndarray) -> None:
        """Copy host values to byte ``offset`` in order of the current stream."""

    def read(self, span: Range, dtype: str) -> np.ndarray:
        """Return a host copy of a byte range, after the current stream's work."""


class Scalars(ScalarFields):
    """Named scalars of one arena, read and written by attribute.

    The device's bytes are the truth.  Reading a scalar of the host costs nothing as long as nobody
    else can have written it, since a mirror is kept; reading one that the device changes
    (loss_scale, step, found_inf …) waits for the device.  Behind a write of the arena's bytes
    (a load, a copy, a raw view) the mirror is read back first.  ``step`` is the arena's count;
    setting it sets every tensor's own as well.  A plan's own scalars
    (``PlanConfig(scalars=...)``) are read by ``get`` and written by ``set``.
    """

    _memory: Memory
    _own: frozenset[str]
    _steps: Range | None
    _spans: dict[str, Range]
    _stale: bool
    _shared: bool
    _uploading: bool
    version: int
    _base: dict[str, int]
    _mirror: dict[str, np.ndarray]
    _places: dict[str, tuple[str, int]]

    def __init__(self, memory: Memory, plan: MemoryPlan) -> None:
        own = plan.config.own_scalars
        values = {**FP32_SCALARS, **INT32_SCALARS, **own}
        planned = {name: plan.scalar(name) for name in values}
        base, mirror = {}, {}
        for dtype in ("f4", "i4"):
            offsets = [offset for offset, its in planned.values() if its == dtype]
            base[dtype] = min(offsets)
            mirror[dtype] = np.zeros((max(offsets) - min(offsets)) // 4 + 1, dtype)
        places = {name: (dtype, (at - base[dtype]) // 4) for name, (at, dtype) in planned.items()}
        for name, (dtype, place) in places.items():
            mirror[dtype][place] = values[name]
        steps = plan.tensors.get(STATE_OF["steps"].tensor)
        spans = {dtype: Range(base[dtype], 4 * mirror[dtype].size) for dtype in base}
        # Past __setattr__, which writes scalars.
        vars(self).update(
            _memory=memory,
            _own=frozenset(own),
            _base=base,
            _mirror=mirror,
            _places=places,
            _steps=steps and Range(steps.offset, steps.nbytes),
            _spans=spans,
            _stale=False,
            _shared=False,
            _uploading=False,
            version=0,
        )

    def __repr__(self) -> str:
        """Return the scalars of the host that are not as in a fresh arena; asks no device."""
        fresh = {**FP32_SCALARS, **INT32_SCALARS}
        changed = [
            f"{name}={self.get(name):g}"
            for name in self._places
            if name in self._own
            or (name not in DEVICE_OWNED and self.get(name) != np.float32(fresh[name]))
        ]
        counts = f"{len(FP32_SCALARS) + len(self._own)} fp32, {len(INT32_SCALARS)} int32"
        return f"<Scalars: {counts}; {', '.join(changed) or 'all as in a fresh arena'}>"

    def __reduce__(self) -> Any:
        """Refuse to be copied or pickled without the arena."""
        raise TypeError("Scalars: got a copy or a pickle, expected neither; copy the arena instead")

    def reset(self) -> None:
        """Write the initial value of every scalar."""
        for dtype, mirror in self._mirror.items():
            self._upload(dtype, 0, mirror)

    def get(self, name: str) -> Any:
        """Return scalar ``name``, waiting for the device if that is who changes it.

        Raises:
            KeyError: no such scalar.

        """
        if name in COMPLEMENTS and name not in self._places:
            return 1.0 - float(self.get(COMPLEMENTS[name]))
        dtype, place = self._places[name]
        self._refresh()
        if name in DEVICE_OWNED:
            return self._memory.read(Range(self._base[dtype] + 4 * place, 4), dtype)[0].item()
        return self._mirror[dtype][place].item()

    def written(self, span: Range, lasting: bool = False) -> None:
        """Note that somebody else wrote bytes of the arena, or with ``lasting`` may at any time."""
        if self._uploading or not any(_meet(span, own) for own in self._spans.values()):
            return
        vars(self).update(_stale=True, _shared=self._shared or lasting)

    def _refresh(self) -> None:
        """Read the mirror back if it may not be what the device has."""
        if self._stale:
            for dtype, mirror in self._mirror.items():
                mirror[:] = self._memory.read(self._spans[dtype], dtype)
            vars(self).update(_stale=self._shared)

    def _upload(self, dtype: str, place: int, values: np.ndarray) -> None:
        vars(self).update(_uploading=True)
        try:
            self._memory.write(self._base[dtype] + 4 * place, values)
        finally:
            vars(self).update(_uploading=False)

    def check(self, **values: float) -> None:
        """Refuse what ``set`` would refuse, and write nothing.

        Raises:
            ValueError, TypeError: see the function ``check``.

        """
        for name, value in values.items():
            if name not in self._own:
                check(name, value)
            elif not math.isfinite(np.float32(value)):
                raise ValueError(f"{name}: got {value}, expected a finite float32; check it")

    def set(self, **values: float) -> None:
        """Write several scalars; neighbours of one type are one upload.

        Raises:
            ValueError, TypeError: see ``check``; nothing is written then.

        """
        self.check(**values)
        full: dict[str, float] = {}
        for name, value in values.items():
            if name in COMPLEMENTS:
                full[COMPLEMENTS[name]] = 1.0 - value
            if name in self._places:
                full[name] = value
            if name == "loss_scale":
                full["grad_scale"] = value
        self._refresh()
        vars(self).update(version=self.version + 1)
        for name, value in full.items():
            dtype, place = self._places[name]
            self._mirror[dtype][place] = value
        alone = DEVICE_OWNED | self._own  # those between them belong to the device
        for dtype, mirror in self._mirror.items():
            mine = {name for name in full if self._places[name][0] == dtype}
            together = [self._places[name][1] for name in mine - alone]
            if together:
                self._upload(dtype, min(together), mirror[min(together) : max(together) + 1])
            for name in full:
                if name in mine & alone:
                    place = self._places[name][1]
                    self._upload(dtype, place, mirror[place : place + 1])
        if "step" in full and self._steps is not None:
            count = self._steps.size // 4
            self._memory.write(self._steps.base_offset, np.full(count, full["step"], np.int32))

    def host_values(self) -> dict[str, float]:
        """Return the FP32 scalars as the host last set them."""
        self._refresh()
        mirror = self._mirror["f4"]
        return {name: float(mirror[self._places[name][1]]) for name in FP32_SCALARS}

"""reference: an elementwise op's NumPy stages over whole ranges, as the kernel has to do it.

This is the second spelling of the memory side: masks instead of branches, whole arrays instead of
vectors and threads.  The stages' arithmetic is the op's own second spelling, in the same order of
rounding; what is independent of that order is the float64 oracle of the tests, and torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from plan.scalars import FP32_SCALARS, fp32_index, int32_index
from plan.scratch import BLOCK, BLOCK_FLOATS, GRANULE, ROW, ROW_FLOATS
from rangeops.kernels.half import from_half, to_half
from rangeops.kernels.stages import Elementwise
from rangeops.kernels.stages import integers as integers_of

REFERENCE_CHUNK = 1 << 20
"""Elements that a reference handles at a time, to bound its temporaries."""


def reference_of(d: Elementwise, flags: Mapping[str, Any]) -> Callable[..., None]:
    """Return the reference of an ``Elementwise`` variant; it works on its arrays in place."""
    names = [*(o.name for o in d.operands), *d.state(), *(f"scalar.{s}" for s in d.scalars)]

    def reference(*arguments: Any) -> None:
        arrays = dict(zip(names, arguments, strict=False))
        integers = dict(zip(integers_of(d), arguments[len(names) :], strict=True))
        n, half_start = integers["n"], integers.get("half_start", 0)
        held = d.gated and is_held(arrays["k"])
        with np.errstate(all="ignore"):
            for lo in range(0, 0 if held else n, REFERENCE_CHUNK):
                Piece(d, flags, arrays, integers, lo, min(n, lo + REFERENCE_CHUNK)).run()
        if d.clears and flags.get(d.clears):
            cleared(d, flags, arrays, half_start, integers["shift"])

    return reference


def cleared(
    d: Elementwise,
    flags: Mapping[str, Any],
    arrays: dict[str, Any],
    half_start: int,
    shift: int = GRANULE.bit_length() - 1,
) -> None:
    """Write zeros to the gradients of all tensors but those that were planned as frozen."""
    half = d.half_of(d.scaled, flags)
    parts = [(arrays[d.scaled], 0)]
    if half:
        parts = [(arrays[d.scaled][:half_start], 0), (arrays[half.name], half_start)]
    for array, start in parts:
        granule = np.arange(start, start + array.size) >> shift
        array[arrays["live"][arrays["segments"][granule]] >= 0] = 0


def is_held(k: np.ndarray) -> bool:
    """Return whether the finite flag holds every update back."""
    return bool(k[int32_index("skip_step")] or k[int32_index("found_inf")])


class Piece:
    """The elements lo .. hi-1 of one call."""

    def __init__(
        self,
        d: Elementwise,
        flags: Mapping[str, Any],
        arrays: dict[str, Any],
        integers: dict[str, int],
        lo: int,
        hi: int,
    ) -> None:
        self._d, self._flags, self._arrays = d, flags, arrays
        self._lo, self._hi, self._half_start = lo, hi, integers.get("half_start", 0)
        self._active = d.active(flags)
        self._half = flags.get("half")
        self._row: Any = None
        self._live: Any = slice(None)
        if d.gated:
            granule = np.arange(lo, hi) >> integers["shift"]
            tensor = arrays["segments"][granule].astype(np.int64)
            self._row = BLOCK_FLOATS + ROW_FLOATS * tensor
            self._live = arrays["live"][tensor]

    def run(self) -> dict[str, Any]:
        """Run the stages, write what they gave where the tensor moves, and return it."""
        resting = self._run(resting=True) if self._d.gated else {}
        values = self._run()
        self._store(resting, self._live == 0)
        self._store(values, self._live > 0 if self._d.gated else self._live)
        return values

    def _run(self, resting: bool = False) -> dict[str, Any]:
        """Return what the stages give, or those of them that run for resting tensors."""
        values: dict[str, Any] = {}
        for stage in self._d.running(self._flags, resting):
            arguments = [values[n] if n in values else self.read(n) for n in stage.arguments]
            result = stage.reference(*arguments)
            many = result if isinstance(result, tuple) else (result,)
            if stage.when:
                on = self.read(stage.when) != 0
                before = [values[n] if n in values else self.read(n) for n in stage.targets]
                many = tuple(np.where(on, a, b) for a, b in zip(many, before, strict=True))
            values.update(zip(stage.targets, many, strict=True))
        return values

    def _store(self, values: dict[str, Any], where: Any) -> None:
        """Write the results that are operands, where their tensors are ``where``."""
        for name, value in values.items():
            if name in self._active:
                self._write(self._active[name], np.broadcast_to(value, self._hi - self._lo), where)

    def read(self, name: str) -> Any:
        """Return an argument: elements as float32, or a coefficient, a row's by element."""
        arrays = self._arrays
        if name in self._active:
            return self._operand(self._active[name])
        if name in self._d.scalars:
            return arrays[f"scalar.{name}"][0]
        if name in BLOCK:
            return arrays["c"][BLOCK.index(name)]
        if name in ROW:
            return arrays["c"][self._row + ROW.index(name)]
        return arrays["s"][fp32_index(name)] if name in FP32_SCALARS else None

    def _operand(self, operand: Any) -> np.ndarray:
        lo, hi, name = self._lo, self._hi, operand.name
        array = self._arrays[name]
        if operand.element == "half":
            return from_half(array[lo:hi], self._half)
        half = self._d.half_of(name, self._flags)
        if half is None:
            out = array[lo:hi].copy()
        else:
            cut = max(lo, min(hi, self._half_start))
            halves = self._arrays[half.name][cut - self._half_start : hi - self._half_start]
            out = np.concatenate([array[lo:cut], from_half(halves, self._half)])
        scaled = self._d.gated and name == self._d.scaled
        return out * self._arrays["c"][self._row + ROW.index("grad")] if scaled else out

    def _write(self, operand: Any, value: np.ndarray, where: Any) -> None:
        start = self._half_start if operand.from_half_start else 0
        first = max(self._lo, start)
        if first >= self._hi:
            return
        target = self._arrays[operand.name][first - start : self._hi - start]
        some = value[first - self._lo :]
        live = where if isinstance(where, slice) else where[first - self._lo :]
        bits = to_half(some, self._half) if operand.element == "half" else some
        target[live] = bits[live]

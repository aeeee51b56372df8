"""ParameterGuard: whether a module is still the adopted one.

It is asked before every step, so it compares lists made once in C loops: the module that owns a
parameter, and the parameter's memory.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from rangeops.torch.slot import Slot


class ParameterGuard:
    """The adopted parameters of one module, as an optimizer named ``name`` expects them."""

    def __init__(self, slots: Sequence[Slot], name: str) -> None:
        self._slots, self._name = slots, name
        self._params = [s.param for s in slots]
        self._pointers = [s.data.data_ptr() for s in slots]
        self._owners = [s.owner._parameters for s in slots]
        self._keys = [s.key for s in slots]

    def check(self) -> None:
        """Refuse a module that has left the arena.

        Raises:
            RuntimeError: a parameter was replaced, retyped, moved or given other memory.

        """
        held = map(dict.get, self._owners, self._keys)
        if not all(map(operator.is_, held, self._params)):
            slot = next(s for s in self._slots if s.owner._parameters.get(s.key) is not s.param)
            raise RuntimeError(
                f"{self._name}: {slot.name} was replaced by another parameter since adopt(), "
                "expected the adopted one; release() and adopt again"
            )
        if list(map(torch.Tensor.data_ptr, self._params)) != self._pointers:
            pairs = zip(self._slots, self._pointers, strict=True)
            slot = next(s for s, at in pairs if s.param.data_ptr() != at)
            raise RuntimeError(
                f"{self._name}: {slot.name} got other memory ({slot.param.dtype}, "
                f"{slot.param.device}) since adopt(), expected its view of the arena; adopt after "
                "moving or casting a module, and write values with copy_()"
            )

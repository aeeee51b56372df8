"""ParameterGuard: whether a module is still the adopted one, and where its gradients are.

It is asked before every step, so it compares lists made once in C loops: a parameter's memory, the
module that owns it, its gradient's identity.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from rangeops.torch.adopt import Adopted, Slot

_gradient = operator.attrgetter("grad")
_trains = operator.attrgetter("requires_grad")


class ParameterGuard:
    """The adopted parameters of one module, as an optimizer named ``name`` expects them."""

    def __init__(self, adopted: Adopted, name: str) -> None:
        self._slots, self._name = adopted.slots, name
        self._params = [s.param for s in self._slots]
        self._pointers = [s.data.data_ptr() for s in self._slots]
        self._owners = [s.owner._parameters for s in self._slots]
        self._keys = [s.key for s in self._slots]
        self._looked = False
        self._look()

    def _look(self) -> None:
        """Note which parameters are trained."""
        self._flags = list(map(_trains, self._params))
        self._trained = [s for s in self._slots if s.param.requires_grad]
        self._trained_params = [s.param for s in self._trained]
        self._grads = [s.grad for s in self._trained]
        self.untrained = frozenset(s.name for s in self._slots if not s.param.requires_grad)

    def before_step(self) -> tuple[frozenset[str], bool]:
        """Refuse a module that has left the arena; copy gradients that are no views into theirs.

        Returns the names of parameters without a gradient, and whether other parameters are
        trained than before.

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
        # zero_grad(), if it was called, has compared requires_grad already.
        retrained = False if self._looked else self.retrained()
        self._looked = False
        if self.attached():
            return frozenset(), retrained
        retrained |= self.retrained()
        self._looked = False
        return frozenset(self._reattach()), retrained

    def attached(self) -> bool:
        """Return whether every gradient is its view of the arena."""
        return all(map(operator.is_, map(_gradient, self._trained_params), self._grads))

    def retrained(self) -> bool:
        """Return whether ``requires_grad`` changed since the last look."""
        self._looked = True
        if list(map(_trains, self._params)) == self._flags:
            return False
        self._look()
        return True

    @torch.no_grad()
    def _reattach(self) -> list[str]:
        missing = []
        for slot in self._trained:
            grad = slot.param.grad
            if grad is None:
                missing.append(slot.name)
            elif grad is not slot.grad:
                self._take(slot, grad)
        return missing

    def _take(self, slot: Slot, grad: Any) -> None:
        assert slot.grad is not None
        if grad.shape != slot.grad.shape or grad.is_sparse:
            raise RuntimeError(
                f"{self._name}: {slot.name}.grad got "
                f"{'sparse ' if grad.is_sparse else ''}{tuple(grad.shape)}, expected a dense "
                f"{tuple(slot.grad.shape)}; set sparse=False"
            )
        slot.grad.copy_(grad)
        slot.param.grad = slot.grad

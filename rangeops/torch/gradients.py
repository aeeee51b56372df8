"""Gradients: which adopted parameters have a gradient of this step, and the clearing of all.

Parameters keep their views of the arena as gradients, where torch has None after ``zero_grad()``.
A gradient is present when it was written since: autograd says so by a hook, other writers by the
count of writes (``_version``) that torch keeps.  A gradient that is another tensor is copied into
its view; a parameter whose gradient is None has none.  What has none rests, as in torch.

``clip_grad_norm_`` writes every gradient, those of unused parameters too.  So one that backward did
not reach counts as written only if it was written more often than, backward apart, those that
backward reached; under ``torch.distributed`` as often, since there each is written with what other
ranks' backward gave.  A write that torch does not count (a raw one, a replayed graph's) makes no
gradient present.

It is asked at every step, so it compares lists in C loops.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from rangeops.torch.slot import Slot

_gradient = operator.attrgetter("grad")
_version = operator.attrgetter("_version")


class Gradients:
    """The gradients of adopted parameters.

    Args:
        slots: the parameters; those without a place for a gradient are left out.
        clear: clears the memory of all of them.

    """

    def __init__(self, slots: Iterable[Slot], clear: Callable[[], None]) -> None:
        pairs = [(slot, slot.grad) for slot in slots if slot.grad is not None]
        self._clear = clear
        self._slots = [slot for slot, _ in pairs]
        self._views = [view for _, view in pairs]
        self._params = [slot.param for slot in self._slots]
        self._held = list(map(_gradient, self._params))
        self._blank = [0] * len(pairs)  # the counts of writes at which nothing has been written
        self._reached = [0] * len(pairs)  # how often by backward since
        self._given: set[int] = set()  # rows whose gradient came as another tensor
        self._attached: list[bool] = []
        self._none = frozenset[str]()  # names of those that are not attached
        self._without = frozenset[str]()
        self._others: list[torch.Tensor] = []
        self._hooks: dict[int, Any] = {}
        self._note_attached()

    def release(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks.values():
            hook.remove()

    def missing(self, subject: str) -> frozenset[str]:
        """Return the parameters without a gradient, by name, and copy into views what is no view.

        Raises:
            RuntimeError: a gradient that is sparse or of another shape; ``subject`` opens it.

        """
        if not self._as_held():
            self._take_over(subject)
        reached = all(itertools.compress(self._reached, self._attached))
        return self._none if reached else self._none.union(self._unwritten())

    def untrained(self) -> frozenset[str]:
        """Return the parameters that are not trained and have no gradient."""
        pairs = zip(self._slots, self._params, strict=True)
        return frozenset(s.name for s, p in pairs if p.grad is None and not p.requires_grad)

    def stepped(self) -> None:
        """Note that the step left zeros."""
        self._blank = list(map(_version, self._views))
        self._given.clear()
        self._reached[:] = [0] * len(self._reached)  # in place: the hooks hold it

    def blank(self) -> bool:
        """Return whether nothing has been written since the gradients were last cleared."""
        if any(self._reached) or self._given or not self._as_held():
            return False
        return list(map(_version, self._views)) == self._blank

    def clear(self, without: frozenset[str] = frozenset(), set_to_none: bool = True) -> None:
        """Clear gradients and keep the views; none is present then, as torch has it with None.

        Args:
            without: parameters whose gradients stay.
            set_to_none: False: what was present stays so, as zeros.

        """
        rows: Sequence[int] = range(len(self._slots))
        if not self._alone(without):
            rows = [k for k in rows if self._slots[k].name not in without]
        if not self._as_held():
            self._attach(rows)
        if len(rows) == len(self._slots):
            self._clear()
            if set_to_none:
                self.stepped()
        else:
            self._clear_some(rows, set_to_none)

    def _as_held(self) -> bool:
        """Return whether every gradient is the object that it was at the last look."""
        return all(map(operator.is_, map(_gradient, self._params), self._held))

    def _unwritten(self) -> list[str]:
        """Return the parameters whose view backward did not reach and nobody else wrote."""
        counts = list(map(operator.sub, map(_version, self._views), self._blank))
        attached = list(itertools.compress(range(len(counts)), self._attached))
        written = [counts[k] - self._reached[k] for k in attached if self._reached[k]]
        others = max(written, default=0) + 1
        if written and torch.distributed.is_available() and torch.distributed.is_initialized():
            others = max(1, min(written))
        return [
            self._slots[k].name
            for k in attached
            if not self._reached[k] and counts[k] < others and k not in self._given
        ]

    def _forget(self, row: int) -> None:
        """Note that a parameter has no gradient."""
        self._blank[row] = self._views[row]._version
        self._reached[row] = 0
        self._given.discard(row)

    def _clear_some(self, rows: Iterable[int], set_to_none: bool) -> None:
        with torch.no_grad():
            for k in rows:
                before = self._views[k]._version
                self._views[k].zero_()
                self._blank[k] += self._views[k]._version - before
                if set_to_none:
                    self._forget(k)

    def _alone(self, without: frozenset[str]) -> bool:
        """Return whether none of these parameters has a gradient, so that all may be cleared."""
        if without is not self._without:
            self._without = without
            self._others = [s.param for s in self._slots if s.name in without]
        nothing = itertools.repeat(None)
        return all(map(operator.is_, map(_gradient, self._others), nothing))

    @torch.no_grad()
    def _take_over(self, subject: str) -> None:
        """Note what became of gradients, and copy those that are other tensors into the views."""
        for k, (slot, view) in enumerate(zip(self._slots, self._views, strict=True)):
            grad = slot.param.grad
            if grad is self._held[k]:
                continue
            if grad is None:
                self._forget(k)
            else:
                if grad is not view:
                    _check(subject, slot, grad, view)
                    view.copy_(grad)
                self._given.add(k)
            self._hold(k, None if grad is None else view)
        self._note_attached()

    def _attach(self, rows: Iterable[int]) -> None:
        """Put the views where gradients are other tensors, or None of trained parameters."""
        for k in rows:
            param, view = self._params[k], self._views[k]
            if param.grad is None:
                self._forget(k)
            elif param.grad is not view:
                self._given.add(k)
            self._hold(k, view if param.grad is not None or param.requires_grad else None)
        self._note_attached()

    def _hold(self, row: int, grad: torch.Tensor | None) -> None:
        param = self._params[row]
        if param.grad is not grad:
            param.grad = grad
        self._held[row] = grad

    def _note_attached(self) -> None:
        """Note which gradients are their views, and have autograd say when it writes one."""
        self._attached = [grad is not None for grad in self._held]
        pairs = zip(self._slots, self._held, strict=True)
        self._none = frozenset(slot.name for slot, grad in pairs if grad is None)
        for k, param in enumerate(self._params):
            if self._attached[k] and param.requires_grad and k not in self._hooks:
                hook = param.register_post_accumulate_grad_hook(_counting(self._reached, k))
                self._hooks[k] = hook


def _counting(counts: list[int], row: int) -> Callable[[Any], None]:
    """Return a hook that counts; it holds no parameter, which could not be collected then."""

    def count(_: Any) -> None:
        counts[row] += 1

    return count


def _check(subject: str, slot: Slot, grad: torch.Tensor, view: torch.Tensor) -> None:
    """Refuse a gradient that does not fit its view."""
    if grad.shape != view.shape or grad.is_sparse:
        raise RuntimeError(
            f"{subject}: {slot.name}.grad got {'sparse ' if grad.is_sparse else ''}"
            f"{tuple(grad.shape)}, expected a dense {tuple(view.shape)}; set sparse=False"
        )

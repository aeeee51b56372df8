"""Hooks on an adopted module: what its state dict gives and takes, and what a copy leaves behind.

A state dict holds copies; a view that is saved would hold the whole arena.  Loading one keeps
masters and averages right whether the module or the optimizer is loaded first:

    masters    A tensor of the half type that equals the rounded master says nothing new: the master
               stays.  Any other, and any wider one, becomes the master.
    averages   The average of a loaded tensor begins anew as the loaded weights, unless an
               optimizer's state dict gave that average for exactly these weights (it carries a mark
               of their bits) and no step was made since.

So weights of another model begin their averages, whenever they are loaded, and a checkpoint's own
weights keep them.  A tensor that the state dict does not have keeps both.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from rangeops.arena.arena import Arena
from rangeops.torch.slot import Slot

KEPT_IN = ("_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
"""Where torch keeps the hooks of a module."""

MARKED = 1 << 22
"""Elements that ``mark`` takes at a time: its places and products are 64 MiB."""


def mark(weights: torch.Tensor) -> int:
    """Return a number of 63 bits that tells these float32 bits, in this order, from others."""
    total = 0
    for part in weights.detach().contiguous().view(-1).view(torch.int32).split(MARKED):
        odd = torch.arange(1, 2 * part.numel(), 2, device=part.device)
        total = (total * 0x9E3779B97F4A7C15 + int((part.long() * odd).sum())) % 2**63
    return total


class ModuleHook:
    """A function that torch calls for one module; a deep copy of the module goes without it."""

    def __init__(self, part: nn.Module, call: Callable[..., None]) -> None:
        self._part, self._call = weakref.ref(part), call

    def __call__(self, *args: Any) -> None:
        """Run the function."""
        self._call(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        """Return what does nothing, and have it taken out when the copy is whole."""
        copied = memo.get(id(self._part()))
        if copied is not None:
            whole = _Whole(copied)
            memo[id(whole)] = whole
        return nothing

    def __reduce__(self) -> Any:
        """Refuse to be pickled: each parameter would take the whole arena into the file."""
        raise TypeError(
            "pickle: got a module whose parameters lie in an arena, expected ordinary tensors; "
            "save module.state_dict(), or a copy.deepcopy() of the module, or release() it first"
        )


def nothing(*_: Any) -> None:
    """Stand for a hook of the original in a copy that is being made."""


class _Whole:
    """Takes ``nothing`` out of a copied module when the copy's memo, and with it this, goes."""

    def __init__(self, part: nn.Module) -> None:
        self._part = part

    def __del__(self) -> None:
        for name in KEPT_IN:
            hooks = vars(self._part).get(name, {})
            for key in [k for k, h in hooks.items() if getattr(h, "hook", h) is nothing]:
                del hooks[key]


class Holder(Protocol):
    """What the hooks ask of an adopted module."""

    module: nn.Module
    arena: Arena
    slots: list[Slot]

    def series(self, slot: Slot, name: str) -> torch.Tensor | None:
        """Return the view of one tensor of a parameter, None if it has none."""


class StateHooks:
    """The hooks of one adopted module, and what a state dict gave for its averages."""

    def __init__(self, adopted: Holder) -> None:
        self._adopted = adopted
        self._slots = {id(slot.param): slot for slot in adopted.slots}
        self._loading: dict[int, list[Slot]] = {}
        self._given: tuple[int, Mapping[str, int]] = (0, {})
        self._handles = [handle for part in adopted.module.modules() for handle in self._on(part)]

    def _on(self, part: nn.Module) -> Iterator[Any]:
        """Register the hooks of one module."""
        yield part.register_state_dict_post_hook(ModuleHook(part, self._copy_state))
        yield part.register_load_state_dict_pre_hook(ModuleHook(part, self._before_load))
        yield part.register_load_state_dict_post_hook(ModuleHook(part, self._loaded))

    def remove(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()

    def give(self, step: int, marks: Mapping[str, int]) -> None:
        """Note that averages were given for weights of these marks, at a step of the arena."""
        self._given = step, dict(marks)

    def _own(self, part: nn.Module, prefix: str) -> Iterator[tuple[str, Slot]]:
        """Yield key and slot of a module's own adopted parameters."""
        for key, param in part._parameters.items():
            if id(param) in self._slots:
                yield prefix + key, self._slots[id(param)]

    def _copy_state(self, part: nn.Module, state: Any, prefix: str, _: Any) -> None:
        """Give a state dict its own copies."""
        for key, _slot in self._own(part, prefix):
            if key in state:
                state[key] = state[key].clone()

    def _before_load(self, part: nn.Module, state: Any, prefix: str, *_: Any) -> None:
        """Take masters from the state dict, before half weights are rounded from it."""
        self._adopted.arena.owner.check_live("load_state_dict")
        loading = self._loading[id(part)] = []
        with torch.no_grad():
            for key, slot in self._own(part, prefix):
                value = state.get(key)
                if not isinstance(value, torch.Tensor) or value.shape != slot.weight.shape:
                    continue
                loading.append(slot)
                if slot.data is not slot.weight and not _is_rounded(value, slot):
                    slot.weight.copy_(value)

    def _loaded(self, part: nn.Module, _: Any) -> None:
        """Begin the averages of what was loaded, but for those given for these very weights."""
        step, marks = self._given
        if marks and self._adopted.arena.scalars.step != step:
            self._given, marks = (0, {}), {}
        with torch.no_grad():
            for slot in self._loading.pop(id(part), []):
                average = self._adopted.series(slot, "ema")
                if average is not None and not (
                    slot.name in marks and mark(slot.weight) == marks[slot.name]
                ):
                    average.copy_(slot.weight)


def _is_rounded(value: torch.Tensor, slot: Slot) -> bool:
    """Return whether a tensor is the present master, rounded to the half type."""
    if value.dtype != slot.data.dtype:
        return False
    return torch.equal(slot.weight.to(value.dtype), value.to(slot.weight.device))

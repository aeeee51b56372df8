"""adopt: plan a torch module's parameters, move them into an arena, make them views of it.

The plan's kinds come from the module types (``rangeops.torch.modules``); ``kinds`` overrides by
name pattern.  Tied parameters lie there once, memory order (channels-last) is kept, frozen
parameters are adopted and skipped, buffers are not touched.

With ``half`` the weights that the module computes with are half copies of FP32 masters, and their
gradients are half; biases and norms stay FP32, so run the forward pass under ``torch.autocast``.
"""

from __future__ import annotations

import fnmatch
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from plan import DTensor, DType, MemoryPlan, Parameter, PlanConfig, PlanError, Range
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.torch.modules import kind_of, memory_order, parameters

FLOATS = [getattr(torch, dtype.full_name) for dtype in DType if dtype.is_floating]
"""The types that a parameter may have."""

_adopted: weakref.WeakValueDictionary[int, Adopted] = weakref.WeakValueDictionary()
"""Parameter id -> what adopted it, for the optimizers."""


@dataclass(frozen=True)
class Slot:
    """One adopted parameter: its names in the module, its place in the plan, its views."""

    name: str
    owner: nn.Module
    key: str
    param: nn.Parameter
    planned: Parameter
    order: tuple[int, ...]
    dtype: torch.dtype
    weight: torch.Tensor
    data: torch.Tensor
    grad: torch.Tensor | None


class Adopted:
    """A module whose parameters lie in an arena; made by ``adopt``.

    Attributes:
        module: the module.
        arena: the arena; its memory is a torch tensor on the module's device.
        slots: the adopted parameters in the module's order.

    """

    def __init__(self, module: nn.Module, config: PlanConfig, kinds: Mapping[str, str]) -> None:
        named = list(parameters(module))
        devices = {p.device for _, _, _, p in named}
        if not named or len(devices) != 1:
            raise PlanError(
                f"adopt: got {len(named)} parameters on {len(devices)} devices, expected some on "
                "one; move the module to its device first"
            )
        plan = MemoryPlan(config)
        planned, first_conv = [], True
        for owner, key, name, param in named:
            if param.dtype not in FLOATS:
                raise PlanError(f"adopt: {name} got {param.dtype}, expected a float32 parameter")
            kind = kind_of(owner, key, param, first_conv)
            first_conv = first_conv and kind != "first_conv"
            kind = next((k for p, k in kinds.items() if fnmatch.fnmatchcase(name, p)), kind)
            shape = tuple(param.shape[d] for d in memory_order(param))
            wide = shape if 0 < len(shape) <= 4 else (param.numel(),)
            planned.append(plan.parameter(name, kind, wide))
        plan.finalize()
        device = devices.pop()
        self.module = module
        self._storage = torch.zeros(plan.total_bytes, dtype=torch.uint8, device=device)
        self.arena = Arena(plan, buffer=self._storage)
        self.slots = [self._attach(*n, p) for n, p in zip(named, planned, strict=True)]
        self._clears = [ops.clear.bind(self.arena, span) for span in _gradients(plan)]
        self._hooks: list[Any] = []
        copy_state = partial(self._copy_state)  # torch sets an attribute, which a method refuses
        for part in module.modules():
            self._hooks.append(part.register_state_dict_post_hook(copy_state))
            self._hooks.append(part.register_load_state_dict_pre_hook(self._take_masters))
            self._hooks.append(part.register_load_state_dict_post_hook(self._loaded))
        for slot in self.slots:
            _adopted[id(slot.param)] = self
        if config.ema:
            self.restart_ema()

    def __repr__(self) -> str:
        """Return the module's class, how many parameters, and their arena."""
        return f"<Adopted {type(self.module).__name__}: {len(self.slots)} parameters, {self.arena}>"

    def series(self, slot: Slot, name: str) -> torch.Tensor | None:
        """Return the view of one tensor of a parameter ("m", "v", "ema"), None if it has none."""
        tensor = getattr(slot.planned, name)
        return None if tensor is None else self._view(tensor, slot.order, slot.param)

    def scalar(self, name: str) -> torch.Tensor:
        """Return the view, one element long, of a scalar of the arena."""
        return self._flat(self.arena.tensor(f"scalar.{name}"))

    def _flat(self, tensor: DTensor) -> torch.Tensor:
        """Return the one-dimensional torch view of a planned tensor."""
        raw = self._storage[tensor.offset : tensor.offset + tensor.nbytes]
        return raw.view(getattr(torch, tensor.dtype.full_name))

    def _view(
        self, tensor: DTensor, slot_order: tuple[int, ...], like: torch.Tensor
    ) -> torch.Tensor:
        """Return the torch view of a planned tensor in the shape and strides of ``like``."""
        back = sorted(range(len(slot_order)), key=slot_order.__getitem__)
        return self._flat(tensor).view([like.shape[d] for d in slot_order]).permute(back)

    def _attach(
        self, owner: nn.Module, key: str, name: str, param: nn.Parameter, planned: Parameter
    ) -> Slot:
        """Copy one parameter and its gradient into the arena, and make them views of it."""
        order, dtype, old = memory_order(param), param.dtype, param.detach()
        weight = self._view(planned.weight, order, old)
        weight.copy_(old)
        half = planned.half_copy
        data = weight if half is None else self._view(half, order, old)
        if half is not None:
            data.copy_(old)
        gradient = planned.half_gradient or planned.gradient
        grad = None if gradient is None else self._view(gradient, order, old)
        if grad is not None and param.grad is not None:
            grad.copy_(param.grad)
        param.grad = None
        param.data = data
        if param.requires_grad:
            param.grad = grad
        return Slot(name, owner, key, param, planned, order, dtype, weight, data, grad)

    # Checkpoints: logical tensors, never the arena behind them

    def _own(self, part: nn.Module, prefix: str) -> Iterator[tuple[str, Slot]]:
        """Yield key and slot of a module's own adopted parameters."""
        tied = {id(slot.param): slot for slot in self.slots}
        for key, param in part._parameters.items():
            if id(param) in tied:
                yield prefix + key, tied[id(param)]

    def _copy_state(self, part: nn.Module, state: Any, prefix: str, _: Any) -> None:
        """Give a state dict its own copies; a saved view would hold the whole arena."""
        for key, _slot in self._own(part, prefix):
            if key in state:
                state[key] = state[key].clone()

    def _take_masters(self, part: nn.Module, state: Any, prefix: str, *_: Any) -> None:
        """Load FP32 masters from the state dict, before the half weights are rounded from it."""
        with torch.no_grad():
            for key, slot in self._own(part, prefix):
                value = state.get(key)
                if isinstance(value, torch.Tensor) and value.shape == slot.weight.shape:
                    slot.weight.copy_(value)

    def _loaded(self, part: nn.Module, _: Any) -> None:
        """Start the EMA from the loaded weights, of which it is to be the average."""
        with torch.no_grad():
            for _key, slot in self._own(part, ""):
                average = self.series(slot, "ema")
                if average is not None:
                    average.copy_(slot.weight)

    def refresh_masters(self) -> None:
        """Take the module's present half weights as masters, after writing ``param.data``."""
        with torch.no_grad():
            for slot in self.slots:
                if slot.data is not slot.weight:
                    slot.weight.copy_(slot.data)

    # EMA

    def restart_ema(self) -> None:
        """Set the averaged weights to the live ones."""
        plan = self.arena.planned("restart_ema")
        ops.copy(self.arena, plan.series_range("E"), plan.series_range("W"))

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """Run the block with the averaged weights in the module, then put the live ones back."""
        split = any(s.data is not s.weight for s in self.slots)
        half: dict[str, Any] = {"half_copy": True} if split else {}
        ops.sema_switch(self.arena, swap=True, **half)
        try:
            yield self.module
        finally:
            ops.sema_switch(self.arena, swap=True, **half)

    def writes(self) -> int:
        """Return torch's count of writes to the arena; autograd's sums into gradients are such."""
        return self._storage._version

    def zero_grad(self) -> None:
        """Clear every gradient and keep the views: one launch, with half weights two."""
        for slot in self.slots:
            if slot.param.requires_grad and slot.param.grad is not slot.grad:
                slot.param.grad = slot.grad
        for clear in self._clears:
            clear()

    def release(self) -> None:
        """Give the module ordinary tensors of its own dtypes, which hold the arena no longer."""
        for hook in self._hooks:
            hook.remove()
        for slot in self.slots:
            grad = slot.param.grad
            slot.param.grad = None
            slot.param.data = slot.weight.to(slot.dtype, copy=True)
            if grad is not None:
                slot.param.grad = grad.to(slot.dtype, copy=True)
            _adopted.pop(id(slot.param), None)
        self.slots = []


def _gradients(plan: MemoryPlan) -> list[Range]:
    """Return the ranges that autograd writes: all FP32, or FP32 of biases and norms and halves."""
    if plan.config.half is None:
        return [plan.series_range("G")]
    return [plan.series_range("G", "bias"), plan.series_range("G", "weight", half=True)]


def adopt(
    module: nn.Module,
    optimizer: str = "adamw",
    *,
    half: str | None = None,
    ema: bool = False,
    kinds: Mapping[str, str] | None = None,
) -> Adopted:
    """Move a module's parameters into an arena and make them, and their gradients, views of it.

    Args:
        module: a module on one device, CPU or GPU, in float32 (or half, which ``half`` keeps).
        optimizer: "sgd", "momentum", "nesterov", "adam", "adamw", "lars", "lamb", "lion" or one
            of your own: what the arena keeps state for; "none" for inference.
        half: "fp16" or "bf16": compute with half weights, keep FP32 masters.
        ema: keep an exponential moving average of the weights.
        kinds: name pattern -> kind, over what the module types say.

    Raises:
        PlanError: no parameters, several devices, another dtype, or adopted already.

    """
    for name, param in module.named_parameters():
        if id(param) in _adopted:
            raise PlanError(f"adopt: {name} lies in an arena already, release() that one first")
    return Adopted(module, PlanConfig(optimizer, half=half, ema=ema), kinds or {})


def adopter_of(params: list[torch.Tensor]) -> Adopted:
    """Return what adopted these parameters.

    Raises:
        PlanError: nothing did, or several.

    """
    adopters = [_adopted.get(id(p)) for p in params]
    adopter = adopters[0] if adopters else None
    if adopter is None or any(other is not adopter for other in adopters):
        raise PlanError(
            "optimizer: got parameters that no one arena holds, expected those of one adopted "
            "module; call rangeops.torch.adopt(model, ...) first"
        )
    return adopter

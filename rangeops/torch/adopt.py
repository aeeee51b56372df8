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
from typing import Any

import torch
from torch import nn

from plan import DTensor, DType, MemoryPlan, Parameter, PlanConfig, PlanError, Range
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.arena.tables import STEPS
from rangeops.optim.averages import averaged
from rangeops.torch.gradients import Gradients
from rangeops.torch.hooks import StateHooks
from rangeops.torch.modules import kind_of, memory_order, parameters
from rangeops.torch.slot import Slot

FLOATS = [getattr(torch, dtype.full_name) for dtype in DType if dtype.is_floating]
"""The types that a parameter may have."""

_adopted: weakref.WeakValueDictionary[int, Adopted] = weakref.WeakValueDictionary()
"""Parameter id -> what adopted it, for the optimizers."""


class Adopted:
    """A module whose parameters lie in an arena; made by ``adopt``.

    Attributes:
        module: the module.
        arena: the arena; its memory is a torch tensor on the module's device.
        slots: the adopted parameters in the module's order.
        gradients: which of them have a gradient of this step.
        hooks: what the module's state dict gives and takes; ``rangeops.torch.hooks`` says how.
        driver: the optimizer that owns moments, steps and averages, if there is one.
        given: names of what that optimizer was given.

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
        self.gradients = Gradients(self.slots, self._clear)
        self.hooks = StateHooks(self)
        self.driver: weakref.ref[Any] | None = None
        self.given: set[str] = set()
        self._rows = {tensor.name: row for row, tensor in enumerate(plan.weights())}
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

    def step_of(self, slot: Slot) -> torch.Tensor:
        """Return the view, int32 without dimensions, of the steps that moved a parameter."""
        return self._flat(self.arena.tensor(STEPS))[self._rows[slot.planned.weight.name]]

    def _flat(self, tensor: DTensor) -> torch.Tensor:
        """Return the one-dimensional torch view of a planned tensor, its writes counted alone."""
        raw = self._storage[tensor.offset : tensor.offset + tensor.nbytes]
        return raw.view(getattr(torch, tensor.dtype.full_name)).data

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
        attached = param.requires_grad or param.grad is not None
        if grad is not None and param.grad is not None:
            grad.copy_(param.grad)
        param.grad = None
        param.data = data
        if attached:
            param.grad = grad
        return Slot(name, owner, key, param, planned, order, dtype, weight, data, grad)

    def refresh_masters(self) -> None:
        """Take the module's present half weights as masters, after writing ``param.data``."""
        with torch.no_grad():
            for slot in self.slots:
                if slot.data is not slot.weight:
                    slot.weight.copy_(slot.data)

    # EMA

    def restart_ema(self) -> None:
        """Begin the averages as the present weights."""
        plan = self.arena.planned("restart_ema")
        ops.copy(self.arena, plan.series_range("E"), plan.series_range("W"))
        self.hooks.give(0, {})

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """Run the block with the averaged weights in the module, then put the live ones back.

        Inside a block another one changes nothing.  A step, or loading a state dict, is refused
        there; state dicts of the optimizer keep their names true, the module's has what it has.

        Raises:
            PlanError: adopted without ``ema=True``.

        """
        with averaged(self.arena):
            yield self.module

    def zero_grad(self) -> None:
        """Clear every gradient and keep the views: one launch, with half weights two."""
        self.gradients.clear()

    def _clear(self) -> None:
        for clear in self._clears:
            clear()

    def release(self) -> None:
        """Give the module ordinary tensors of its own dtypes, which hold the arena no longer."""
        self.hooks.remove()
        self.gradients.release()
        for slot in self.slots:
            grad = slot.param.grad
            slot.param.grad = None
            slot.param.data = slot.weight.to(slot.dtype, copy=True)
            if grad is not None:
                slot.param.grad = grad.to(slot.dtype, copy=True)
            _adopted.pop(id(slot.param), None)
        self.slots = []

    def __reduce__(self) -> Any:
        """Refuse to be copied or pickled: it is bound to its module and its arena's memory."""
        raise TypeError(
            "adopt: got a copy or a pickle of what adopt() returned, expected neither; copy the "
            "module and adopt the copy"
        )


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

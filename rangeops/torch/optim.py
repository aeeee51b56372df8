"""Optimizers with torch's signatures over an adopted module: a step is a few launches.

Hyper-parameters of a group are uploaded when they changed, before the launches; in a captured
graph the kernels read them from the device, so call ``sync()`` before a replay after a scheduler
moved them.  ``zero_grad`` is one clear and keeps the views; where somebody else set gradients to
None, ``step`` takes the new ones over, and a parameter without a gradient is left alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any

import torch

from plan import PlanError, Region
from plan.baseline import fp32_index, int32_index
from rangeops.graph import Graph
from rangeops.step import OptimizerStep
from rangeops.torch import checkpoint
from rangeops.torch.adopt import Adopted, Slot, adopter_of


class RangeOptimizer(torch.optim.Optimizer):
    """What the optimizers share; see the module's docstring.

    Their own keyword arguments, beside torch's:
        clear_grad: the step leaves zero gradients behind; ``zero_grad`` then launches nothing.
        clip_norm, clip_value: clip within the step; changeable by ``arena.scalars``.
        loss_scale: start the library's own device-side scaler with this scale;
            ``optimizer.scale(loss)`` multiplies by it.
        ema_decay, ema_warmup: of the average that ``adopt(..., ema=True)`` keeps.

    Raises:
        PlanError: parameters that are not adopted, or adopted for another optimizer.
        ValueError: an option that this library does not have.

    """

    kinds: tuple[str, ...] = ()
    state_names: tuple[tuple[str, str], ...] = ()
    shared: tuple[str, ...] = ()
    _adopted: Adopted

    def _ready(
        self,
        *,
        clear_grad: bool = False,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        loss_scale: float | None = None,
        ema_decay: float = 0.9999,
        ema_warmup: bool = False,
        **options: Any,
    ) -> None:
        """Bind the step; called at the end of a subclass's constructor."""
        params = [p for group in self.param_groups for p in group["params"]]
        adopted = adopter_of(params)
        plan = adopted.arena.plan
        assert plan is not None
        kind = plan.config.kind.label
        if kind not in self._wanted_kinds():
            raise PlanError(
                f"{type(self).__name__}: the module was adopted for {kind}, expected "
                f"{' or '.join(self._wanted_kinds())}; adopt it for that"
            )
        self._adopted = adopted
        by_id = {id(slot.param): slot for slot in adopted.slots}
        self._slots = [by_id[id(p)] for p in params]
        self._clears = clear_grad
        scaled = loss_scale is not None
        self._scaler = "own" if scaled else ""
        self._step = OptimizerStep(
            adopted.arena,
            check=scaled,
            scaling=scaled,
            clear_grad=clear_grad,
            clip_norm=clip_norm,
            clip_value=clip_value,
            ema_decay=ema_decay,
            ema_warmup=ema_warmup,
            lr=1.0,
            weight_decay=1.0,
            loss_scale=loss_scale if scaled else 1.0,
            **options,
        )
        self._sent: dict[str, Any] = {}
        self._skipped: frozenset[str] = frozenset()
        self._groups_made = 0
        self._make_groups()
        outside = [s.name for s in adopted.slots if id(s.param) not in {id(p) for p in params}]
        self._never = frozenset(outside)
        self._watch()
        self._fill_state()
        self.sync()

    def _wanted_kinds(self) -> tuple[str, ...]:
        return self.kinds

    def _options(self, group: dict[str, Any]) -> dict[str, float]:
        """Return the scalars that one group sets for all: betas, eps, momentum ..."""
        raise NotImplementedError

    # Watching for misuse: C loops over lists made once, some 20 us for 161 parameters

    def _watch(self) -> None:
        slots = self._adopted.slots
        self._params = [s.param for s in slots]
        self._pointers = [s.data.data_ptr() for s in slots]
        self._grads = [s.grad for s in slots if s.param.requires_grad]
        self._trained = [s for s in slots if s.param.requires_grad]
        self._trained_params = [s.param for s in self._trained]
        self._places = [(s.owner._parameters, s.key) for s in slots]

    def _verify(self) -> None:
        """Refuse a step on a module that has left the arena.

        Raises:
            RuntimeError: a parameter was replaced, retyped or moved.

        """
        if list(map(torch.Tensor.data_ptr, self._params)) != self._pointers:
            slot = next(
                s
                for s, at in zip(self._adopted.slots, self._pointers, strict=True)
                if s.param.data_ptr() != at
            )
            raise RuntimeError(
                f"{type(self).__name__}: {slot.name} got other memory ({slot.param.dtype}, "
                f"{slot.param.device}) since adopt(), expected its view of the arena; adopt after "
                "moving or casting a module, and write values with copy_()"
            )
        for (holder, key), param in zip(self._places, self._params, strict=True):
            if holder.get(key) is not param:
                slot = next(s for s in self._adopted.slots if s.param is param)
                raise RuntimeError(
                    f"{type(self).__name__}: {slot.name} was replaced by another parameter since "
                    "adopt(), expected the adopted one; release() and adopt again"
                )

    def _take_gradients(self) -> None:
        """Take gradients over that are no views, and freeze what has none."""
        found = list(map(operator.attrgetter("grad"), self._trained_params))
        if all(map(operator.is_, found, self._grads)):
            missing: frozenset[str] = frozenset()
        else:
            missing = self._reattach(found)
        if missing != self._skipped:
            self._freeze(missing)

    def _reattach(self, found: list[Any]) -> frozenset[str]:
        missing = set()
        with torch.no_grad():
            for slot, grad in zip(self._trained, found, strict=True):
                if grad is None:
                    missing.add(slot.name)
                elif grad is not slot.grad:
                    assert slot.grad is not None
                    if grad.shape != slot.grad.shape or grad.is_sparse:
                        raise RuntimeError(
                            f"{type(self).__name__}: {slot.name}.grad got "
                            f"{'sparse ' if grad.is_sparse else ''}{tuple(grad.shape)}, expected a "
                            f"dense {tuple(slot.grad.shape)}; set sparse=False"
                        )
                    slot.grad.copy_(grad)
                    slot.param.grad = slot.grad
        return frozenset(missing)

    def _freeze(self, missing: frozenset[str]) -> None:
        if self._adopted.arena.capturing():
            raise RuntimeError(
                f"{type(self).__name__}: parameters without a gradient changed during a capture, "
                "expected the same as in the step before; run a warm-up step first"
            )
        groups = self._step.groups
        held = missing | self._never | self._untrained
        groups.unfreeze("*")
        if held:
            groups.freeze(_named(held))
        self._skipped = missing

    # Hyper-parameters

    @property
    def _untrained(self) -> frozenset[str]:
        return frozenset(s.name for s in self._adopted.slots if not s.param.requires_grad)

    def _make_groups(self) -> None:
        """Give every param group two rows of multipliers: weights, and biases with norms."""
        by_id = {id(slot.param): slot for slot in self._adopted.slots}
        for index in range(self._groups_made, len(self.param_groups)):
            slots = [by_id[id(p)] for p in self.param_groups[index]["params"]]
            for flat in (False, True):
                names = {s.name for s in slots if _is_flat(s) == flat}
                if names:
                    label = f"{index}{'.flat' if flat else ''}"
                    self._step.groups.add(label, _named(names), lr=0.0, adapt=not flat)
        self._groups_made = len(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of adopted parameters, as torch does; those held back so far move then."""
        super().add_param_group(param_group)
        if getattr(self, "_step", None) is None:
            return
        params = [p for group in self.param_groups for p in group["params"]]
        if adopter_of(params) is not self._adopted:
            raise PlanError("add_param_group: got parameters of another arena, expected this one's")
        self._slots = [next(s for s in self._adopted.slots if s.param is p) for p in params]
        self._never = frozenset(
            s.name for s in self._adopted.slots if all(s.param is not p for p in params)
        )
        self._make_groups()
        self._freeze(self._skipped)
        self._fill_state()

    def sync(self) -> None:
        """Upload what changed in ``param_groups``; ``step`` does, a replayed graph needs it called.

        Raises:
            RuntimeError: something changed while the stream is being captured.
            ValueError: groups that differ where one value serves the whole model.

        """
        wanted: dict[str, Any] = {}
        for index, group in enumerate(self.param_groups):
            wanted[str(index)] = (float(group["lr"]), float(group["weight_decay"]))
        shared = self._options(self.param_groups[0])
        wanted["shared"] = shared
        if wanted == self._sent:
            return
        for group in self.param_groups[1:]:
            if self._options(group) != shared:
                raise ValueError(
                    f"{type(self).__name__}: param groups differ in {', '.join(self.shared)}, "
                    "expected one value for the model; only lr and weight_decay go by group"
                )
        if shared != self._sent.get("shared"):
            self._step.arena.scalars.set(**shared)
        for index in range(len(self.param_groups)):
            if wanted[str(index)] != self._sent.get(str(index)):
                lr, decay = wanted[str(index)]
                for name in (str(index), f"{index}.flat"):
                    if name in self._step.groups.names:
                        self._step.groups.set(name, lr=lr, weight_decay=decay)
        self._sent = wanted

    # Stepping

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run one step on torch's current stream; returns the closure's loss, if there is one.

        Raises:
            RuntimeError: the module left the arena; see ``adopt``.

        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._verify()
        self._take_gradients()
        self.sync()
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if scale is not None:
            self._device_scalar("grad_scale").copy_(scale.reshape(1))
        if found is not None:
            self._device_scalar("found_inf").copy_(found.reshape(1))
        arena = self._step.arena
        self._step(arena.current_stream() if arena.on_gpu else None)
        return loss

    _step_supports_amp_scaling = True

    def _device_scalar(self, name: str) -> torch.Tensor:
        """Return the torch view of one scalar in the arena."""
        plan = self._step.arena.plan
        assert plan is not None
        if name == "found_inf":
            base, index, dtype = Region.S_SCALAR_INT32, int32_index(name), torch.int32
        else:
            base, index, dtype = Region.S_SCALAR_FP32, fp32_index(name), torch.float32
        offset = plan.range(base).base_offset + 4 * index
        return self._adopted._storage[offset : offset + 4].view(dtype)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Multiply a loss by the present loss scale, which stays on the device."""
        return loss * self._device_scalar("loss_scale").to(loss.dtype).reshape(())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients with one launch; the views stay, whatever ``set_to_none`` says."""
        if self._clears and self._skipped == frozenset():
            for slot in self._trained:
                if slot.param.grad is not slot.grad:
                    break
            else:
                return
        self._adopted.zero_grad()

    def status(self) -> Any:
        """Ask for step, skipped steps, scale and norm without stopping; see ``Status``."""
        return self._step.status()

    def capture(self) -> Graph:
        """Return a graph of the optimizer step alone."""
        self.sync()
        return self._step.capture()

    @contextmanager
    def averaged(self) -> Iterator[torch.nn.Module]:
        """Run the block with the averaged weights in the module."""
        with self._adopted.averaged() as module:
            yield module

    # Checkpoints

    def _fill_state(self) -> None:
        """Show the moments as ``optimizer.state``: views of the arena."""
        for slot in self._slots:
            views = checkpoint.views(self._adopted, slot, self.state_names)
            self.state[slot.param] = views

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict of this optimizer: logical tensors, cut loose of the arena."""
        return checkpoint.save(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this optimizer or of torch's, in place.

        Raises:
            ValueError: other groups, shapes, or steps that differ between parameters.

        """
        checkpoint.load(self, state_dict)
        self._sent = {}
        self.sync()


def _named(names: Set[str]) -> Callable[[Any], bool]:
    """Return the predicate of tensors with one of these names."""
    return lambda tensor: tensor.name in names


def _is_flat(slot: Slot) -> bool:
    """Whether a parameter is a bias or a norm's, which LARS and LAMB leave at ratio 1."""
    return slot.planned.kind in ("bn_bias", "bn_weight", "fc_bias")


def _refuse(name: str, **options: Any) -> None:
    for option, value in options.items():
        if value:
            raise ValueError(f"{name}: {option} got {value!r}, expected False; it has no range op")


class SGD(RangeOptimizer, torch.optim.SGD):
    """torch.optim.SGD: momentum, Nesterov, L2 decay.  Adopt for "sgd", "momentum" or "nesterov"."""

    state_names = (("momentum_buffer", "m"),)
    shared = ("momentum", "dampening")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        **own: Any,
    ) -> None:
        torch.optim.SGD.__init__(
            self, params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize
        )
        self._ready(maximize=maximize, decay="l2", **own)

    def _wanted_kinds(self) -> tuple[str, ...]:
        group = self.param_groups[0]
        if not group["momentum"]:
            return ("sgd",)
        return ("nesterov",) if group["nesterov"] else ("momentum",)

    def _options(self, group: dict[str, Any]) -> dict[str, float]:
        return {"momentum": group["momentum"], "dampening": group["dampening"]}


class _Adaptive(RangeOptimizer):
    state_names = (("exp_avg", "m"), ("exp_avg_sq", "v"))
    shared = ("betas", "eps")

    def _options(self, group: dict[str, Any]) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        return {"beta1": beta1, "beta2": beta2, "eps": group["eps"]}


class Adam(_Adaptive, torch.optim.Adam):
    """torch.optim.Adam, L2 decay.  Adopt for "adam"."""

    kinds = ("adam",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **own: Any,
    ) -> None:
        _refuse("Adam", amsgrad=amsgrad)
        torch.optim.Adam.__init__(self, params, lr, betas, eps, weight_decay, maximize=maximize)
        self._ready(maximize=maximize, **own)


class AdamW(_Adaptive, torch.optim.AdamW):
    """torch.optim.AdamW.  Adopt for "adamw"."""

    kinds = ("adamw",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **own: Any,
    ) -> None:
        _refuse("AdamW", amsgrad=amsgrad)
        torch.optim.AdamW.__init__(self, params, lr, betas, eps, weight_decay, maximize=maximize)
        self._ready(maximize=maximize, **own)


class LAMB(_Adaptive):
    """LAMB (You et al. 2020).  Adopt for "lamb"; biases and norms keep ratio 1."""

    kinds = ("lamb",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        **own: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self._ready(**own)


class Lion(RangeOptimizer):
    """Lion (Chen et al. 2023).  Adopt for "lion"."""

    kinds = ("lion",)
    state_names = (("exp_avg", "m"),)
    shared = ("betas",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **own: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self._ready(**own)

    def _options(self, group: dict[str, Any]) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        return {"beta1": beta1, "beta2": beta2}


class LARS(RangeOptimizer):
    """LARS (You, Gitman, Ginsburg 2017).  Adopt for "lars"; biases and norms keep ratio 1."""

    kinds = ("lars",)
    state_names = (("momentum_buffer", "m"),)
    shared = ("momentum", "trust_coefficient", "eps")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
        **own: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
        }
        super().__init__(params, defaults)
        self._ready(**own)

    def _options(self, group: dict[str, Any]) -> dict[str, float]:
        return {name: group[name] for name in self.shared}

"""RangeOptimizer: what the optimizers share; a step over an adopted module is a few launches.

Hyper-parameters of a group are uploaded when they changed, before the launches; in a captured
graph the kernels read them from the device, so call ``sync()`` before a replay after a scheduler
moved them.  ``zero_grad`` clears ranges and keeps the views; where somebody else set gradients to
None, ``step`` takes the new ones over, and a parameter without a gradient is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from typing import Any

import torch

from plan import PlanError
from rangeops.launch.graph import Graph
from rangeops.optim.step import OptimizerStep
from rangeops.torch import checkpoint
from rangeops.torch.adopt import Adopted, Slot, adopter_of
from rangeops.torch.guard import ParameterGuard


class RangeOptimizer(torch.optim.Optimizer):
    """What the optimizers share; see the module's docstring.

    Their own keyword arguments, beside torch's:
        clear_grad: the step leaves zero gradients behind; ``zero_grad`` then launches nothing,
            unless gradients were written since.
        clip_norm, clip_value: clip within the step; changeable by ``arena.scalars``.
        loss_scale: start the library's own device-side scaler with this scale;
            ``optimizer.scale(loss)`` multiplies by it.
        ema_decay, ema_warmup: of the average that ``adopt(..., ema=True)`` keeps.
        watch: look before every step whether the module is still the adopted one, three questions
            a parameter.  Without it a step costs the host a quarter (16 of 68 us for ResNet-50, 27
            of 109 for GPT-2; host of an H200, ``python -m bench --only trainer``), and parameters
            and gradients have to stay what ``adopt`` made of them: nobody finds out if not.

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
        watch: bool = True,
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
        self._clears = clear_grad
        self._cleared_at = adopted.writes()
        self._watches = watch
        self._scales = scaled = loss_scale is not None
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
        self._watch = ParameterGuard(adopted, type(self).__name__)
        self._freeze(frozenset())
        self._fill_state()
        self.sync()

    def _wanted_kinds(self) -> tuple[str, ...]:
        return self.kinds

    def _options(self, group: dict[str, Any]) -> dict[str, float]:
        """Return the scalars that one group sets for all: betas, eps, momentum ..."""
        raise NotImplementedError

    def _freeze(self, missing: frozenset[str]) -> None:
        if self._adopted.arena.capturing():
            raise RuntimeError(
                f"{type(self).__name__}: parameters without a gradient changed during a capture, "
                "expected the same as in the step before; run a warm-up step first"
            )
        groups = self._step.groups
        held = missing | self._never | self._watch.untrained
        groups.unfreeze("*")
        if held:
            groups.freeze(_named(held))
        self._skipped = missing

    # Hyper-parameters

    def _make_groups(self) -> None:
        """Give every param group two rows of multipliers: weights, and biases with norms."""
        by_id = {id(slot.param): slot for slot in self._adopted.slots}
        in_groups = [[by_id[id(p)] for p in group["params"]] for group in self.param_groups]
        self._slots = [slot for slots in in_groups for slot in slots]
        moved = {slot.name for slot in self._slots}
        self._never = frozenset(s.name for s in by_id.values() if s.name not in moved)
        for index, slots in list(enumerate(in_groups))[self._groups_made :]:
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

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run one step on torch's current stream; returns the closure's loss, if there is one.

        Raises:
            RuntimeError: the module left the arena; see ``adopt``.

        """
        if self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            return self._hooked(closure)
        return self._plain(closure)

    step.hooked = True  # type: ignore[attr-defined]
    # Torch would wrap ``step`` in its profiler's record, 25 of 91 us a step (ResNet-50, host of an
    # H200); with step hooks registered it is wrapped still, since torch runs them there.

    def _hooked(self, closure: Callable[[], Any] | None) -> Any:
        run = torch.optim.Optimizer.profile_hook_step(RangeOptimizer._plain)
        return run(self, closure)

    def _plain(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._watches:
            missing, retrained = self._watch.before_step()
            if retrained or missing != self._skipped:
                self._freeze(missing)
        self.sync()
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if scale is not None:
            self._adopted.scalar("grad_scale").copy_(scale.reshape(1))
        if found is not None:
            self._adopted.scalar("found_inf").copy_(found.reshape(1))
        arena = self._step.arena
        self._step(arena.current_stream() if arena.on_gpu else None)
        self._cleared_at = self._adopted.writes()
        return loss

    _step_supports_amp_scaling = True

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Multiply a loss by the present loss scale, which stays on the device."""
        return loss * self._adopted.scalar("loss_scale").to(loss.dtype).reshape(())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients at once; the views stay, whatever ``set_to_none`` says."""
        if self._watch.retrained():
            self._freeze(frozenset())
        clean = self._clears and self._cleared_at == self._adopted.writes()
        if not (clean and not self._skipped and self._watch.attached()):
            self._adopted.zero_grad()

    def status(self) -> Any:
        """Ask for step, skipped steps, scale and norm without stopping; see ``Status``."""
        return self._step.status()

    def capture(self) -> Graph:
        """Return a graph of the optimizer step alone."""
        self.sync()
        return self._step.capture()

    def averaged(self) -> AbstractContextManager[torch.nn.Module]:
        """Run the block with the averaged weights in the module."""
        return self._adopted.averaged()

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

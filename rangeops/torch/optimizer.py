"""RangeOptimizer: what the optimizers share; a step over an adopted module is a few launches.

Hyper-parameters of a group are uploaded when they changed, before the launches; in a captured
graph the kernels read them from the device, so call ``sync()`` before a replay after a scheduler
moved them.  ``zero_grad`` clears ranges and keeps the views; where other code set gradients to
None, ``step`` takes the new ones over, and a parameter without a gradient is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from plan import PlanError
from rangeops.launch.graph import Graph
from rangeops.optim.step import OptimizerStep
from rangeops.torch.adopt import Adopted, adopter_of
from rangeops.torch.checkpoint import Contents
from rangeops.torch.groups import ParamGroups
from rangeops.torch.guard import ParameterGuard


class RangeOptimizer(torch.optim.Optimizer):
    """The base of all optimizers over an adopted module, and of one's own.

    A subclass says three things and makes its defaults; this is all of Lion::

        class Lion(RangeOptimizer):
            kinds = ("lion",)
            state_names = (("exp_avg", "m"),)
            shared = ("betas",)

            def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, **own):
                defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
                super().__init__(params, defaults, **own)

    Attributes:
        kinds: names of the optimizers (as ``rangeops.optimizer`` declares them) for which the
            module may be adopted.
        state_names: torch's name of each moment, and the name of its tensor, "m" or "v".
        shared: hyper-parameters with one value for all groups; each is a scalar of the arena by
            its own name, "betas" is the pair beta1, beta2.  ``lr`` and ``weight_decay`` go by
            group, and are no part of it.

    Args:
        params: adopted parameters, or groups of them, as torch takes them.
        defaults: ``lr``, ``weight_decay`` and what ``shared`` names, for groups without their own.
        own: see ``bind``.

    Raises:
        PlanError: parameters that are not adopted, or adopted for another optimizer.
        TypeError, ValueError: an option that this library does not have.

    """

    kinds: tuple[str, ...] = ()
    state_names: tuple[tuple[str, str], ...] = ()
    shared: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], **own: Any) -> None:
        torch.optim.Optimizer.__init__(self, params, defaults)
        self.bind(**own)

    def bind(
        self,
        *,
        clear_grad: bool = False,
        loss_scale: float | None = None,
        ema_decay: float = 0.9999,
        watch: bool = True,
        **options: Any,
    ) -> None:
        """Bind the step; a subclass with a second base of torch's calls it behind that one's init.

        Args:
            clear_grad: the step leaves zero gradients behind; ``zero_grad`` then launches nothing,
                unless gradients were written since.
            loss_scale: start the library's own device-side scaler with this scale;
                ``optimizer.scale(loss)`` multiplies by it.
            ema_decay: of the average that ``adopt(..., ema=True)`` keeps.
            watch: check before every step that the module is still the adopted one, three
                questions a parameter.  Without it a step costs the host a quarter less (16 of 68 us
                for ResNet-50, 27 of 109 for GPT-2; host of an H200, ``python -m bench --only
                trainer``), but parameters and gradients that are no longer what ``adopt`` made of
                them go unnoticed.
            options: further arguments of ``OptimizerStep``: ``clip_norm``, ``clip_value``,
                ``ema_warmup``, ``maximize`` ...

        """
        self._adopted = self._adopter()
        self._clears, self._watches = clear_grad, watch
        self._cleared_at = self._adopted.writes()
        self._scales = scaled = loss_scale is not None
        self._step = OptimizerStep(
            self._adopted.arena,
            check=scaled,
            scaling=scaled,
            clear_grad=clear_grad,
            ema_decay=ema_decay,
            lr=1.0,
            weight_decay=1.0,
            loss_scale=loss_scale if scaled else 1.0,
            **options,
        )
        self._skipped: frozenset[str] = frozenset()
        name = type(self).__name__
        self._groups = ParamGroups(self._step, self._adopted, name, self.shared)
        self._groups.make(self.param_groups)
        self._watch = ParameterGuard(self._adopted, name)
        self._freeze(frozenset())
        self._fill_state()
        self.sync()

    def _adopter(self) -> Adopted:
        """Return what adopted the parameters, refusing a module adopted for another optimizer."""
        name = type(self).__name__
        adopted = adopter_of([p for group in self.param_groups for p in group["params"]])
        kind = adopted.arena.planned(name).config.kind.label
        if kind not in self.kinds:
            raise PlanError(
                f"{name}: the module was adopted for {kind}, expected {' or '.join(self.kinds)}; "
                "adopt it for that"
            )
        return adopted

    def _freeze(self, missing: frozenset[str]) -> None:
        """Leave parameters without a gradient alone, and those that are not trained."""
        if self._adopted.arena.capturing():
            raise RuntimeError(
                f"{type(self).__name__}: parameters without a gradient changed during a capture, "
                "expected the same as in the step before; run a warm-up step first"
            )
        self._groups.freeze(missing | self._watch.untrained)
        self._skipped = missing

    # Hyper-parameters

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of adopted parameters, as torch does; those held back so far move then."""
        super().add_param_group(param_group)
        if getattr(self, "_step", None) is None:
            return
        params = [p for group in self.param_groups for p in group["params"]]
        if adopter_of(params) is not self._adopted:
            raise PlanError("add_param_group: got parameters of another arena, expected this one's")
        self._groups.make(self.param_groups)
        self._freeze(self._skipped)
        self._fill_state()

    def sync(self) -> None:
        """Upload what changed in ``param_groups``; ``step`` does, a replayed graph needs it called.

        Raises:
            RuntimeError: something changed while the stream is being captured.
            ValueError: groups that differ where one value serves the whole model.

        """
        self._groups.sync(self.param_groups)

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
    # Else torch wraps ``step`` in its profiler's record, 25 of 91 us a step (ResNet-50, host of an
    # H200).  With step hooks it has to be wrapped, since torch runs the hooks there.

    def _hooked(self, closure: Callable[[], Any] | None) -> Any:
        """Step inside torch's wrapper, which runs the hooks."""
        run = torch.optim.Optimizer.profile_hook_step(RangeOptimizer._plain)
        return run(self, closure)

    def _plain(self, closure: Callable[[], Any] | None) -> Any:
        """Step outside torch's wrapper."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._watches:
            missing, retrained = self._watch.before_step()
            if retrained or missing != self._skipped:
                self._freeze(missing)
        self.sync()
        for name in ("grad_scale", "found_inf"):  # torch.amp.GradScaler sets them for the step
            value = getattr(self, name, None)
            if value is not None:
                self._adopted.scalar(name).copy_(value.reshape(1))
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
        """Ask for step, skipped steps, scale and norm as of now; does not wait, see ``Status``."""
        return self._step.status()

    def capture(self) -> Graph:
        """Return a graph of the optimizer step alone."""
        self.sync()
        return self._step.capture()

    def averaged(self) -> AbstractContextManager[torch.nn.Module]:
        """Run the block with the averaged weights in the module."""
        return self._adopted.averaged()

    # Checkpoints

    def _contents(self) -> Contents:
        """Return what checkpoints are made of."""
        return Contents(
            type(self).__name__,
            self._adopted,
            self._groups.slots,
            self.state_names,
            self.param_groups,
            self._scales,
        )

    def _fill_state(self) -> None:
        """Show the moments as ``optimizer.state``: views of the arena."""
        contents = self._contents()
        for slot in self._groups.slots:
            self.state[slot.param] = contents.views(slot)

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict of this optimizer: copies of logical tensors."""
        return self._contents().save()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this optimizer or of torch's, in place.

        Raises:
            ValueError: other groups, shapes, or steps that differ between parameters.

        """
        self._contents().load(state_dict)
        self._groups.sync(self.param_groups, anew=True)

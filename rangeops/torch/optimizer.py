"""RangeOptimizer: what the optimizers share; a step over an adopted module is a few launches.

Settings of a group are uploaded when they changed, before the launches; in a captured graph the
kernels read them from the device, so call ``sync()`` before a replay after a scheduler moved them.
``zero_grad`` clears ranges and keeps the views; a parameter whose gradient nothing has written
since, or whose gradient is None, rests in ``step``: it keeps weight, moments and step count, and
only its average moves.  ``rangeops.torch.gradients`` says when a gradient is present.

An optimizer drives its module's arena alone.  A new one over the same parameters begins anew, with
moments and steps zero, and closes the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from rangeops.launch.graph import Graph
from rangeops.torch.checkpoint import Contents
from rangeops.torch.driving import adopted_by, drive
from rangeops.torch.groups import ParamGroups
from rangeops.torch.guard import ParameterGuard
from rangeops.torch.loading import load
from rangeops.torch.settings import check_options


class RangeOptimizer(torch.optim.Optimizer):
    """The base of all optimizers over an adopted module, and of one's own.

    A subclass says three things and makes its defaults; this is all of Lion::

        class Lion(RangeOptimizer):
            kinds = ("lion",)
            state_names = (("exp_avg", "m"),)
            settings = ("betas", "maximize")

            def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, **own):
                defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
                super().__init__(params, defaults, **own)

    Attributes:
        kinds: names of the optimizers (as ``rangeops.optimizer`` declares them) for which the
            module may be adopted.
        state_names: torch's name of each moment, and the name of its tensor, "m" or "v".
        settings: what a group has beside ``lr`` and ``weight_decay``, each with a value of its own:
            settings of ``arena.groups`` by their names, "betas" for beta1 and beta2.  A scalar that
            is no such setting has one value for the model.

    Args:
        params: adopted parameters, or groups of them, as torch takes them.
        defaults: ``lr``, ``weight_decay`` and what ``settings`` names, for groups without it.
        own: see ``bind``.

    Raises:
        PlanError: parameters that are not adopted, or adopted for another optimizer, or of a module
            that another optimizer drives through other parameters.
        TypeError, ValueError: an option or a setting that this library does not have.

    """

    kinds: tuple[str, ...] = ()
    state_names: tuple[tuple[str, str], ...] = ()
    settings: tuple[str, ...] = ()

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
            watch: check before every step that the module is still the adopted one, and which
                gradients are present, four questions a parameter.  Without it a step costs the host
                a quarter as much (16 of 68 us for ResNet-50, 27 of 109 for GPT-2; host of an H200,
                ``python -m bench --only trainer``), but parameters and gradients that are no longer
                what ``adopt`` made of them go unnoticed, and every parameter that is trained when
                the optimizer is made counts as having a gradient.
            options: further arguments of ``OptimizerStep``: ``clip_norm``, ``clip_value``,
                ``ema_warmup``, ``maximize`` ...

        """
        name = type(self).__name__
        check_options(name, options)
        self._adopted = adopted_by(self)
        self._clears, self._watches = clear_grad, watch
        self._scales = scaled = loss_scale is not None
        self._groups = ParamGroups(self._adopted, name, self.settings, self.defaults)
        self._groups.check(self.param_groups)
        self._closed = ""
        self._step = drive(
            self,
            self._adopted,
            check=scaled,
            scaling=scaled,
            clear_grad=clear_grad,
            ema_decay=ema_decay,
            lr=1.0,
            weight_decay=1.0,
            loss_scale=loss_scale if scaled else 1.0,
            **options,
        )
        self._guard = ParameterGuard(self._adopted.slots, name)
        self._groups.make(self.param_groups)
        self._groups.rest(self._adopted.gradients.untrained())
        self._fill_state()

    def close(self) -> None:
        """Give the module free for another optimizer; this one steps no more."""
        self._close("it was closed, make a new one")

    def _close(self, why: str) -> None:
        self._closed = why
        self._step.close()

    def _check_open(self, what: str) -> None:
        """Refuse ``what`` of an optimizer that drives its module no more."""
        if self._closed:
            raise RuntimeError(f"{type(self).__name__}: got {what}, but {self._closed}")

    # Hyper-parameters

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of adopted parameters, as torch does; those held back so far move then.

        Raises:
            PlanError, ValueError: parameters or settings that do not fit; nothing is added then.

        """
        bound = getattr(self, "_step", None) is not None
        if bound:
            self._check_open("add_param_group()")
        super().add_param_group(param_group)
        if bound:
            try:
                self._groups.make(self.param_groups)
            except BaseException:
                self.param_groups.pop()
                raise
            self._fill_state()

    def sync(self) -> None:
        """Upload what changed in ``param_groups``; ``step`` does, a replayed graph needs it called.

        Parameters that were taken out of a group rest from then on, new ones move.

        Raises:
            RuntimeError: something changed while the stream is being captured.
            ValueError, PlanError: a setting that cannot be or has no effect, a foreign parameter.

        """
        self._check_open("sync()")
        self._groups.sync(self.param_groups)
        if self._groups.slots is not self._shown:
            self._fill_state()

    # Stepping

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run one step on torch's current stream; returns the closure's loss, if there is one.

        Raises:
            RuntimeError: the module left the arena, see ``adopt``; the optimizer is closed; or the
                averaged weights are in the module.
            ValueError, PlanError: see ``sync``.

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
        self._check_open("step()")
        loss, adopted, arena = None, self._adopted, self._adopted.arena
        arena.owner.check_live(type(self).__name__)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._watches:
            self._guard.check()
        self.sync()
        if self._watches:
            missing = adopted.gradients.missing(type(self).__name__)
            if missing is not self._groups.missing:
                self._groups.rest(missing)
        for name in ("grad_scale", "found_inf"):  # torch.amp.GradScaler sets them for the step
            value = getattr(self, name, None)
            if value is not None:
                adopted.scalar(name).copy_(value.reshape(1))
        self._step(arena.current_stream() if arena.on_gpu else None)
        if self._clears and self._watches:
            adopted.gradients.stepped()
        return loss

    _step_supports_amp_scaling = True

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Multiply a loss by the present loss scale, which stays on the device, in float32."""
        scale = self._adopted.scalar("loss_scale").reshape(())
        return loss.to(torch.promote_types(loss.dtype, torch.float32)) * scale

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all groups at once and keep the views.

        With ``set_to_none`` no parameter has a gradient then, and one whose gradient nothing writes
        before the next step rests in it.  Without, gradients that were present are zeros.
        """
        gradients = self._adopted.gradients
        if not (self._clears and self._watches and gradients.blank()):
            gradients.clear(self._groups.outside(self.param_groups), set_to_none)

    def status(self) -> Any:
        """Ask for step, skipped steps, scale and norm as of now; does not wait, see ``Status``."""
        return self._step.status()

    def capture(self) -> Graph:
        """Return a graph of the optimizer step alone; all that is trained has a gradient in it."""
        self.sync()
        self._groups.rest(self._adopted.gradients.untrained())
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
            self._groups.slots_of(self.param_groups),
            self.state_names,
            self.param_groups,
            self._scales,
        )

    def _fill_state(self) -> None:
        """Show moments and steps as ``optimizer.state``: views of the arena."""
        contents, self._shown = self._contents(), self._groups.slots
        for slot in contents.slots:
            self.state[slot.param] = contents.shown(slot)

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict of this optimizer: copies of logical tensors."""
        self._check_open("state_dict()")
        return self._contents().save()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this optimizer or of torch's, in place.

        The module's may be loaded before or after; averages, and masters of half weights, come out
        right both ways, see ``rangeops.torch.hooks``.

        Raises:
            ValueError: something is missing or does not fit; nothing is changed then.
            RuntimeError: inside ``averaged()``, during a capture, or of a closed optimizer.

        """
        self._check_open("load_state_dict()")
        load(self._contents(), self._groups, state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or pickled: the step is bound to its module's memory."""
        raise TypeError(
            f"{type(self).__name__}: got a copy or a pickle of the optimizer, expected neither; "
            "make one over the copied module, and pass state_dict() to its load_state_dict()"
        )

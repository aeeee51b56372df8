"""OptimizerStep: the whole step as a few bound launches, eager or in a graph.

    check_nan     one read of all gradients: found_inf, first non-finite tensor, value clip
                  (or grad_norm, fold_norms, total_norm: the same and the norms)
    begin_step    step + 1, coefficients of block and rows, clip, loss scale; moves the flag
    update        p, m, v, half copy, EMA, gradients cleared: one pass over the model

LARS puts ``trust_ratio`` before its update; LAMB's update is lamb_moments, fold_norms, trust_ratio,
lamb.  Mixed precision with Adam, fp16 gradients and EMA moves 40 bytes a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plan import OptimizerKind, PlanError
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.arena.groups import Groups
from rangeops.arena.status import Status
from rangeops.launch.graph import Graph
from rangeops.launch.launch import BoundLaunch
from rangeops.launch.op import REGISTRY


class OptimizerStep:
    """The optimizer of a plan, bound to its arena.

    >>> from plan import PlanConfig
    >>> from plan.models import mlp, plan_model
    >>> arena = Arena(plan_model(mlp((4, 3)), PlanConfig("adamw", half="fp16")), device="cpu")
    >>> step = OptimizerStep(arena, lr=1e-3, weight_decay=0.01, loss_scale=1024.0, clip_norm=1.0)
    >>> step()
    >>> arena.scalars.step, step.status().skipped_steps
    (1, 0)

    Args:
        arena: a planned arena; the plan's config names the optimizer, halves and EMA.
        check: look for non-finite gradients and skip such a step (default: with halves).
        scaling: move the loss scale by ``grad_scaling``'s rule (default: with fp16).
        clear_grad: leave zero gradients behind (default).
        accumulate: half gradients are gathered in FP32 by ``accumulate`` after each micro-batch.
        clip_value: clamp gradients at this value; ``scalars.clip_value`` changes it, 0 is off.
        clip_norm: clip the global norm at this; ``scalars.clip_norm`` changes it, 0 is off.
        norms: have ``scalars.grad_norm`` and ``ops.read_norms`` without clipping.
        decay: "l2" or "decoupled" where the optimizer has both.
        arguments: options (``bias_correction``, ``ema_warmup``, ``maximize``; LARS: ``nesterov``,
            ``lr_outside``, ``trust_clip``; LAMB: ``grad_averaging``, ``trust_clip``), and initial
            values of ``arena.scalars``.

    Raises:
        PlanError: no plan, or no trainable parameters.
        TypeError, ValueError: an option that the optimizer does not have, or a bad value.

    """

    def __init__(
        self,
        arena: Arena,
        *,
        check: bool | None = None,
        scaling: bool | None = None,
        clear_grad: bool = True,
        accumulate: bool = False,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        norms: bool = False,
        decay: str | None = None,
        **arguments: Any,
    ) -> None:
        plan = arena.plan
        if plan is None or plan.config.kind is OptimizerKind.NONE or not plan.weights():
            raise PlanError(
                "OptimizerStep: got an arena without trainable parameters, expected a plan for an "
                "optimizer; use PlanConfig('adamw', ...) and plan.parameter(...)"
            )
        kind, half = plan.config.kind, plan.config.half is not None
        if accumulate and not half:
            raise PlanError(
                "OptimizerStep: accumulate got True, the plan has no half gradients; FP32 "
                "gradients add up where they lie, leave it out"
            )
        adapts = ("trust_clip",) if "N" in kind.series else ()
        allowed = (*REGISTRY[kind.label].options, *adapts, "ema_warmup")
        self._options = {name: arguments.pop(name) for name in allowed if name in arguments}
        clips = {"clip_value": clip_value, "clip_norm": clip_norm}
        arena.scalars.set(**arguments, **{n: v for n, v in clips.items() if v is not None})
        self.arena = arena
        self.groups = Groups(arena)
        self._kind = kind
        self.half_grad = half and not accumulate
        self.launches: tuple[BoundLaunch, ...] = (
            *self._look(check, clip_value is not None, clip_norm is not None or norms),
            ops.begin_step.bind(
                arena,
                loss_scaling=plan.config.half == "fp16" if scaling is None else scaling,
                global_norm=clip_norm is not None or norms,
                **{n: v for n, v in self._options.items() if n in ops.begin_step.options},
            ),
            *self._update(clear_grad, half, {} if decay is None else {"decay": decay}),
        )
        self.accumulate = ops.accumulate_grad.bind(arena) if accumulate else None
        self._status = Status(arena)

    def _look(self, check: bool | None, clip: bool, norms: bool) -> list[BoundLaunch]:
        """Return the launches that read the gradients before the step begins."""
        arena, lars = self.arena, self._kind is OptimizerKind.LARS
        assert arena.plan is not None
        if check is None:
            check = arena.plan.config.half is not None
        out = []
        if clip or (check and not norms and not lars):
            out.append(ops.check_nan.bind(arena, clip=clip, half_grad=self.half_grad))
        if norms or lars:
            out.append(ops.grad_norm.bind(arena, weights=lars, half_grad=self.half_grad))
            out.append(ops.fold_norms.bind(arena, of="lars" if lars else "gradient"))
        if norms:
            out.append(ops.total_norm.bind(arena))
        return out

    def _update(self, clear_grad: bool, half: bool, decay: dict[str, Any]) -> list[BoundLaunch]:
        """Return the launches that move the weights; a sharded step has others."""
        arena, kind = self.arena, self._kind
        assert arena.plan is not None
        gradients = {"half_grad": self.half_grad, "clear_grad": clear_grad}
        out = []
        if kind is OptimizerKind.LAMB:
            out.append(ops.lamb_moments.bind(arena, **gradients))
            out.append(ops.fold_norms.bind(arena, of="lamb"))
        if kind in (OptimizerKind.LARS, OptimizerKind.LAMB):
            chosen = {n: v for n, v in self._options.items() if n in ops.trust_ratio.options}
            out.append(ops.trust_ratio.bind(arena, kind=kind.label, **chosen))
        fused = {} if kind is OptimizerKind.LAMB else gradients
        out.append(
            REGISTRY[kind.label].bind(
                arena, half_copy=half, ema=arena.plan.config.ema, **fused, **decay
            )
        )
        return out

    @property
    def nbytes(self) -> int:
        """Bytes that one step moves."""
        return sum(launch.nbytes for launch in self.launches)

    def __call__(self, stream: Any = None) -> None:
        """Run one step on ``stream`` (default: the framework's current one)."""
        for launch in self.launches:
            launch(stream)

    def status(self, stream: Any = None) -> Status:
        """Ask for step, skipped steps, scale and norm as of now; see ``Status``, waits not here."""
        self._status.post(stream)
        return self._status

    def capture(
        self,
        steps: int = 1,
        before: Sequence[Callable[..., Any]] = (),
        after: Sequence[Callable[..., Any]] = (),
    ) -> Graph:
        """Return a graph of ``steps`` steps, each between the caller's ``before`` and ``after``.

        Hyper-parameters, group multipliers and the loss scale may change between replays.
        """
        return Graph(self.arena, [*before, *self.launches, *after] * steps)

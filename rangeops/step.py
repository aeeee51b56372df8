"""OptimizerStep: the whole step as three bound launches, eager or in a graph.

    check_nan     one read of all gradients: found_inf, first non-finite tensor, value clip
    begin_step    step + 1, coefficients of block and rows, loss scale; moves the flag
    update        p, m, v, half copy, EMA, gradients cleared: one pass over the model

Mixed precision with Adam, fp16 gradients and EMA moves 40 bytes a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plan import OptimizerKind, PlanError
from rangeops import ops
from rangeops.arena import Arena
from rangeops.graph import Graph
from rangeops.groups import Groups
from rangeops.op import REGISTRY


class OptimizerStep:
    """The optimizer of a plan, bound to its arena.

    >>> from plan import PlanConfig
    >>> from plan.models import mlp, plan_model
    >>> arena = Arena(plan_model(mlp((4, 3)), PlanConfig("adamw", half="fp16")), device="cpu")
    >>> step = OptimizerStep(arena, lr=1e-3, weight_decay=0.01, loss_scale=1024.0)
    >>> step()
    >>> arena.scalars.step
    1

    Args:
        arena: a planned arena; the plan's config names the optimizer, halves and EMA.
        check: look for non-finite gradients and skip such a step (default: with halves).
        scaling: move the loss scale by ``grad_scaling``'s rule (default: with fp16).
        clear_grad: leave zero gradients behind (default).
        clip_value: clamp gradients at ``scalars.clip_value``, in the check's pass.
        decay: "l2" or "decoupled" where the optimizer has both.
        options: bias_correction, ema_warmup, maximize.
        scalars: initial values of ``arena.scalars``.

    Raises:
        PlanError: no plan, no trainable parameters, or an optimizer with no op.

    """

    def __init__(
        self,
        arena: Arena,
        *,
        check: bool | None = None,
        scaling: bool | None = None,
        clear_grad: bool = True,
        clip_value: bool = False,
        decay: str | None = None,
        bias_correction: bool = True,
        ema_warmup: bool = False,
        maximize: bool = False,
        **scalars: float,
    ) -> None:
        plan = arena.plan
        if plan is None or plan.config.kind is OptimizerKind.NONE or not plan.weights():
            raise PlanError(
                "OptimizerStep: got an arena without trainable parameters, expected a plan for an "
                "optimizer; use PlanConfig('adamw', ...) and plan.parameter(...)"
            )
        name = plan.config.kind.label
        if name not in REGISTRY:
            raise PlanError(f"OptimizerStep: optimizer {name} has no op, expected one that has")
        half = plan.config.half is not None
        check = (half or clip_value) if check is None else check
        scaling = plan.config.half == "fp16" if scaling is None else scaling
        arena.scalars.set(**scalars)
        kind: dict[str, Any] = {} if decay is None else {"decay": decay}
        self.arena = arena
        self.groups = Groups(arena)
        self.begin = ops.begin_step.bind(
            arena,
            bias_correction=bias_correction,
            ema_warmup=ema_warmup,
            maximize=maximize,
            loss_scaling=scaling,
        )
        self.update = REGISTRY[name].bind(
            arena,
            half_grad=half,
            half_copy=half,
            ema=plan.config.ema,
            clear_grad=clear_grad,
            **kind,
        )
        first = [ops.check_nan.bind(arena, half_grad=half, clip=clip_value)] if check else []
        self.launches = (*first, self.begin, self.update)

    @property
    def nbytes(self) -> int:
        """Bytes that one step moves."""
        return sum(launch.nbytes for launch in self.launches)

    def __call__(self, stream: Any = None) -> None:
        """Run one step on ``stream`` (default: the framework's current one)."""
        for launch in self.launches:
            launch(stream)

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

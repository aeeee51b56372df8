"""OptimizerStep: the whole step as a few bound launches, eager or in a graph.

    check     check_nan: one read of all gradients for found_inf, the first non-finite tensor and
              the value clip (or grad_norm, fold_norms, total_norm: the same and the norms)
    begin     begin_step: step + 1, coefficients of block and rows, clip, loss scale; moves the flag
    update    p, m, v, half copy, EMA, gradients cleared: one pass over the model

LARS puts ``trust_ratio`` before its update; LAMB's update is lamb_moments, fold_norms, trust_ratio,
lamb.  Mixed precision with Adam, fp16 gradients and EMA moves 40 bytes a parameter.

A step drives its arena until it is closed: moments, steps and averages are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from plan import MemoryPlan, OptimizerKind, PlanError
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.arena.status import Status
from rangeops.device.streams import handle_of
from rangeops.launch.graph import Graph
from rangeops.launch.launch import BoundLaunch
from rangeops.launch.op import REGISTRY
from rangeops.launch.reference import decays_of, default_of
from rangeops.optim.gather import Several, accumulates, gathering

Update = Callable[[bool, bool], Iterable[BoundLaunch]]
"""What binds the launches that move the weights, from half_grad and clear_grad."""


class OptimizerStep:
    """The optimizer of a plan, bound to its arena; a graph takes it like any launch.

    >>> from plan import PlanConfig
    >>> from plan.models import mlp, plan_model
    >>> arena = Arena(plan_model(mlp((4, 3)), PlanConfig("adamw", half="fp16")), device="cpu")
    >>> step = OptimizerStep(arena, lr=1e-3, weight_decay=0.01, loss_scale=1024.0, clip_norm=1.0)
    >>> step()
    >>> arena.scalars.step, step.status().skipped_steps
    (1, 0)

    Args:
        arena: a planned arena; the plan's config names the optimizer, halves and EMA.
        resume: go on with the arena's moments, steps and averages (True), or begin anew: zeros, the
            average as the weights (default; behind ``rangeops.load`` it has to be said).
        check: look for non-finite gradients and skip such a step (default: with halves).
        scaling: move the loss scale by ``grad_scaling``'s rule (default: with fp16).
        clear_grad: leave zero gradients behind (default).
        accumulate: half gradients are gathered in FP32 by ``accumulate`` after each micro-batch
            (default: where the plan has ``accumulate=True``).
        clip_value: clamp gradients at this value; ``scalars.clip_value`` changes it, 0 is off.
        clip_norm: clip the global norm at this; ``scalars.clip_norm`` changes it, 0 is off.
        norms: have ``scalars.grad_norm`` and ``ops.read_norms`` without clipping.
        decay: "l2" or "decoupled" where the optimizer has both.
        update: what binds other launches to move the weights, from half_grad and clear_grad
            (default: the optimizer's own, over all parameters).
        arguments: options (``bias_correction``, ``ema_warmup``, ``maximize``; LARS: ``nesterov``,
            ``lr_outside``, ``trust_clip``; LAMB: ``grad_averaging``, ``trust_clip``), and initial
            values of ``arena.scalars``.

    Attributes:
        check, begin, update: the launches that read the gradients, that turn hyper-parameters into
            coefficients, and that move the weights; ``launches`` is the three one after the other.
        accumulate: the launch for after each micro-batch, None unless asked for.
        half_grad: whether the step reads half gradients.
        norms: whether the step takes the gradients' norms.
        groups: ``arena.groups``.

    Raises:
        PlanError: no plan, no trainable parameters, or another step drives the arena.
        TypeError, ValueError: an option that the optimizer does not have, or a bad value.

    """

    def __init__(
        self,
        arena: Arena,
        *,
        resume: bool | None = None,
        check: bool | None = None,
        scaling: bool | None = None,
        clear_grad: bool = True,
        accumulate: bool | None = None,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        norms: bool = False,
        decay: str | None = None,
        update: Update | None = None,
        **arguments: Any,
    ) -> None:
        plan = _trainable(arena)
        half = plan.config.half
        accumulate = accumulates(plan, accumulate)
        self.arena, self._plan, self._kind = arena, plan, plan.config.kind
        self._halves = plan.series_range("A").size > 0  # none in a plan of biases alone
        self.half_grad = self._halves and not accumulate
        self.norms = norms or clip_norm is not None
        self._options = self._taken_from(arguments, decay)
        clips = {"clip_value": clip_value, "clip_norm": clip_norm}
        values = arguments | {n: v for n, v in clips.items() if v is not None}
        arena.scalars.check(**values)
        self.groups = arena.groups
        check = half is not None if check is None else check
        self.check = tuple(self._check(check, clip_value is not None))
        scaling = half == "fp16" if scaling is None else scaling
        self.begin = (self._begin(scaling),)
        self.update = tuple((update or self._update)(self.half_grad, clear_grad))
        self.launches = (*self.check, *self.begin, *self.update)
        self.accumulate = Several(gathering(arena, plan)) if accumulate else None
        self._status = Status(arena)
        self._enqueue = tuple(launch.enqueue for launch in self.launches)
        self._current = arena.backend.stream_reader(arena.framework)
        self._closed = False
        self._drive(values, self._all_options(scaling), resume)

    def __repr__(self) -> str:
        """Return the optimizer, halves and EMA, the launches, and what a step moves."""
        names = ", ".join(launch.binding.op.name for launch in self.launches)
        what = self._plan.config.half or "fp32"
        what += ", ema" if self._plan.config.ema else ""
        return (
            f"<OptimizerStep of {self._kind.label} ({what}) on {self.arena.device}: {names}; "
            f"{self.nbytes:,} bytes a step>"
        )

    def _drive(self, values: dict[str, Any], options: dict[str, Any], resume: bool | None) -> None:
        """Take the arena over, and write the initial values of scalars."""
        scalars = self.arena.scalars
        self.arena.owner.take(self.arena, self, options, resume)
        if not resume:
            values.setdefault("hysteresis_tracker", values.get("hysteresis", scalars.hysteresis))
        scalars.set(**values)

    def _taken_from(self, arguments: dict[str, Any], decay: str | None) -> dict[str, Any]:
        """Take the options out of ``arguments``, which leaves initial values of scalars there."""
        op = REGISTRY[self._kind.label]
        adapts = ("trust_clip",) if "N" in self._kind.series else ()
        allowed = (*op.options, *adapts, "ema_warmup")
        options = {name: arguments.pop(name) for name in allowed if name in arguments}
        if decay is not None:
            known = decays_of(op)
            if decay not in known:
                raise ValueError(
                    f"OptimizerStep: decay got {decay!r}, {op.name} has "
                    f"{' and '.join(map(repr, known)) or 'none'}; leave it out, or plan another "
                    "optimizer"
                )
            options["decay"] = decay
        return options

    def _all_options(self, scaling: bool) -> dict[str, Any]:
        """Return every option that a run goes by, chosen or by default."""
        op = REGISTRY[self._kind.label]
        names = (*op.options, "trust_clip", "ema_warmup")
        chosen = {name: bool(self._options.get(name, default_of(op, name))) for name in names}
        if "decay" in self._options:
            chosen["decoupled"] = self._options["decay"] == "decoupled"
        return chosen | {"scaling": scaling}

    def _chosen(self, op: Any) -> dict[str, Any]:
        """Return those of the options that an op takes."""
        return {name: value for name, value in self._options.items() if name in op.options}

    def _check(self, check: bool, clip: bool) -> Iterator[BoundLaunch]:
        """Bind what reads the gradients before the step begins."""
        arena, lars = self.arena, self._kind is OptimizerKind.LARS
        if clip or (check and not self.norms and not lars):
            yield ops.check_nan.bind(arena, clip=clip, half_grad=self.half_grad)
        if self.norms or lars:
            yield ops.grad_norm.bind(arena, weights=lars, half_grad=self.half_grad)
            yield ops.fold_norms.bind(arena, of="lars" if lars else "gradient")
        if self.norms:
            yield ops.total_norm.bind(arena)

    def _begin(self, scaling: bool) -> BoundLaunch:
        """Bind what turns hyper-parameters into coefficients; the kind of decay is one of them."""
        chosen = self._chosen(ops.begin_step)
        if "decay" in self._options:
            chosen["decay"] = self._options["decay"]
        return ops.begin_step.bind(
            self.arena, loss_scaling=scaling, global_norm=self.norms, **chosen
        )

    def _update(self, half_grad: bool, clear_grad: bool) -> Iterator[BoundLaunch]:
        """Bind what moves all weights."""
        arena, kind, config = self.arena, self._kind, self._plan.config
        gradients: dict[str, Any] = {"half_grad": half_grad, "clear_grad": clear_grad}
        if kind is OptimizerKind.LAMB:
            yield ops.lamb_moments.bind(arena, **gradients)
            yield ops.fold_norms.bind(arena, of="lamb")
        if kind in (OptimizerKind.LARS, OptimizerKind.LAMB):
            chosen = self._chosen(ops.trust_ratio)
            whose: Literal["lars", "lamb"] = "lars" if kind is OptimizerKind.LARS else "lamb"
            yield ops.trust_ratio.bind(arena, kind=whose, **chosen)
        fused = {} if kind is OptimizerKind.LAMB else gradients
        yield REGISTRY[kind.label].bind(arena, half_copy=self._halves, ema=config.ema, **fused)

    @property
    def nbytes(self) -> int:
        """Bytes that one step moves."""
        return sum(launch.nbytes for launch in self.launches)

    def __call__(self, stream: Any = None) -> None:
        """Run one step on ``stream`` (default: the framework's current one).

        Raises:
            RuntimeError: the step is closed, or averaged weights are swapped in.

        """
        self.ready()
        handle = self._current() if stream is None else handle_of(stream)
        for enqueue in self._enqueue:
            enqueue(handle)

    def ready(self) -> None:
        """Refuse a step that must not run; a graph asks before every replay.

        Raises:
            RuntimeError: the step is closed, or averaged weights are swapped in.

        """
        if self._closed:
            raise RuntimeError(
                "OptimizerStep: got a step after close(), expected it before; use the arena's "
                "present driver, or make one with resume=True"
            )
        self.arena.owner.check_live("OptimizerStep")

    def close(self) -> None:
        """Give the arena free for another driver; this one steps no more."""
        self._closed = True
        self.arena.owner.leave(self)

    def __reduce__(self) -> Any:
        """Refuse to be copied or pickled: its launches are bound to its arena's memory."""
        raise TypeError(
            "OptimizerStep: got a copy or a pickle, expected neither; copy or save the arena, and "
            "make a step of it with resume=True"
        )

    def status(self, stream: Any = None) -> Status:
        """Ask for step, skipped steps, scale and norm as of now; does not wait, see ``Status``."""
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
        return Graph(self.arena, [*before, self, *after] * steps)


def _trainable(arena: Arena) -> MemoryPlan:
    """Return the plan of an arena, refusing one that trains nothing."""
    plan = arena.plan
    if plan is None or plan.config.kind is OptimizerKind.NONE or not plan.weights():
        raise PlanError(
            "OptimizerStep: got an arena without trainable parameters, expected a plan for an "
            "optimizer; use PlanConfig('adamw', ...) and plan.parameter(...)"
        )
    return plan

"""report: norm, max-abs and count of non-finite values of weight and gradient, by parameter name.

One read per range; results stay in the arena until they are read.  A graph takes ``Report.measure``
or the report's ``launches``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from plan import OptimizerKind, PlanError
from rangeops import ops
from rangeops.arena.arena import Arena


@dataclass(frozen=True)
class Row:
    """What is known of one parameter; norms and maxima are over the finite elements."""

    name: str
    weight_norm: float
    weight_max: float
    weight_nonfinite: int
    gradient_norm: float
    gradient_max: float
    gradient_nonfinite: int


class Report:
    """The report of one arena, bound: ``measure`` launches, ``read`` waits and returns.

    >>> from plan.models import mlp, plan_model
    >>> arena = Arena(plan_model(mlp((2, 2))), device="cpu")
    >>> arena["layers.0.weight"] = 1.0
    >>> report = Report(arena)
    >>> report.measure()
    >>> report.read()["layers.0.weight"].weight_norm
    2.0

    Args:
        arena: a planned arena.
        half_grad: read the half gradients of weights (default: where the plan has them).

    Gradients are reported as they lie; with a loss scale they carry it.

    Raises:
        PlanError: no plan or no parameters.

    """

    def __init__(self, arena: Arena, half_grad: bool | None = None) -> None:
        plan = arena.plan
        if plan is None or not plan.weights():
            raise PlanError(
                "report: got an arena without planned parameters, expected a plan with some; "
                "announce them with plan.parameter(...)"
            )
        self.arena, self._plan = arena, plan
        half = plan.series_range("A").size > 0 if half_grad is None else half_grad
        trained = plan.config.kind is not OptimizerKind.NONE
        weights = [
            ops.tensor_stats.bind(arena, plan.series_range("W")),
            ops.fold_norms.bind(arena, of="weight_report"),
        ]
        gradients = [
            ops.tensor_stats.bind(arena, half_grad=half),
            ops.fold_norms.bind(arena, of="gradient_report"),
        ]
        self.launches = (*weights, *(gradients if trained else ()))

    def __repr__(self) -> str:
        """Return of how many parameters, and whether gradients are among it."""
        count = len(self._plan.weights())
        what = "weights and gradients" if len(self.launches) > 2 else "weights"
        return f"<Report of {what} of {count} parameters on {self.arena.device}>"

    def measure(self, stream: Any = None) -> None:
        """Measure on ``stream`` (default: the framework's current one); waits for nothing."""
        for launch in self.launches:
            launch(stream)

    def read(self) -> dict[str, Row]:
        """Return what the last measurement found, by parameter name; waits for the device."""
        sums = [ops.read_sums(self.arena, of) for of in ("weight_report", "gradient_report")]
        (w2, w_max, w_bad), (g2, g_max, g_bad) = sums
        columns = (np.sqrt(w2), w_max, w_bad, np.sqrt(g2), g_max, g_bad)
        out = {}
        for tensor, values in zip(self._plan.weights(), np.array(columns).T, strict=True):
            a, b, c, d, e, f = values.tolist()
            out[tensor.name] = Row(tensor.name, a, b, int(c), d, e, int(f))
        return out


def report(arena: Arena) -> dict[str, Row]:
    """Measure weights and gradients of ``arena`` and return a row per parameter, by name."""
    bound = Report(arena)
    bound.measure()
    return bound.read()

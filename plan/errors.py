"""PlanError: what the planner says when a request cannot be laid out."""


class PlanError(ValueError):
    """A plan that cannot be: one sentence with subject, got, expected and remedy.

    >>> from plan import PlanConfig
    >>> PlanConfig(half="fp8")
    Traceback (most recent call last):
    plan.errors.PlanError: PlanConfig: half got 'fp8', expected 'fp16', 'bf16' or None
    """

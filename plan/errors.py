"""PlanError: what the planner says when a request cannot be laid out."""


class PlanError(ValueError):
    """A plan that cannot be: one sentence with subject, got, expected and remedy."""

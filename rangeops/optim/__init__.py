"""optim: whole optimizer steps, and reports by tensor, out of range ops."""

from rangeops.optim.step import OptimizerStep

__all__ = ["OptimizerStep"]

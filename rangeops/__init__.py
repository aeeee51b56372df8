"""rangeops: a whole training step as a handful of launches over byte ranges of one arena."""

from plan import DType, MemoryPlan, PlanConfig, PlanError, Range, Region
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.arena.groups import Groups
from rangeops.arena.sparse import write_kept
from rangeops.launch.graph import Graph
from rangeops.launch.op import REGISTRY, RangeOp, range_op
from rangeops.optim.step import OptimizerStep

__all__ = [
    "REGISTRY",
    "Arena",
    "DType",
    "Graph",
    "Groups",
    "MemoryPlan",
    "OptimizerStep",
    "PlanConfig",
    "PlanError",
    "Range",
    "RangeOp",
    "Region",
    "ops",
    "range_op",
    "write_kept",
]

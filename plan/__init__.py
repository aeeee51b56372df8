"""plan: where every byte of a training step lies.  Pure Python and NumPy, no CUDA."""

from plan.builder import Parameter
from plan.config import OptimizerKind, PlanConfig
from plan.dtensor import DTensor, slot_bytes
from plan.dtype import DType
from plan.errors import PlanError
from plan.memory_plan import MemoryPlan
from plan.ranges import Range
from plan.region import NUM_REGIONS, PARAMETER_KINDS, Region
from plan.scratch import GRANULE
from plan.segments import Segments, segments
from plan.serialize import digest, first_difference, from_json, to_json
from plan.variants import finalize_variants

__all__ = [
    "GRANULE",
    "NUM_REGIONS",
    "PARAMETER_KINDS",
    "DTensor",
    "DType",
    "MemoryPlan",
    "OptimizerKind",
    "Parameter",
    "PlanConfig",
    "PlanError",
    "Range",
    "Region",
    "Segments",
    "digest",
    "finalize_variants",
    "first_difference",
    "from_json",
    "segments",
    "slot_bytes",
    "to_json",
]

"""rangeops: a whole training step as a handful of launches over byte ranges of one arena.

The package ``plan`` belongs to rangeops and lies beside it; all of it is reachable from here.
"""

# ruff: noqa: E402

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def _refuse_another_plan() -> None:
    """Refuse somebody else's ``plan`` in the place of ours, before a line of it runs.

    Raises:
        ImportError: ``import plan`` gives a file or package other than the one beside rangeops.

    """
    own = Path(__file__).parent.parent / "plan" / "__init__.py"
    loaded = sys.modules.get("plan")
    found = getattr(find_spec("plan") if loaded is None else loaded.__spec__, "origin", None)
    found = getattr(loaded, "__file__", None) or found
    if found is None:
        raise ImportError(f"rangeops: found no package plan, expected {own}; install rangeops anew")
    file = Path(found)
    if file.resolve().with_suffix("") != own.resolve().with_suffix(""):
        remedy = "uninstall or rename that package" if file.stem == "__init__" else "rename it"
        raise ImportError(
            f"rangeops: import plan finds {file}, expected rangeops' own package {own}; {remedy}"
        )
    if own.is_file() and "MemoryPlan" not in own.read_text(encoding="utf-8", errors="replace"):
        raise ImportError(
            f"rangeops: another package named plan has overwritten {own}, expected rangeops' own; "
            "uninstall that package (pip uninstall plan), then install rangeops anew"
        )


_refuse_another_plan()

from plan import (
    GRANULE,
    NUM_REGIONS,
    PARAMETER_KINDS,
    DTensor,
    DType,
    MemoryPlan,
    OptimizerKind,
    Parameter,
    PlanConfig,
    PlanError,
    Range,
    Region,
    Segments,
    digest,
    finalize_variants,
    first_difference,
    from_json,
    models,
    segments,
    slot_bytes,
    to_json,
)
from plan.models import plan_model
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.arena.groups import Groups
from rangeops.arena.sparse import write_kept
from rangeops.checkpoint import Loaded, load, save
from rangeops.kernels.spec import Operand, read, updated, written
from rangeops.launch.graph import Graph
from rangeops.launch.op import REGISTRY, RangeOp, range_op
from rangeops.ops._elementwise import elementwise_op
from rangeops.ops._update import optimizer
from rangeops.optim.averages import averaged
from rangeops.optim.report import Report, report
from rangeops.optim.step import OptimizerStep
from rangeops.verify import verify_op

__all__ = [
    "GRANULE",
    "NUM_REGIONS",
    "PARAMETER_KINDS",
    "REGISTRY",
    "Arena",
    "DTensor",
    "DType",
    "Graph",
    "Groups",
    "Loaded",
    "MemoryPlan",
    "Operand",
    "OptimizerKind",
    "OptimizerStep",
    "Parameter",
    "PlanConfig",
    "PlanError",
    "Range",
    "RangeOp",
    "Region",
    "Report",
    "Segments",
    "averaged",
    "digest",
    "elementwise_op",
    "finalize_variants",
    "first_difference",
    "from_json",
    "load",
    "models",
    "ops",
    "optimizer",
    "plan_model",
    "range_op",
    "read",
    "report",
    "save",
    "segments",
    "slot_bytes",
    "to_json",
    "updated",
    "verify_op",
    "write_kept",
    "written",
]

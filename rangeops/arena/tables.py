"""tables: what the optimizer's kernels look up: segments, groups, chunks and folds of a plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from plan import MemoryPlan
from plan.chunks import chunks_of
from plan.region import WEIGHT_KINDS
from plan.scratch import GROUP_FLOATS, MAX_GROUPS, STATE_OF
from plan.segments import weight_segments

DECAY, NO_DECAY = 0, 1
"""The groups that every plan has: weights; biases and norms."""

GROUPS = STATE_OF["groups"].tensor
GROUP_OF = STATE_OF["group_of"].tensor
"""Names of the tensors that ``Groups`` writes too."""

_UNUSED = slice(1, 3)
"""Columns of a group's row that "no_decay" multiplies by 0: weight decay, and adapt."""


def tables_of(plan: MemoryPlan) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tables of a finalized plan by tensor name, none where it has no parameters."""
    if GROUPS not in plan.tensors:
        return {}
    segments = weight_segments(plan)
    groups = np.ones((MAX_GROUPS, GROUP_FLOATS), np.float32)
    groups[NO_DECAY, _UNUSED] = 0.0
    group_of = [DECAY if t.region.kind in WEIGHT_KINDS else NO_DECAY for t in segments.tensors]
    chunks, folds, fold_of = chunks_of(segments.first)
    values = {
        "segments": segments.rows.astype(np.int32),
        "groups": groups,
        "group_of": np.array(group_of, np.int32),
        "chunks": chunks,
        "folds": folds,
        "fold_of": fold_of,
    }
    return {STATE_OF[argument].tensor: table for argument, table in values.items()}

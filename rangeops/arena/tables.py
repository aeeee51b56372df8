"""tables: what the optimizer's kernels look up: segments, groups, chunks and folds of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from plan import DTensor, MemoryPlan
from plan.chunks import chunks_of
from plan.region import WEIGHT_KINDS
from plan.scratch import FIXED, GROUP, GROUP_FLOATS, OWN_GROUPS, STATE_OF, TRAINED
from plan.segments import weight_segments

DECAY, NO_DECAY = 0, 1
"""The groups that every plan has: weights; biases and norms."""

GROUPS, GROUP_OF, LIVE, STEPS = (
    STATE_OF[n].tensor for n in ("groups", "group_of", "live", "steps")
)
"""Names of the tensors that ``Groups``, scalars and checkpoints write too."""

FOLLOWS = {name: 1.0 if name in ("lr", "weight_decay", "adapt") else np.nan for name in GROUP}
"""The settings of a group that sets none for itself, by name."""

UNDECAYED = FOLLOWS | {"weight_decay": 0.0, "adapt": 0.0}
"""Those of biases and norms."""


def group_row(settings: Mapping[str, float]) -> np.ndarray[Any, Any]:
    """Return a group's row of the table, float32."""
    row = np.zeros(GROUP_FLOATS, np.float32)
    row[: len(GROUP)] = [settings[name] for name in GROUP]
    return row


def group_of(tensors: Iterable[DTensor]) -> np.ndarray[Any, Any]:
    """Return the row of the plan's own group of every weight, int32."""
    rows = [DECAY if t.region.kind in WEIGHT_KINDS else NO_DECAY for t in tensors]
    return np.array(rows, np.int32)


def tables_of(plan: MemoryPlan) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tables of a finalized plan by tensor name, none where it has no parameters."""
    if GROUPS not in plan.tensors:
        return {}
    segments = weight_segments(plan)
    count = len(segments.tensors)
    groups = np.tile(group_row(FOLLOWS), (OWN_GROUPS + count, 1))
    groups[NO_DECAY] = group_row(UNDECAYED)
    fixed = [plan.is_frozen(t.name) for t in segments.tensors]
    chunks, folds, fold_of = chunks_of(segments.first)
    values = {
        "segments": segments.rows.astype(np.int32),
        "groups": groups,
        "group_of": group_of(segments.tensors),
        "live": np.where(fixed, FIXED, TRAINED).astype(np.int32),
        "steps": np.zeros(count, np.int32),
        "chunks": chunks,
        "folds": folds,
        "fold_of": fold_of,
        "tensor_of": np.repeat(np.arange(count), np.diff(fold_of)).astype(np.int32),
    }
    return {STATE_OF[argument].tensor: table for argument, table in values.items()}

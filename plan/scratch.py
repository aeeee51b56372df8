"""What a plan keeps for its kernels: granule, coefficients, tables and sums, one table of it all.

``STATE`` says by which name a kernel takes each of them.  Those with a ``tensor`` are temporaries
that a plan with parameters makes for itself when it is finalized; the others are whole regions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from plan.region import Region

GRANULE = 128
"""Elements that one warp moves, four a thread; an FP32 slot is a whole number of them."""

BLOCK = ("one_minus_ema_decay", "start_ema")
"""The coefficients that all tensors share, in order: those of the average."""

BLOCK_FLOATS = 8

ROW = (
    *("grad", "keep", "weight_decay", "step_size"),
    *("one_minus_beta1", "one_minus_beta2", "inv_sqrt_bc2", "eps"),
    *("momentum", "one_minus_dampening", "look_gradient", "look_moment"),
    *("scale", "rate", "ratio", "trust"),
    *("lr", "inv_bc1", "beta1", "beta3"),
)
"""A tensor's coefficients, in order; ``rangeops.launch.coefficients`` says what each is and fills
them.  Kernels read them by fours.  What Adam reads is one sector of 32 bytes: with two the step of
ResNet-50's 161 tensors takes 1 % longer (H200)."""

ROW_FLOATS = 24
"""Floats from one row to the next, whole sectors."""

TRAINED, RESTS, FIXED = 1, 0, -1
"""A tensor's live word: it is trained and has a gradient of this step; it rests, and only its
average moves; it was planned as frozen, and nothing of it moves."""

GROUP = (
    "lr",
    "weight_decay",
    "adapt",
    "trust_coefficient",
    "one_minus_beta1",
    "one_minus_beta2",
    "beta1",
    "eps",
    "momentum",
    "one_minus_dampening",
    "nesterov",
    "maximize",
    "decoupled",
    "bias_correction",
    "grad_averaging",
)
"""A parameter group's settings, in order: lr and weight decay multiply the arena's scalars, adapt
is 0 or 1, any other stands for the arena's scalar or the step's option; NaN follows those."""

GROUP_FLOATS = 16

CHUNK_GRANULES = 16
"""Granules of one tensor that one warp sums, 8 KiB of FP32."""

FOLD_CHUNKS = 512
"""Chunk sums that one warp folds, 16 a lane."""

NORM_STRIDE = 128
"""Elements between neighbouring tensors of the N series: the slot of its four floats."""

PARTIALS = 3
"""Sums that one pass makes of a chunk: for norms two, for a report three."""

SUMS = {
    "gradient": (0, 1, -1),
    "lars": (0, 2, -1),
    "lamb": (2, 2, -1),
    "weight_report": (4, 3, 1),
    "gradient_report": (7, 3, 1),
}
"""By what the pass before was for: first row of the fold sums, quantities, and which of them is a
maximum (-1: none).  LARS has gradient and weight; LAMB direction and weight, in rows of its own,
so that the gradient's stays."""

TRAINED_ONLY = ("gradient", "lars", "gradient_report")
"""The sums of which only tensors count that are trained this step: others' gradients are old."""

SUM_ROWS = 10


class Counts(NamedTuple):
    """What the sizes of a plan's temporaries follow from, all of the trainable weights."""

    weights: int
    granules: int
    chunks: int
    folds: int


class State(NamedTuple):
    """One part of the plan's state that kernels may take.

    Attributes:
        argument: the kernel's name for it.
        element: "f4", "i4" or "f8", which is two FP32 elements.
        region: the region that it is, or lies in.
        tensor: the name of the temporary; "" for a whole region.
        shape: ``shape(counts)``: elements of the temporary.

    """

    argument: str
    element: str
    region: Region
    tensor: str = ""
    shape: Callable[[Counts], tuple[int, ...]] = lambda counts: ()


def _coefficients(n: Counts) -> tuple[int, ...]:
    return (BLOCK_FLOATS + ROW_FLOATS * n.weights,)


OWN_GROUPS = 2
"""Groups that every plan has; with one more a tensor there is room for all that can be in use."""


_FP32, _INT32 = Region.T_TEMP_FP32, Region.T_TEMP_INT32

STATE = (
    State("s", "f4", Region.S_SCALAR_FP32),
    State("k", "i4", Region.S_SCALAR_INT32),
    State("result", "f4", Region.R_RESULT),
    State("accumulated", "f4", Region.R_RESULT_ACCUMULATED),
    State("norms", "f4", Region.N_FC_WEIGHT),
    State("c", "f4", _FP32, "step.coefficients", _coefficients),
    State("groups", "f4", _FP32, "step.groups", lambda n: (OWN_GROUPS + n.weights, GROUP_FLOATS)),
    State("group_of", "i4", _INT32, "step.group_of_tensor", lambda n: (n.weights,)),
    State("live", "i4", _INT32, "step.live", lambda n: (n.weights,)),
    State("steps", "i4", _INT32, "step.steps", lambda n: (n.weights,)),
    State("segments", "i4", _INT32, "step.segments", lambda n: (n.granules,)),
    State("chunks", "i4", _INT32, "norm.chunks", lambda n: (n.chunks + 1,)),
    State("folds", "i4", _INT32, "norm.folds", lambda n: (n.folds + 1,)),
    State("fold_of", "i4", _INT32, "norm.fold_of_tensor", lambda n: (n.weights + 1,)),
    State("tensor_of", "i4", _INT32, "norm.tensor_of_fold", lambda n: (n.folds,)),
    State("partials", "f8", _FP32, "norm.partials", lambda n: (PARTIALS, n.chunks)),
    State("sums", "f8", _FP32, "norm.sums", lambda n: (SUM_ROWS, n.folds)),
    State("totals", "f8", _FP32, "norm.totals", lambda n: (-(-n.folds // FOLD_CHUNKS),)),
)
"""Every part of the state, in the order in which temporaries are laid out."""

STATE_OF = {state.argument: state for state in STATE}
"""The parts by the kernel's name."""

SCRATCH = frozenset(state.tensor for state in STATE if state.tensor)
"""Names of the temporaries that a plan makes for itself."""


def block_index(name: str) -> int:
    """Return the place of a shared coefficient."""
    return BLOCK.index(name)


def row_index(name: str) -> int:
    """Return the place of a coefficient in a tensor's row."""
    return ROW.index(name)


def group_index(name: str) -> int:
    """Return the place of a setting in a group's row."""
    return GROUP.index(name)

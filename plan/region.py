"""Region: the 68 regions of an arena in address order, one row each.

A region's name is the letter of its series (``plan.series``), then the kind of tensor.  The order
is the address order, so ``first..last`` of neighbours is one contiguous range.
Source: the region table of the Tech-Renaissance MemoryPlan (article 15 of its series).
"""

from __future__ import annotations

from enum import Enum, IntEnum
from functools import cache

from plan.errors import PlanError
from plan.series import PARAMETER_KINDS, WEIGHT_KINDS, parameter_series

__all__ = [
    "NUM_REGIONS",
    "PARAMETER_KINDS",
    "WEIGHT_KINDS",
    "Region",
    "When",
    "series_region",
    "series_regions",
]


class When(Enum):
    """Which option of PlanConfig enables a region; the value is said in the error message."""

    ALWAYS = "always"
    BN_FOLDED = "bn_folded=True"
    EMA = "ema=True"
    HALF = "half='fp16' or half='bf16'"
    EMA_HALF = "ema=True and half='fp16' or half='bf16'"
    NO_HALF = "half=None"
    FP32_GRADIENTS = "half=None or accumulate=True"


class Region(IntEnum):
    """A semantic region of the arena; its value is its place in address order.

    A row reads: kind, dtype ("half" is the plan's fp16 or bf16, "any" the caller's choice), the
    option that enables it, the value that a fresh model holds there.

    >>> Region.W_FC_WEIGHT < Region.W_DEEP_CONV
    True
    >>> Region.W_BN_WEIGHT.series, Region.W_BN_WEIGHT.initial
    ('W', 1.0)
    """

    kind: str
    dtype: str
    when: When
    initial: float

    def __new__(
        cls, kind: str = "", dtype: str = "", when: When = When.ALWAYS, initial: float = 0.0
    ) -> Region:
        """Make the member behind those above it; an empty row is another name of the first."""
        place = len(cls.__members__) if kind else 0
        member = int.__new__(cls, place)
        member._value_ = place
        member.kind, member.dtype, member.when, member.initial = kind, dtype, when, initial
        return member

    B_PREV_MEAN = "bn_stats", "fp32"
    B_PREV_VAR = "bn_stats", "fp32", When.ALWAYS, 1.0
    B_NEXT_MEAN = "bn_stats", "fp32"
    B_NEXT_VAR = "bn_stats", "fp32", When.ALWAYS, 1.0
    W_EQ_BIAS = "eq_bias", "fp32", When.BN_FOLDED
    W_EQ_SCALE = "eq_scale", "fp32", When.BN_FOLDED, 1.0
    W_BN_BIAS = "bn_bias", "fp32"
    W_BN_WEIGHT = "bn_weight", "fp32", When.ALWAYS, 1.0
    W_FC_BIAS = "fc_bias", "fp32"
    W_FC_WEIGHT = "fc_weight", "fp32"
    W_FIRST_CONV = "first_conv", "fp32"
    W_DEEP_CONV = "deep_conv", "fp32"
    E_BN_BIAS = "bn_bias", "fp32", When.EMA
    E_BN_WEIGHT = "bn_weight", "fp32", When.EMA, 1.0
    E_FC_BIAS = "fc_bias", "fp32", When.EMA
    E_FC_WEIGHT = "fc_weight", "fp32", When.EMA
    E_FIRST_CONV = "first_conv", "fp32", When.EMA
    E_DEEP_CONV = "deep_conv", "fp32", When.EMA
    E_FC_WEIGHT_FP16 = "fc_weight", "half", When.EMA_HALF
    E_FIRST_CONV_FP16 = "first_conv", "half", When.EMA_HALF
    E_DEEP_CONV_FP16 = "deep_conv", "half", When.EMA_HALF
    A_FC_WEIGHT = "fc_weight", "half", When.HALF
    A_FIRST_CONV = "first_conv", "half", When.HALF
    A_DEEP_CONV = "deep_conv", "half", When.HALF
    G_BN_BIAS = "bn_bias", "fp32"
    G_BN_WEIGHT = "bn_weight", "fp32"
    G_FC_BIAS = "fc_bias", "fp32"
    G_FC_WEIGHT = "fc_weight", "fp32", When.FP32_GRADIENTS
    G_FIRST_CONV = "first_conv", "fp32", When.FP32_GRADIENTS
    G_DEEP_CONV = "deep_conv", "fp32", When.FP32_GRADIENTS
    R_RESULT = "result", "fp32"
    G_FC_WEIGHT_FP16 = "fc_weight", "half", When.HALF
    G_FIRST_CONV_FP16 = "first_conv", "half", When.HALF
    G_DEEP_CONV_FP16 = "deep_conv", "half", When.HALF
    M_BN_BIAS = "bn_bias", "fp32"
    M_BN_WEIGHT = "bn_weight", "fp32"
    M_FC_BIAS = "fc_bias", "fp32"
    M_FC_WEIGHT = "fc_weight", "fp32"
    M_FIRST_CONV = "first_conv", "fp32"
    M_DEEP_CONV = "deep_conv", "fp32"
    V_BN_BIAS = "bn_bias", "fp32"
    V_BN_WEIGHT = "bn_weight", "fp32"
    V_FC_BIAS = "fc_bias", "fp32"
    V_FC_WEIGHT = "fc_weight", "fp32"
    V_FIRST_CONV = "first_conv", "fp32"
    V_DEEP_CONV = "deep_conv", "fp32"
    N_FC_WEIGHT = "fc_weight", "fp32"
    N_FIRST_CONV = "first_conv", "fp32"
    N_DEEP_CONV = "deep_conv", "fp32"
    I_A_LABEL = "label", "int32"
    I_A_DATA = "data", "any"
    I_B_LABEL = "label", "int32"
    I_B_DATA = "data", "any"
    F_FEATURE_FP32 = "feature", "fp32", When.NO_HALF
    F_GRAD_SLOT_FP32 = "grad_slot", "fp32", When.NO_HALF
    F_FEATURE_FP16 = "feature", "half", When.HALF
    F_GRAD_SLOT_FP16 = "grad_slot", "half", When.HALF
    S_SCALAR_FP32 = "scalar", "fp32"
    S_SCALAR_FP16 = "scalar", "half", When.HALF
    S_SCALAR_INT32 = "scalar", "int32"
    S_SCALAR_INT8 = "scalar", "int8"
    S_MASK = "mask", "int8"
    T_TEMP_FP32 = "temp", "fp32"
    T_TEMP_FP16 = "temp", "half"
    T_TEMP_INT32 = "temp", "int32"
    T_TEMP_INT8 = "temp", "int8"
    R_PREDICTED_LABEL = "predicted_label", "int32"
    R_RESULT_ACCUMULATED = "result", "fp32"
    DEFAULT = ()

    @property
    def series(self) -> str:
        """The letter before the first underscore."""
        return self.name[0]


NUM_REGIONS = len(Region) + 1
"""Length of a table indexed by region in the origin: the 68 regions and one end marker."""


@cache
def series_region(series: str, kind: str, half: bool = False) -> Region:
    """Return the region of ``series`` for parameters of ``kind``; A is half without saying so.

    Raises:
        PlanError: no series of parameters, or it has no such region.

    >>> series_region("G", "fc_weight", half=True).name
    'G_FC_WEIGHT_FP16'

    """
    row = parameter_series(series)
    half = half or not row.fp32
    kinds = row.kinds_of(half=half) if half in row.forms else ()
    if kind not in kinds:
        raise PlanError(
            f"series {series}: got kind {kind!r}{' in half' * half}, expected one of "
            f"{', '.join(kinds) or 'its FP32 regions; it has no half ones'}"
        )
    return Region[f"{series}_{kind.upper()}{row.half_suffix if half else ''}"]


def series_regions(series: str, part: str = "all", half: bool = False) -> tuple[Region, ...]:
    """Return the adjoining regions of a series, or of its part "bias" or "weight", in order.

    >>> [region.name for region in series_regions("N")]
    ['N_FC_WEIGHT', 'N_FIRST_CONV', 'N_DEEP_CONV']
    """
    kinds = parameter_series(series).kinds_of(part, half)
    return tuple(series_region(series, kind, half) for kind in kinds)

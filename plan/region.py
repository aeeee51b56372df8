"""Region: the 68 regions of an arena in address order, one row each.

Series (what the bytes are for) and kind (which parameters they belong to):

    B  BN statistics     W  master weights     E  EMA weights      A  half copy of W
    G  gradients         R  results            M  first moment     V  second moment
    N  norms             I  input buffers      F  feature maps     S  scalars, masks
    T  temporaries

The order is the address order, so ``first..last`` of neighbours is one contiguous range.
Source: the region table of the Tech-Renaissance MemoryPlan (article 15 of its series).
"""

from __future__ import annotations

from enum import Enum, IntEnum


class When(Enum):
    """Which option of PlanConfig enables a region; the value is said in the error message."""

    ALWAYS = "always"
    BN_FOLDED = "bn_folded=True"
    EMA = "ema=True"
    HALF = "half='fp16' or half='bf16'"
    EMA_HALF = "ema=True and half='fp16' or half='bf16'"
    NO_HALF = "half=None"


class Region(IntEnum):
    """A semantic region of the arena; its value is its place in address order.

    A row reads: place, kind, dtype ("half" is the plan's fp16 or bf16, "any" the caller's
    choice), the option that enables it, the value that a fresh model holds there.

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
        cls,
        place: int,
        kind: str = "",
        dtype: str = "",
        when: When = When.ALWAYS,
        initial: float = 0.0,
    ) -> Region:
        """Make the member from its row."""
        member = int.__new__(cls, place)
        member._value_ = place
        member.kind, member.dtype, member.when, member.initial = kind, dtype, when, initial
        return member

    B_PREV_MEAN = 0, "bn_stats", "fp32", When.ALWAYS, 0.0
    B_PREV_VAR = 1, "bn_stats", "fp32", When.ALWAYS, 1.0
    B_NEXT_MEAN = 2, "bn_stats", "fp32", When.ALWAYS, 0.0
    B_NEXT_VAR = 3, "bn_stats", "fp32", When.ALWAYS, 1.0
    W_EQ_BIAS = 4, "eq_bias", "fp32", When.BN_FOLDED, 0.0
    W_EQ_SCALE = 5, "eq_scale", "fp32", When.BN_FOLDED, 1.0
    W_BN_BIAS = 6, "bn_bias", "fp32", When.ALWAYS, 0.0
    W_BN_WEIGHT = 7, "bn_weight", "fp32", When.ALWAYS, 1.0
    W_FC_BIAS = 8, "fc_bias", "fp32", When.ALWAYS, 0.0
    W_FC_WEIGHT = 9, "fc_weight", "fp32", When.ALWAYS, 0.0
    W_FIRST_CONV = 10, "first_conv", "fp32", When.ALWAYS, 0.0
    W_DEEP_CONV = 11, "deep_conv", "fp32", When.ALWAYS, 0.0
    E_BN_BIAS = 12, "bn_bias", "fp32", When.EMA, 0.0
    E_BN_WEIGHT = 13, "bn_weight", "fp32", When.EMA, 1.0
    E_FC_BIAS = 14, "fc_bias", "fp32", When.EMA, 0.0
    E_FC_WEIGHT = 15, "fc_weight", "fp32", When.EMA, 0.0
    E_FIRST_CONV = 16, "first_conv", "fp32", When.EMA, 0.0
    E_DEEP_CONV = 17, "deep_conv", "fp32", When.EMA, 0.0
    E_FC_WEIGHT_FP16 = 18, "fc_weight", "half", When.EMA_HALF, 0.0
    E_FIRST_CONV_FP16 = 19, "first_conv", "half", When.EMA_HALF, 0.0
    E_DEEP_CONV_FP16 = 20, "deep_conv", "half", When.EMA_HALF, 0.0
    A_FC_WEIGHT = 21, "fc_weight", "half", When.HALF, 0.0
    A_FIRST_CONV = 22, "first_conv", "half", When.HALF, 0.0
    A_DEEP_CONV = 23, "deep_conv", "half", When.HALF, 0.0
    G_BN_BIAS = 24, "bn_bias", "fp32", When.ALWAYS, 0.0
    G_BN_WEIGHT = 25, "bn_weight", "fp32", When.ALWAYS, 0.0
    G_FC_BIAS = 26, "fc_bias", "fp32", When.ALWAYS, 0.0
    G_FC_WEIGHT = 27, "fc_weight", "fp32", When.ALWAYS, 0.0
    G_FIRST_CONV = 28, "first_conv", "fp32", When.ALWAYS, 0.0
    G_DEEP_CONV = 29, "deep_conv", "fp32", When.ALWAYS, 0.0
    R_RESULT = 30, "result", "fp32", When.ALWAYS, 0.0
    G_FC_WEIGHT_FP16 = 31, "fc_weight", "half", When.HALF, 0.0
    G_FIRST_CONV_FP16 = 32, "first_conv", "half", When.HALF, 0.0
    G_DEEP_CONV_FP16 = 33, "deep_conv", "half", When.HALF, 0.0
    M_BN_BIAS = 34, "bn_bias", "fp32", When.ALWAYS, 0.0
    M_BN_WEIGHT = 35, "bn_weight", "fp32", When.ALWAYS, 0.0
    M_FC_BIAS = 36, "fc_bias", "fp32", When.ALWAYS, 0.0
    M_FC_WEIGHT = 37, "fc_weight", "fp32", When.ALWAYS, 0.0
    M_FIRST_CONV = 38, "first_conv", "fp32", When.ALWAYS, 0.0
    M_DEEP_CONV = 39, "deep_conv", "fp32", When.ALWAYS, 0.0
    V_BN_BIAS = 40, "bn_bias", "fp32", When.ALWAYS, 0.0
    V_BN_WEIGHT = 41, "bn_weight", "fp32", When.ALWAYS, 0.0
    V_FC_BIAS = 42, "fc_bias", "fp32", When.ALWAYS, 0.0
    V_FC_WEIGHT = 43, "fc_weight", "fp32", When.ALWAYS, 0.0
    V_FIRST_CONV = 44, "first_conv", "fp32", When.ALWAYS, 0.0
    V_DEEP_CONV = 45, "deep_conv", "fp32", When.ALWAYS, 0.0
    N_FC_WEIGHT = 46, "fc_weight", "fp32", When.ALWAYS, 0.0
    N_FIRST_CONV = 47, "first_conv", "fp32", When.ALWAYS, 0.0
    N_DEEP_CONV = 48, "deep_conv", "fp32", When.ALWAYS, 0.0
    I_A_LABEL = 49, "label", "int32", When.ALWAYS, 0.0
    I_A_DATA = 50, "data", "any", When.ALWAYS, 0.0
    I_B_LABEL = 51, "label", "int32", When.ALWAYS, 0.0
    I_B_DATA = 52, "data", "any", When.ALWAYS, 0.0
    F_FEATURE_FP32 = 53, "feature", "fp32", When.NO_HALF, 0.0
    F_GRAD_SLOT_FP32 = 54, "grad_slot", "fp32", When.NO_HALF, 0.0
    F_FEATURE_FP16 = 55, "feature", "half", When.HALF, 0.0
    F_GRAD_SLOT_FP16 = 56, "grad_slot", "half", When.HALF, 0.0
    S_SCALAR_FP32 = 57, "scalar", "fp32", When.ALWAYS, 0.0
    S_SCALAR_FP16 = 58, "scalar", "half", When.HALF, 0.0
    S_SCALAR_INT32 = 59, "scalar", "int32", When.ALWAYS, 0.0
    S_SCALAR_INT8 = 60, "scalar", "int8", When.ALWAYS, 0.0
    S_MASK = 61, "mask", "int8", When.ALWAYS, 0.0
    T_TEMP_FP32 = 62, "temp", "fp32", When.ALWAYS, 0.0
    T_TEMP_FP16 = 63, "temp", "half", When.ALWAYS, 0.0
    T_TEMP_INT32 = 64, "temp", "int32", When.ALWAYS, 0.0
    T_TEMP_INT8 = 65, "temp", "int8", When.ALWAYS, 0.0
    R_PREDICTED_LABEL = 66, "predicted_label", "int32", When.ALWAYS, 0.0
    R_RESULT_ACCUMULATED = 67, "result", "fp32", When.ALWAYS, 0.0
    DEFAULT = 0

    @property
    def series(self) -> str:
        """The letter before the first underscore."""
        return self.name[0]


NUM_REGIONS = 69
"""Length of a table indexed by region in the origin: the 68 regions and one end marker."""

PARAMETER_KINDS = ("bn_bias", "bn_weight", "fc_bias", "fc_weight", "first_conv", "deep_conv")
"""Kinds of trainable parameters in address order; "bn" serves every norm, "fc_bias" any bias."""

WEIGHT_KINDS = PARAMETER_KINDS[3:]
"""The kinds that have a half copy and half gradients."""


def series_region(series: str, kind: str, half: bool = False) -> Region:
    """Return the region of ``series`` for parameters of ``kind``.

    >>> series_region("G", "fc_weight", half=True).name
    'G_FC_WEIGHT_FP16'
    """
    suffix = "_FP16" if half and series in "EG" else ""
    return Region[f"{series}_{kind.upper()}{suffix}"]

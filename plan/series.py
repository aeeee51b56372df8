"""The series of an arena, one row each: what the bytes are for, the letter of their regions' names.

Series of parameters have one region for each kind of parameter, in the order of PARAMETER_KINDS.
"""

from __future__ import annotations

from typing import NamedTuple

from plan.errors import PlanError

BIAS_KINDS = ("bn_bias", "bn_weight", "fc_bias")
"""Kinds of FP32 alone, without weight decay; "bn" serves every norm, "fc_bias" any bias."""

WEIGHT_KINDS = ("fc_weight", "first_conv", "deep_conv")
"""The kinds that have a half copy and half gradients."""

PARAMETER_KINDS = BIAS_KINDS + WEIGHT_KINDS
"""Kinds of trainable parameters in address order."""

PARTS = {"all": PARAMETER_KINDS, "bias": BIAS_KINDS, "weight": WEIGHT_KINDS}
"""The kinds of each part of a series that a range may be of."""


class Series(NamedTuple):
    """What one letter stands for.

    Attributes:
        letter: the first letter of the names of its regions.
        meaning: what lies there, in words.
        kinds: kinds of parameters that have such a tensor; none if it is no series of parameters.
        fp32: whether it has FP32 regions.
        half_suffix: what the names of its half regions end with; None if it has none.
        state: whether the optimizer decides if a parameter has it.

    """

    letter: str
    meaning: str
    kinds: tuple[str, ...] = ()
    fp32: bool = True
    half_suffix: str | None = None
    state: bool = False

    @property
    def forms(self) -> tuple[bool, ...]:
        """Whether half, for each form in which the series exists, FP32 first."""
        return (*([False] if self.fp32 else []), *([] if self.half_suffix is None else [True]))

    def kinds_of(self, part: str = "all", half: bool = False) -> tuple[str, ...]:
        """Return the kinds of ``part`` ("all", "bias" or "weight"); only weights have halves.

        Raises:
            PlanError: no such part.

        >>> SERIES["G"].kinds_of("bias"), SERIES["G"].kinds_of("bias", half=True)
        (('bn_bias', 'bn_weight', 'fc_bias'), ())

        """
        if part not in PARTS:
            raise PlanError(
                f"series {self.letter}: part got {part!r}, expected {', '.join(map(repr, PARTS))}"
            )
        own = WEIGHT_KINDS if half else self.kinds
        return tuple(kind for kind in PARTS[part] if kind in own)


_TABLE = (
    Series("B", "BN statistics"),
    Series("W", "weights", PARAMETER_KINDS),
    Series("E", "EMA weights", PARAMETER_KINDS, half_suffix="_FP16"),
    Series("A", "half copy of the weights", WEIGHT_KINDS, fp32=False, half_suffix=""),
    Series("G", "gradients", PARAMETER_KINDS, half_suffix="_FP16"),
    Series("R", "results"),
    Series("M", "first moments", PARAMETER_KINDS, state=True),
    Series("V", "second moments", PARAMETER_KINDS, state=True),
    Series("N", "norms", WEIGHT_KINDS, state=True),
    Series("I", "input buffers"),
    Series("F", "feature maps"),
    Series("S", "scalars, masks"),
    Series("T", "temporaries"),
)

SERIES = {series.letter: series for series in _TABLE}
"""Every series by its letter, in the order in which a parameter's tensors are announced."""

FP32_SERIES = "".join(s.letter for s in _TABLE if s.fp32 and s.kinds == PARAMETER_KINDS)
"""Letters of the series with an FP32 tensor for every parameter, at equal offsets in each."""

STATE_SERIES = "".join(s.letter for s in _TABLE if s.state)
"""Letters of what an optimizer may keep for a parameter."""


def parameter_series(letter: str) -> Series:
    """Return the row of a series of parameters.

    Raises:
        PlanError: there is no such series, or it is not one of parameters.

    """
    series = SERIES.get(letter)
    if series is None or not series.kinds:
        known = ", ".join(s.letter for s in _TABLE if s.kinds)
        raise PlanError(f"series: got {letter!r}, expected one of parameters: {known}")
    return series

"""PlanConfig, OptimizerKind: what a plan is made for decides which regions it has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from plan.dtensor import DType
from plan.errors import PlanError
from plan.region import Region, When


class OptimizerKind(Enum):
    """The optimizers, with the state series that each keeps for a parameter.

    >>> OptimizerKind.named("adamw").series
    'MV'
    """

    NONE = ("none", "")
    SGD = ("sgd", "")
    MOMENTUM = ("momentum", "M")
    NESTEROV = ("nesterov", "M")
    ADAM = ("adam", "MV")
    ADAMW = ("adamw", "MV")
    LARS = ("lars", "MN")
    LAMB = ("lamb", "MVN")
    LION = ("lion", "M")

    def __init__(self, label: str, series: str) -> None:
        self.label = label
        self.series = series

    @classmethod
    def named(cls, name: OptimizerKind | str) -> OptimizerKind:
        """Return the kind with this label; a kind returns itself.

        Raises:
            PlanError: no kind is named so.

        """
        for kind in cls:
            if name in (kind, kind.label):
                return kind
        names = ", ".join(kind.label for kind in cls)
        raise PlanError(f"PlanConfig: optimizer got {name!r}, expected one of {names}")


@dataclass(frozen=True)
class PlanConfig:
    """The options that enable regions.

    Attributes:
        optimizer: decides the moments and norms; "none" plans for inference, without gradients.
        half: "fp16", "bf16" or None: type of half copies, half gradients and half features.
        ema: keep an exponential moving average of the weights.
        bn_folded: keep equivalent bias and scale of BN folded into convolutions.

    Raises:
        PlanError: an option with an unknown value.

    >>> PlanConfig("adamw", half="fp16").half_dtype
    <DType.FP16: ('fp16', 2)>

    """

    optimizer: OptimizerKind | str = OptimizerKind.ADAMW
    half: str | None = None
    ema: bool = False
    bn_folded: bool = False

    def __post_init__(self) -> None:
        """Turn names into kinds and refuse unknown ones."""
        object.__setattr__(self, "optimizer", OptimizerKind.named(self.optimizer))
        if self.half not in (None, "fp16", "bf16"):
            raise PlanError(f"PlanConfig: half got {self.half!r}, expected 'fp16', 'bf16' or None")

    @property
    def kind(self) -> OptimizerKind:
        """The optimizer, always as an OptimizerKind."""
        return OptimizerKind.named(self.optimizer)

    @property
    def half_dtype(self) -> DType:
        """Type of the half regions (FP16 where the plan has none, for temporaries)."""
        return DType.BF16 if self.half == "bf16" else DType.FP16

    def enables(self, region: Region) -> bool:
        """Return whether tensors may lie in ``region``."""
        half = self.half is not None
        return {
            When.ALWAYS: True,
            When.BN_FOLDED: self.bn_folded,
            When.EMA: self.ema,
            When.HALF: half,
            When.EMA_HALF: self.ema and half,
            When.NO_HALF: not half,
        }[region.when]

    def series_of_parameter(self, half_kind: bool) -> tuple[tuple[str, bool], ...]:
        """Return the (series, half) pairs that a parameter has under this config.

        ``half_kind`` says whether the parameter is of a kind with half copies (WEIGHT_KINDS).
        """
        half = half_kind and self.half is not None
        trained = self.kind is not OptimizerKind.NONE
        moments = [(s, False) for s in self.kind.series if s != "N" or half_kind]
        return (
            ("W", False),
            *([("E", False)] if self.ema else []),
            *([("E", True)] if self.ema and half else []),
            *([("A", True)] if half else []),
            *([("G", False)] if trained else []),
            *([("G", True)] if trained and half else []),
            *moments,
        )

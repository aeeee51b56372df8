"""PlanConfig, OptimizerKind: what a plan is made for decides which regions it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plan.dtype import DType
from plan.errors import PlanError
from plan.region import Region, When, series_region
from plan.scalars import own_scalars
from plan.series import SERIES, STATE_SERIES, Series

_HALVES = tuple(dtype.label for dtype in DType if dtype.is_half)


class _Registry(type):
    """The type of OptimizerKind, by which the class itself can be iterated over."""

    def __iter__(cls) -> Iterator[OptimizerKind]:
        """Iterate over the kinds in the order of their registration."""
        return iter(tuple(_KINDS.values()))


@dataclass(frozen=True, eq=False, repr=False)
class OptimizerKind(metaclass=_Registry):
    """An optimizer by name, with the state series that it keeps for a parameter.

    There is one object a name, so kinds are compared by ``is``; ``for kind in OptimizerKind``
    iterates over all of them.  A file of one's own adds kinds by ``register``.

    Attributes:
        label: the name that PlanConfig takes.
        series: letters of what it keeps for a parameter: M, V, N (norms; of weights alone).
        scalars: FP32 scalars of its own, as (name, value in a fresh arena).

    >>> OptimizerKind.named("adamw").series
    'MV'

    """

    label: str
    series: str
    scalars: tuple[tuple[str, float], ...] = ()

    NONE: ClassVar[OptimizerKind]
    SGD: ClassVar[OptimizerKind]
    MOMENTUM: ClassVar[OptimizerKind]
    NESTEROV: ClassVar[OptimizerKind]
    ADAM: ClassVar[OptimizerKind]
    ADAMW: ClassVar[OptimizerKind]
    LARS: ClassVar[OptimizerKind]
    LAMB: ClassVar[OptimizerKind]
    LION: ClassVar[OptimizerKind]

    def __repr__(self) -> str:
        """Return the expression that gives this kind."""
        return f"OptimizerKind.named({self.label!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and unpickle as the one object of this name."""
        return OptimizerKind.named, (self.label,)

    @classmethod
    def named(cls, name: OptimizerKind | str) -> OptimizerKind:
        """Return the kind with this label; a kind returns itself.

        Raises:
            PlanError: no kind is named so.

        """
        kind = _KINDS.get(name.label if isinstance(name, OptimizerKind) else name)
        if kind is None or name not in (kind, kind.label):
            raise PlanError(
                f"PlanConfig: optimizer got {name!r}, expected one of {', '.join(_KINDS)}; "
                "register an own one by OptimizerKind.register"
            )
        return kind

    @classmethod
    def register(
        cls, label: str, *, series: str = "", scalars: Mapping[str, float] | None = None
    ) -> OptimizerKind:
        """Add a kind, for PlanConfig to take by its label; the same one again changes nothing.

        Args:
            label: an identifier.
            series: letters of STATE_SERIES, each once: what the optimizer keeps for a parameter.
            scalars: FP32 scalars of its own, name -> value in a fresh arena.

        Raises:
            PlanError: the label is taken by another kind, or is no identifier; letters that are
                no state series; names or values that scalars cannot have.

        >>> OptimizerKind.register("lion", series="M") is OptimizerKind.LION
        True

        """
        subject = f"OptimizerKind.register({label!r})"
        if not (isinstance(label, str) and label.isidentifier()):
            raise PlanError(f"{subject}: label expected an identifier; rename it")
        if len(set(series)) != len(series) or not set(series) <= set(STATE_SERIES):
            raise PlanError(
                f"{subject}: series got {series!r}, expected letters of {STATE_SERIES}, each once"
            )
        ordered = "".join(letter for letter in STATE_SERIES if letter in series)
        kind = cls(label, ordered, own_scalars(subject, scalars or {}))
        known = _KINDS.setdefault(label, kind)
        if (known.series, known.scalars) != (kind.series, kind.scalars):
            raise PlanError(
                f"{subject}: got series {ordered!r} and scalars {dict(kind.scalars)}, expected "
                f"{known.series!r} and {dict(known.scalars)} as at its first registration; take "
                "another label"
            )
        return known


_KINDS: dict[str, OptimizerKind] = {}
"""Every kind by its label."""

OptimizerKind.NONE = OptimizerKind.register("none")
OptimizerKind.SGD = OptimizerKind.register("sgd")
OptimizerKind.MOMENTUM = OptimizerKind.register("momentum", series="M")
OptimizerKind.NESTEROV = OptimizerKind.register("nesterov", series="M")
OptimizerKind.ADAM = OptimizerKind.register("adam", series="MV")
OptimizerKind.ADAMW = OptimizerKind.register("adamw", series="MV")
OptimizerKind.LARS = OptimizerKind.register("lars", series="MN")
OptimizerKind.LAMB = OptimizerKind.register("lamb", series="MVN")
OptimizerKind.LION = OptimizerKind.register("lion", series="M")


@dataclass(frozen=True)
class PlanConfig:
    """The options that enable regions.

    Attributes:
        optimizer: decides the moments and norms; "none" plans for inference, without gradients.
        half: "fp16", "bf16" or None: type of half copies, half gradients and half features.
        ema: keep an exponential moving average of the weights.
        accumulate: with halves keep FP32 gradients of weights too, in which ``accumulate_grad``
            gathers those of micro-batches; without it the half gradients are all there is, 4 bytes
            a parameter less.
        bn_folded: keep equivalent bias and scale of BN folded into convolutions.
        scalars: FP32 scalars of the caller's own, name -> value in a fresh arena, over those that
            the optimizer brings; kept as pairs sorted by name.

    Raises:
        PlanError: an option with an unknown value.

    >>> PlanConfig("adamw", half="fp16").half_dtype
    DType.FP16
    >>> PlanConfig("sgd", scalars={"gamma": 0.9}).own_scalars
    {'gamma': 0.9}

    """

    optimizer: OptimizerKind | str = OptimizerKind.ADAMW
    half: str | None = None
    ema: bool = False
    accumulate: bool = False
    bn_folded: bool = False
    scalars: Mapping[str, float] | tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        """Turn names into kinds, scalars into pairs, and refuse unknown ones."""
        kind = OptimizerKind.named(self.optimizer)
        given = own_scalars("PlanConfig", self.scalars)
        merged = own_scalars("PlanConfig", dict(kind.scalars) | dict(given))
        object.__setattr__(self, "optimizer", kind)
        object.__setattr__(self, "scalars", merged)
        if self.half not in (None, *_HALVES):
            known = ", ".join(map(repr, _HALVES))
            raise PlanError(f"PlanConfig: half got {self.half!r}, expected {known} or None")
        if self.accumulate and self.half is None:
            raise PlanError(
                "PlanConfig: accumulate got True without halves; FP32 gradients add up where they "
                "lie, leave it out"
            )

    @property
    def kind(self) -> OptimizerKind:
        """The optimizer, always as an OptimizerKind."""
        return OptimizerKind.named(self.optimizer)

    @property
    def own_scalars(self) -> dict[str, float]:
        """The scalars of the optimizer's and the caller's own, name -> value in a fresh arena."""
        return dict(self.scalars)

    @property
    def half_dtype(self) -> DType:
        """Type of the half regions (FP16 where the plan has none, for temporaries)."""
        return DType.FP16 if self.half is None else DType.named(self.half)

    def enables(self, region: Region) -> bool:
        """Return whether tensors may lie in ``region``."""
        half = self.half is not None
        when = region.when
        if when is When.ALWAYS:  # most regions
            return True
        return {
            When.BN_FOLDED: self.bn_folded,
            When.EMA: self.ema,
            When.HALF: half,
            When.EMA_HALF: self.ema and half,
            When.NO_HALF: not half,
            When.FP32_GRADIENTS: not half or self.accumulate,
        }[when]

    def series_of(self, kind: str) -> tuple[tuple[str, bool], ...]:
        """Return the (series, half) pairs that a parameter of ``kind`` has, its weight first.

        >>> PlanConfig("lars", half="bf16").series_of("fc_weight")
        (('W', False), ('A', True), ('G', True), ('M', False), ('N', False))
        """
        return tuple(
            (series.letter, half)
            for series in SERIES.values()
            for half in series.forms
            if kind in series.kinds_of(half=half) and self._keeps(series, kind, half)
        )

    def _keeps(self, series: Series, kind: str, half: bool) -> bool:
        """Return whether parameters have a tensor of ``series`` under this config."""
        if series.state:
            return series.letter in self.kind.series
        if series.letter == "G" and self.kind is OptimizerKind.NONE:
            return False
        return self.enables(series_region(series.letter, kind, half))

"""MemoryPlan: where every byte of a model lies.

Tensors are announced (``parameter()``, ``alloc_*()``), then ``finalize()`` walks the regions once
with one cursor and the layout is frozen.  Nothing here touches a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from plan import checks
from plan.baseline import ACCUMULATED, FP32_SCALARS, INT32_SCALARS, RESULTS
from plan.config import PlanConfig
from plan.dtensor import DTensor, DType, padded, sizes, slot_bytes
from plan.errors import PlanError
from plan.region import PARAMETER_KINDS, WEIGHT_KINDS, Region, series_region

GRANULE = 128
"""Elements that one warp moves, four a thread; an FP32 slot is a whole number of them."""

BLOCK_FLOATS = 16
"""Floats of the coefficient block that all tensors share."""

ROW_FLOATS = 8
"""Floats of a tensor's coefficient row."""

MAX_GROUPS = 64
GROUP_FLOATS = 4
"""A parameter group is a row of FP32 multipliers: lr, weight decay, two free."""

_ALLOC_SERIES = {
    "ema": "E",
    "half": "A",
    "grad": "G",
    "momentum": "M",
    "variance": "V",
    "norm": "N",
}


class Range(NamedTuple):
    """Half-open bytes of adjoining regions: ``base_offset`` and ``size``, plain ints."""

    base_offset: int
    size: int

    @property
    def end(self) -> int:
        """First byte past the range."""
        return self.base_offset + self.size


@dataclass(frozen=True)
class Parameter:
    """The tensors of one parameter; a series that the config does not have is None."""

    name: str
    kind: str
    weight: DTensor
    gradient: DTensor | None
    half_gradient: DTensor | None
    half_copy: DTensor | None
    m: DTensor | None
    v: DTensor | None
    ema: DTensor | None
    half_ema: DTensor | None
    norm: DTensor | None


class MemoryPlan:
    """A layout of one model in one arena.

    >>> plan = MemoryPlan(PlanConfig("adamw"))
    >>> fc = plan.parameter("fc.weight", "fc_weight", (10, 64))
    >>> plan.finalize().range(Region.W_FC_WEIGHT)
    Range(base_offset=0, size=3072)
    >>> fc.weight.offset, fc.gradient.offset
    (0, 3072)
    """

    def __init__(self, config: PlanConfig | None = None) -> None:
        self.config = config or PlanConfig()
        self.parameters: dict[str, Parameter] = {}
        self.tensors: dict[str, DTensor] = {}
        self.finalized = False
        self.total_bytes = 0
        self._by_region: list[list[DTensor]] = [[] for _ in Region]
        self._base = [0] * (len(Region) + 1)
        self._grad_slots: dict[int, DTensor] = {}
        self._enabled = [self.config.enables(region) for region in Region]
        self._dtypes = [self._region_dtype(region) for region in Region]
        self._series = {k: self._parameter_regions(k) for k in PARAMETER_KINDS}
        self._alloc_baseline_scalars()

    # Announcing tensors

    def alloc(
        self,
        region: Region,
        shape: Sequence[int] | int,
        name: str | None = None,
        dtype: DType | None = None,
    ) -> DTensor:
        """Announce one tensor of ``shape`` (elements, NHWC when 4-d) in ``region``.

        ``dtype`` is needed only where the region leaves it open (input data).

        Raises:
            PlanError: plan frozen, region disabled, name taken, or dtype not the region's.
        """
        if self.finalized:
            raise PlanError(f"alloc {name or region.name}: the plan is finalized, make a new one")
        if not self._enabled[region]:
            raise PlanError(
                f"alloc {name or region.name}: region {region.name} is disabled by "
                f"{self.config}, expected {region.when.value}"
            )
        own = self._dtypes[region]
        if own is None and dtype is None or own is not None and dtype not in (None, own):
            wanted = "a dtype" if own is None else own.label
            got = dtype.label if dtype else None
            raise PlanError(f"alloc {region.name}: dtype got {got}, expected {wanted}")
        kind = own or dtype
        assert kind is not None
        label = name or f"{region.name.lower()}.{len(self._by_region[region])}"
        if label in self.tensors:
            raise PlanError(f"alloc {label}: the name is taken, give another")
        logical = sizes(shape)
        slot = slot_bytes(prod(padded(logical, kind, region)), kind)
        tensor = DTensor(len(self.tensors), label, logical, kind, region, slot)
        self.tensors[label] = tensor
        self._by_region[region].append(tensor)
        return tensor

    def parameter(self, name: str, kind: str, shape: Sequence[int] | int) -> Parameter:
        """Announce a trainable parameter in every series that the config asks for.

        ``kind`` is one of PARAMETER_KINDS; weights of ``fc_weight``, ``first_conv`` and
        ``deep_conv`` also get half copies and half gradients when ``config.half`` is set.

        Raises:
            PlanError: unknown kind, taken name, frozen plan.
        """
        if kind not in PARAMETER_KINDS:
            raise PlanError(
                f"parameter {name}: kind got {kind!r}, expected one of {', '.join(PARAMETER_KINDS)}"
            )
        made: dict[tuple[str, bool], DTensor] = {}
        for series, half, region in self._series[kind]:
            label = name if series == "W" else f"{name}#{series}{'16' if half else ''}"
            made[series, half] = self.alloc(region, 4 if series == "N" else shape, label)
        get = made.get
        parameter = Parameter(
            name,
            kind,
            made["W", False],
            get(("G", False)),
            get(("G", True)),
            get(("A", True)),
            get(("M", False)),
            get(("V", False)),
            get(("E", False)),
            get(("E", True)),
            get(("N", False)),
        )
        self.parameters[name] = parameter
        return parameter

    def __getattr__(self, name: str) -> Callable[..., DTensor]:
        """Resolve the origin's single calls: ``alloc_fc_weight``, ``alloc_momentum_first_conv`` ….

        ``alloc_<kind>`` announces a weight, ``alloc_<series>_<kind>`` with series ema, half,
        grad, half_grad, half_ema, momentum, variance or norm a tensor of that series, each as
        ``call(shape, name=None)``.
        """
        words = name.removeprefix("alloc_")
        half = words.startswith(("half_grad_", "half_ema_"))
        series, _, kind = words.removeprefix("half_" if half else "").partition("_")
        if words in PARAMETER_KINDS:
            series, kind = "weight", words
        letter = "W" if series == "weight" else _ALLOC_SERIES.get(series)
        try:
            region = series_region(letter or "?", kind, half)
        except KeyError:
            raise AttributeError(f"MemoryPlan has no attribute {name!r}") from None

        def call(shape: Sequence[int] | int, name: str | None = None) -> DTensor:
            return self.alloc(region, shape, name)

        return call

    def alloc_bn_stats(self, channels: int, name: str | None = None) -> tuple[DTensor, ...]:
        """Announce running mean and variance of one BN, previous and next: four vectors."""
        regions = (Region.B_PREV_MEAN, Region.B_PREV_VAR, Region.B_NEXT_MEAN, Region.B_NEXT_VAR)
        return tuple(
            self.alloc(r, (channels,), name and f"{name}.{r.name[2:].lower()}") for r in regions
        )

    def alloc_eq_bias(self, channels: int, name: str | None = None) -> DTensor:
        """Announce the equivalent bias of a convolution with its BN folded in."""
        return self.alloc(Region.W_EQ_BIAS, (channels,), name)

    def alloc_eq_scale(self, channels: int, name: str | None = None) -> DTensor:
        """Announce the equivalent scale of a convolution with its BN folded in."""
        return self.alloc(Region.W_EQ_SCALE, (channels,), name)

    def alloc_feature(self, shape: Sequence[int], name: str | None = None) -> DTensor:
        """Announce a feature map (N, H, W, C), half where the plan has halves."""
        half = self.config.half is not None
        return self.alloc(Region.F_FEATURE_FP16 if half else Region.F_FEATURE_FP32, shape, name)

    def alloc_grad_slot(self, shape: Sequence[int], slot: int) -> DTensor:
        """Return gradient slot 0..3, announced at its first use and shared from then on.

        Raises:
            PlanError: slot outside 0..3, or already taken with another shape.
        """
        if not 0 <= slot < 4:
            raise PlanError(f"grad slot: got {slot}, expected 0, 1, 2 or 3")
        taken = self._grad_slots.get(slot)
        if taken is None:
            half = self.config.half is not None
            region = Region.F_GRAD_SLOT_FP16 if half else Region.F_GRAD_SLOT_FP32
            taken = self._grad_slots[slot] = self.alloc(region, shape, f"grad_slot.{slot}")
        if taken.shape != tuple(shape):
            raise PlanError(
                f"grad slot {slot}: got shape {tuple(shape)}, expected {taken.shape} "
                "as at its first use; take another slot"
            )
        return taken

    def alloc_scalar(self, dtype: DType, name: str | None = None) -> DTensor:
        """Announce one scalar of the caller's own."""
        return self.alloc(self._typed("S_SCALAR", dtype), (1,), name)

    def alloc_mask(self, shape: Sequence[int], name: str | None = None) -> DTensor:
        """Announce an INT8 mask (N, H, W, C), C padded to a multiple of 8."""
        return self.alloc(Region.S_MASK, shape, name)

    def alloc_temp(
        self, shape: Sequence[int] | int, dtype: DType, name: str | None = None
    ) -> DTensor:
        """Announce a temporary."""
        return self.alloc(self._typed("T_TEMP", dtype), shape, name)

    def alloc_inputs(
        self, label_shape: Sequence[int] | int, data_shape: Sequence[int], dtype: DType
    ) -> tuple[DTensor, DTensor, DTensor, DTensor]:
        """Announce the double-buffered input: label and data of zones A and B, adjoining.

        Labels are INT32, data of ``dtype`` (half data pad C to a multiple of 4).
        """
        a = self.alloc(Region.I_A_LABEL, label_shape, "input_a.label")
        b = self.alloc(Region.I_A_DATA, data_shape, "input_a.data", dtype)
        c = self.alloc(Region.I_B_LABEL, label_shape, "input_b.label")
        d = self.alloc(Region.I_B_DATA, data_shape, "input_b.data", dtype)
        self.alloc(Region.R_PREDICTED_LABEL, label_shape, "predicted_label")
        return a, b, c, d

    # The layout

    def finalize(self) -> MemoryPlan:
        """Give every tensor its offset in one pass, check the layout, freeze the plan.

        Raises:
            PlanError: called twice, or one of the four checks fails.
        """
        if self.finalized:
            raise PlanError("finalize: the plan is finalized already, make a new one")
        self._alloc_scratch()
        cursor = 0
        for region in Region:
            self._base[region] = cursor
            for tensor in self._by_region[region]:
                object.__setattr__(tensor, "offset", cursor)
                cursor += tensor.slot_bytes
        self._base[len(Region)] = self.total_bytes = cursor
        checks.check_all(self)
        self.finalized = True
        return self

    def range(self, first: Region, last: Region | None = None) -> Range:
        """Return the bytes of the whole regions ``first..last``; an empty region has size 0.

        Raises:
            PlanError: plan not finalized, or ``last`` lies before ``first``.
        """
        if not self.finalized:
            raise PlanError("range: the plan is not finalized, call finalize() first")
        last = first if last is None else last
        if last < first:
            raise PlanError(
                f"range: got {first.name}..{last.name}, expected address order; swap them"
            )
        return Range(self._base[first], self._base[last + 1] - self._base[first])

    @property
    def bucket1(self) -> Range:
        """Gradient bucket 1: G_DEEP_CONV..R_RESULT, the metrics riding along."""
        return self.range(Region.G_DEEP_CONV, Region.R_RESULT)

    @property
    def bucket2(self) -> Range:
        """Gradient bucket 2: G_BN_BIAS..G_FIRST_CONV."""
        return self.range(Region.G_BN_BIAS, Region.G_FIRST_CONV)

    def series_range(self, series: str, part: str = "all", half: bool = False) -> Range:
        """Return the bytes of one series of all parameters.

        ``part`` is "bias" (norms and biases), "weight" (the kinds with half copies) or "all".
        """
        weights = half or series in "AN"
        kinds = WEIGHT_KINDS if weights or part == "weight" else PARAMETER_KINDS
        if part == "bias":
            kinds = () if weights else PARAMETER_KINDS[:3]
        if not kinds:
            return Range(self.range(series_region(series, WEIGHT_KINDS[0], half)).base_offset, 0)
        return self.range(
            series_region(series, kinds[0], half), series_region(series, kinds[-1], half)
        )

    def tensors_in(self, first: Region, last: Region | None = None) -> tuple[DTensor, ...]:
        """Return the tensors of ``first..last`` in address order."""
        regions = range(first, (first if last is None else last) + 1)
        return tuple(t for r in regions for t in self._by_region[r])

    def weights(self) -> tuple[DTensor, ...]:
        """Return the weight tensors in address order: the rows of the coefficient table."""
        return self.tensors_in(Region.W_BN_BIAS, Region.W_DEEP_CONV)

    def __iter__(self) -> Iterator[DTensor]:
        """Iterate over all tensors in address order."""
        return iter(self.tensors_in(Region(0), Region(len(Region) - 1)))

    # Details

    def _region_dtype(self, region: Region) -> DType | None:
        if region.dtype == "any":
            return None
        return self.config.half_dtype if region.dtype == "half" else DType[region.dtype.upper()]

    def _parameter_regions(self, kind: str) -> list[tuple[str, bool, Region]]:
        pairs = self.config.series_of_parameter(kind in WEIGHT_KINDS)
        return [(series, half, series_region(series, kind, half)) for series, half in pairs]

    def _typed(self, prefix: str, dtype: DType) -> Region:
        return Region[f"{prefix}_{'FP16' if dtype.is_half else dtype.name}"]

    def _alloc_baseline_scalars(self) -> None:
        for name in FP32_SCALARS:
            self.alloc(Region.S_SCALAR_FP32, (1,), f"scalar.{name}")
        for name in INT32_SCALARS:
            self.alloc(Region.S_SCALAR_INT32, (1,), f"scalar.{name}")
        for name in RESULTS:
            self.alloc(Region.R_RESULT, (1,), f"result.{name}")
        for name in ACCUMULATED:
            self.alloc(Region.R_RESULT_ACCUMULATED, (2,), f"accumulated.{name}")

    def _alloc_scratch(self) -> None:
        """Make room for the coefficients and the segment table of the parameters."""
        weights = self.weights()
        if not weights:
            return
        granules = sum(t.slot_bytes for t in weights) // (4 * GRANULE)
        self.alloc_temp(BLOCK_FLOATS + ROW_FLOATS * len(weights), DType.FP32, "step.coefficients")
        self.alloc_temp((MAX_GROUPS, GROUP_FLOATS), DType.FP32, "step.groups")
        self.alloc_temp(len(weights), DType.INT32, "step.group_of_tensor")
        self.alloc_temp(granules, DType.INT32, "step.segments")

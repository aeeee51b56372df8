"""PlanBuilder: the calls by which a model's tensors are announced to a plan.

Every call hard-wires its region, so that no tensor can lie in a wrong one: ``parameter()`` for a
trainable parameter in all its series at once, ``alloc_*()`` for single tensors as in the origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from plan.config import PlanConfig
from plan.dtensor import DTensor, DType, padded, sizes, slot_bytes
from plan.errors import PlanError
from plan.region import PARAMETER_KINDS, WEIGHT_KINDS, Region, series_region
from plan.scalars import ACCUMULATED, FP32_SCALARS, INT32_SCALARS, RESULTS

_ALLOC_SERIES = {
    "ema": "E",
    "half": "A",
    "grad": "G",
    "momentum": "M",
    "variance": "V",
    "norm": "N",
}


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


class PlanBuilder:
    """The announcing half of a MemoryPlan: tensors by region, in the order of their calls."""

    def __init__(self, config: PlanConfig | None = None) -> None:
        self.config = config or PlanConfig()
        self.parameters: dict[str, Parameter] = {}
        self.tensors: dict[str, DTensor] = {}
        self.finalized = False
        self._by_region: list[list[DTensor]] = [[] for _ in Region]
        self._grad_slots: dict[int, DTensor] = {}
        self._enabled = [self.config.enables(region) for region in Region]
        self._dtypes = [self._region_dtype(region) for region in Region]
        self._series = {k: self._parameter_regions(k) for k in PARAMETER_KINDS}
        self._alloc_baseline_scalars()

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
        if (own is None and dtype is None) or (own is not None and dtype not in (None, own)):
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

"""PlanBuilder: a model's tensors are announced to a plan, and looked up by region.

``parameter()`` announces a trainable parameter in all its series at once, so that they correspond.
A call that is refused announces nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from plan.config import PlanConfig
from plan.dtensor import DTensor, padded, sizes, slot_bytes
from plan.dtype import DType
from plan.errors import PlanError
from plan.region import Region, series_region, series_regions
from plan.scalars import ACCUMULATED, FP32_SCALARS, INT32_SCALARS, RESULTS
from plan.series import PARAMETER_KINDS

Shape: TypeAlias = Sequence[int] | int
"""Elements along each dimension, NHWC when there are four; an int is a vector."""

Request: TypeAlias = tuple[Region, Shape, str | None, DType | None]
"""A tensor to announce: region, shape, name and dtype, as ``alloc`` takes them."""


@dataclass(frozen=True, repr=False)
class Parameter:
    """The tensors of one parameter; a series that the config does not have is None.

    >>> from plan import MemoryPlan, PlanConfig
    >>> MemoryPlan(PlanConfig("momentum")).parameter("fc.weight", "fc_weight", (10, 64))
    <Parameter fc.weight: fc_weight (10, 64); weight, gradient, m>
    """

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

    def __repr__(self) -> str:
        """Return name, kind, shape and the tensors that it has in one line."""
        has = ", ".join(name for name, value in vars(self).items() if isinstance(value, DTensor))
        return f"<Parameter {self.name}: {self.kind} {self.weight.shape}; {has}>"


class PlanBuilder:
    """The announcing half of a MemoryPlan: tensors by region, in the order of their calls."""

    def __init__(self, config: PlanConfig | None = None) -> None:
        self.config = config or PlanConfig()
        self.parameters: dict[str, Parameter] = {}
        self._frozen: set[str] = set()
        self._idle: set[str] = set()
        self._last: set[str] = set()
        self.tensors: dict[str, DTensor] = {}
        self.finalized = False
        self._by_region: list[list[DTensor]] = [[] for _ in Region]
        self._enabled = [self.config.enables(region) for region in Region]
        self._dtypes = [self._region_dtype(region) for region in Region]
        self._series = {k: self._parameter_regions(k) for k in PARAMETER_KINDS}
        self._alloc_baseline_scalars()

    def alloc(
        self,
        region: Region,
        shape: Shape,
        name: str | None = None,
        dtype: DType | None = None,
    ) -> DTensor:
        """Announce one tensor of ``shape`` (elements, NHWC when 4-d) in ``region``.

        ``dtype`` is needed only where the region leaves it open (input data).

        Raises:
            PlanError: plan frozen, region disabled, name taken, or dtype not the region's.

        """
        return self.alloc_together((region, shape, name, dtype))[0]

    def alloc_together(self, *requests: Request) -> tuple[DTensor, ...]:
        """Announce several tensors, in other regions or by other names, or none of them.

        Raises:
            PlanError: one of them is refused, see ``alloc``.

        """
        first = len(self.tensors)
        made = tuple(self._described(first + k, *request) for k, request in enumerate(requests))
        for tensor in made:
            self.tensors[tensor.name] = tensor
            self._by_region[tensor.region].append(tensor)
        return made

    def parameter(self, name: str, kind: str, shape: Shape, trainable: bool = True) -> Parameter:
        """Announce a parameter in every series that the config asks for.

        ``kind`` is one of PARAMETER_KINDS; weights of ``fc_weight``, ``first_conv`` and
        ``deep_conv`` also get half copies and half gradients when ``config.half`` is set.

        With ``trainable=False`` it has no gradient, no moments and no average (that is the weight
        itself) for the life of the plan.  Their addresses stay, so that series correspond by
        offset; see ``MemoryPlan.idle``.

        Raises:
            PlanError: unknown kind, taken name, frozen plan.

        """
        if kind not in PARAMETER_KINDS:
            raise PlanError(
                f"parameter {name}: kind got {kind!r}, expected one of {', '.join(PARAMETER_KINDS)}"
            )
        requests: list[Request] = []
        for series, half, region in self._series[kind]:
            label = name if series == "W" else f"{name}#{series}{'16' if half else ''}"
            requests.append((region, 4 if series == "N" else shape, label, None))
        pairs = ((series, half) for series, half, _ in self._series[kind])
        made = dict(zip(pairs, self.alloc_together(*requests), strict=True))
        if not trainable:
            self._frozen.add(name)
            self._last.update(t.name for t in made.values())
            self._idle.update(t.name for t in made.values() if t.region.series not in "WAN")
            made = {pair: t for pair, t in made.items() if t.region.series in "WA"}
        get = made.get
        parameter = self.parameters[name] = Parameter(
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
        return parameter

    def is_frozen(self, parameter: str) -> bool:
        """Return whether a parameter was announced with ``trainable=False``."""
        return parameter in self._frozen

    def tensors_in(self, first: Region, last: Region | None = None) -> tuple[DTensor, ...]:
        """Return the tensors of ``first..last`` in address order."""
        regions = range(first, (first if last is None else last) + 1)
        return tuple(t for r in regions for t in self._by_region[r])

    def weights(self) -> tuple[DTensor, ...]:
        """Return the weight tensors in address order: the rows of the coefficient table."""
        regions = series_regions("W")
        return self.tensors_in(regions[0], regions[-1])

    def __iter__(self) -> Iterator[DTensor]:
        """Iterate over all tensors in address order."""
        return (tensor for tensors in self._by_region for tensor in tensors)

    def dtype_of(self, region: Region) -> DType | None:
        """Return the type of a region's tensors, None where each has its caller's."""
        return self._dtypes[region]

    def _described(
        self, number: int, region: Region, shape: Shape, name: str | None, dtype: DType | None
    ) -> DTensor:
        """Check a request and return its descriptor, which is not announced yet."""
        if self.finalized:
            raise PlanError(f"alloc {name or region.name}: the plan is finalized, make a new one")
        if not self._enabled[region]:
            raise PlanError(
                f"alloc {name or region.name}: region {region.name} is disabled by "
                f"{self.config}, expected {region.when.value}"
            )
        own = self._dtypes[region]
        kind = own or dtype
        if kind is None or dtype not in (None, kind):
            wanted = "a dtype" if own is None else own.label
            got = dtype.label if dtype else None
            raise PlanError(f"alloc {region.name}: dtype got {got}, expected {wanted}")
        label = name or f"{region.name.lower()}.{len(self._by_region[region])}"
        if label in self.tensors:
            raise PlanError(f"alloc {label}: the name is taken, give another")
        logical = sizes(shape)
        slot = slot_bytes(prod(padded(logical, kind, region)), kind)
        return DTensor(number, label, logical, kind, region, slot)

    def _region_dtype(self, region: Region) -> DType | None:
        if region.dtype == "any":
            return None
        return self.config.half_dtype if region.dtype == "half" else DType.named(region.dtype)

    def _parameter_regions(self, kind: str) -> list[tuple[str, bool, Region]]:
        pairs = self.config.series_of(kind)
        return [(series, half, series_region(series, kind, half)) for series, half in pairs]

    def _alloc_baseline_scalars(self) -> None:
        for name in (*FP32_SCALARS, *self.config.own_scalars):
            self.alloc(Region.S_SCALAR_FP32, (1,), f"scalar.{name}")
        for name in INT32_SCALARS:
            self.alloc(Region.S_SCALAR_INT32, (1,), f"scalar.{name}")
        for name in RESULTS:
            self.alloc(Region.R_RESULT, (1,), f"result.{name}")
        for name in ACCUMULATED:
            self.alloc(Region.R_RESULT_ACCUMULATED, (2,), f"accumulated.{name}")

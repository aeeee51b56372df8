"""How an oracle says what it expects: values, and how many units they may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tests import tolerance
from tests.ops.trial import Trial


class Expects(NamedTuple):
    """An argument's values after the op: at most ``most`` units from ``want``."""

    name: str
    got: np.ndarray
    want: np.ndarray
    unit: Any
    most: float

    def error(self) -> float:
        """Return the largest error in units; where both are the same, 0."""
        got, want = np.asarray(self.got, np.float64), np.asarray(self.want, np.float64)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        with np.errstate(invalid="ignore"):
            return float(np.max(np.where(same, 0.0, np.abs(got - want) / self.unit), initial=0.0))


Oracle = Callable[[Trial], Iterator[Expects]]
ORACLES: dict[str, Oracle] = {}


def oracle(*names: str) -> Callable[[Oracle], Oracle]:
    """Enter an oracle for ops."""

    def enter(function: Oracle) -> Oracle:
        ORACLES.update(dict.fromkeys(names, function))
        return function

    return enter


def exact(name: str, got: Any, want: Any) -> Expects:
    """Expect a value to the bit (zeros of either sign)."""
    return Expects(name, got, want, 1.0, 0.0)


def fp32(x: Trial, name: str, want: np.ndarray, *terms: np.ndarray, most: float) -> Expects:
    """Expect an argument within ``most`` float32 ulps of the largest of its terms."""
    largest = np.max([np.abs(t) for t in (want, *terms)], axis=0).astype(np.float32)
    return Expects(name, x.after[name], want, np.spacing(largest).astype(np.float64), most)


def half(x: Trial, name: str, want: np.ndarray, most: float = 0.5) -> Expects:
    """Expect a half argument within ``most`` of its own ulps."""
    digits, least = (10, -24) if x.half == "fp16" else (7, -133)
    exponent = np.floor(np.log2(np.maximum(np.abs(want), 2.0**-140)))
    unit = 2.0 ** np.maximum(exponent - digits, least)
    return Expects(name, x.after[name], want, unit, most)


def float64(name: str, got: Any, want: Any) -> Expects:
    """Expect float64 values within what a sum by the tree rounds."""
    return Expects(name, got, want, np.abs(np.asarray(want)) + 1e-300, tolerance.SUM)


def exact_sum(values: np.ndarray) -> float:
    """Return the sum with one rounding."""
    return math.fsum(values.tolist())


def norm(values: np.ndarray) -> float:
    """Return the Euclidean norm."""
    return math.sqrt(exact_sum(values * values))

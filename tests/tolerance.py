"""The few tolerances, in units in the last place (ulps), each with its reason.

A tolerance is relative to the expected value unless it says otherwise.
"""

from __future__ import annotations

import numpy as np

ULP = 2.0**-23
"""The last place of a float32 that is a power of two, relative to it."""

STORED = 1 * ULP
"""A float32 beside the float64 value that it was rounded from: half an ulp of it, and half an ulp
where an input was rounded as well."""

STEP = 4 * ULP
"""One update, or a chain of up to eight operations, each rounding by half an ulp."""

SEQUENCE = {"rtol": 16 * ULP, "atol": 8 * ULP}
"""Twelve updates, two or three roundings each, of weights up to 4; ``atol`` is for weights that
end near zero: a rounding is then of the weight as it was before."""

SUM = 4 * 2.0**-52
"""A float64 sum by the fixed tree: 128 terms a lane round by half an ulp (2**-53) of the partial
sum, most of them the same way only in a test made for it."""

DOUBLES = {"rtol": 1e-12, "atol": 1e-9}
"""Float64 sums of some thousand float32 values up to 255, in another order."""

ADDED = {"rtol": 4 * ULP, "atol": 16 * ULP}
"""Three float32 values up to 5, in another order: two roundings of a partial sum below 16."""

FP16, BF16 = 2.0**-10, 2.0**-8
"""One ulp of fp16, half an ulp of bf16: the value was rounded to halves on the way."""

TRAINED = {"rtol": 1e-4, "atol": 1e-6}
"""State and norms of two runs of seven steps: gradients follow weights that differ by roundings,
and a second moment's relative error is twice its gradient's."""

NORM = {"rel": TRAINED["rtol"]}
"""The same of a norm, for ``pytest.approx``."""

APART = 1e-5
"""Weights of two runs of up to a dozen steps, whose gradients follow them; absolute."""

ROUNDING = 16 * ULP
"""Two training runs may part by so much where torch's own agree to the bit: twenty-odd half ulps
of a number near one; absolute."""

PEERS = 1e-3
"""A step of a peer, of the largest movement: it may spell eps and the corrections otherwise."""

UPDATE_ULPS = 4
"""A weight after an update, in ulps of the largest of weight and step: the step is a chain of six
roundings, the weight takes two more."""

LAMB_ULPS = 5
"""The same of LAMB's, whose step is a chain of eleven roundings: the moments' own are in it."""

MOMENT_ULPS = 4
"""A moment, in ulps of its largest term: four roundings, and half an ulp of a coefficient."""

EMA_ULPS = 2
"""An average rounds three times itself; behind an update the weight's error enters it as well."""

NARROWED = 0.51
"""A half copy in its own ulps: half of one, and the float32 error of what was narrowed."""

FOUR_DIGITS = 5e-5
"""Half of the fourth decimal, to which a case gives its value; absolute."""

SIX_DIGITS = 1e-6
"""The sixth decimal, to which a case gives its value; absolute."""


def ulps(got: np.ndarray, want: np.ndarray, scale: np.ndarray) -> float:
    """Return the largest error in float32 ulps of ``scale``, the largest term of each element."""
    error = np.abs(got.astype(np.float64) - want)
    return float(np.max(error / np.spacing(np.abs(scale).astype(np.float32)).astype(np.float64)))

"""The few tolerances, in units in the last place, each with its reason."""

from __future__ import annotations

import numpy as np

UPDATE_ULPS = 4
"""An update rounds once an operation; its result is the small difference or sum of at most four
rounded terms, each within an ulp of the largest of them."""

TORCH_ULPS = 8
"""torch's own foreach and fused optimizers differ from each other by about as much."""


def ulps(got: np.ndarray, want: np.ndarray, scale: np.ndarray) -> float:
    """Return the largest error in float32 ulps of ``scale``, the largest term of each element."""
    error = np.abs(got.astype(np.float64) - want)
    return float(np.max(error / np.spacing(np.abs(scale).astype(np.float32)).astype(np.float64)))

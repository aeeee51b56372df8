"""begin_step in NumPy, all rows at once: spelled on its own, in the rule's order of rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scalars import fp32_index, int32_index
from plan.scratch import BLOCK_FLOATS, GROUP, GROUP_FLOATS, ROW, ROW_FLOATS, block_index
from rangeops.launch import coefficients as at
from rangeops.ops._scaling import scaling_reference

NONE_FOUND = 2**31 - 1


def _powers(base: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Return base**exponent by the binary digits of each exponent, lowest first."""
    result, square, left = np.ones_like(base), base.copy(), exponents.copy()
    while left.any():
        result = np.where(left & 1, result * square, result)
        square, left = square * square, left >> 1
    return result


class _Rows:
    """The settings and coefficients of all tensors, a column each."""

    def __init__(self, s: Any, groups: Any, group_of: Any, options: int) -> None:
        table = groups.reshape(-1, GROUP_FLOATS)[group_of]
        self._own = dict(zip(GROUP, table.T, strict=False))
        self._s, self._options = s, options

    def product(self, name: str) -> np.ndarray:
        """Return a setting that multiplies the arena's."""
        return np.float64(self._s[fp32_index(name)]) * self._own[name].astype(np.float64)

    def value(self, name: str) -> np.ndarray:
        """Return a setting that stands for the arena's."""
        own = self._own[name]
        return np.where(np.isnan(own), self._s[fp32_index(name)], own)

    def on(self, name: str) -> np.ndarray:
        """Return whether an option is on, by tensor."""
        own, common = self._own[name], bool(self._options & at.OPTIONS[name])
        return np.where(np.isnan(own), common, own != 0)

    @property
    def adapts(self) -> np.ndarray:
        """Whether LARS and LAMB adapt a tensor."""
        return self._own["adapt"] != 0

    def columns(self, t: np.ndarray, grad: np.float32) -> dict[str, Any]:
        """Return the coefficients of tensors at their steps ``t`` by name."""
        one, nothing = np.float32(1), np.float32(0)
        lr, decay = self.product("lr"), self.product("weight_decay")
        omb1, omb2 = self.value("one_minus_beta1"), self.value("one_minus_beta2")
        momentum, omd = self.value("momentum"), self.value("one_minus_dampening")
        corrected, decoupled = self.on("bias_correction"), self.on("decoupled")
        bc1, bc2 = (
            np.where(corrected, 1 - _powers(1 - omb.astype(np.float64), t), 1.0)
            for omb in (omb1, omb2)
        )
        outside = bool(self._options & at.LR_OUTSIDE)
        still, looks = momentum == 0, self.on("nesterov")
        return {
            "grad": np.where(self.on("maximize"), -grad, grad),
            "lr": lr,
            "step_size": lr / bc1,
            "keep": np.where(decoupled, 1 - lr * decay, 1),
            "weight_decay": np.where(decoupled, 0, decay),
            "one_minus_beta1": omb1,
            "one_minus_beta2": omb2,
            "inv_sqrt_bc2": 1 / np.sqrt(bc2),
            "eps": self.value("eps"),
            "momentum": np.where(still, one, np.where(t > 1, momentum, nothing)),
            "one_minus_dampening": np.where(still, nothing, np.where(t > 1, omd, one)),
            "look_gradient": np.where(still | looks, one, nothing),
            "look_moment": np.where(still, nothing, np.where(looks, momentum, one)),
            "scale": one if outside else lr,
            "rate": lr if outside else one,
            "ratio": one,
            "trust": np.where(self.adapts, self.value("trust_coefficient"), -1),
            "inv_bc1": 1 / bc1,
            "beta1": self.value("beta1"),
            "beta3": np.where(self.on("grad_averaging"), omb1, one),
        }


def _fill(s, k, c, groups, group_of, live, steps, norm, options, quads):
    """Write every row, and the steps of the live tensors."""
    scalar = {name: s[fp32_index(name)] for name in ("grad_scale", "ranks", "clip_norm")}
    clip = np.float64(1)
    if options & at.GLOBAL_NORM and scalar["clip_norm"] > 0:
        clip = min(clip, np.float64(scalar["clip_norm"]) / (norm + 1e-6))  # NaN clips nothing
    grad = np.float32(clip / (np.float64(scalar["grad_scale"]) * np.float64(scalar["ranks"])))
    t = np.minimum(steps.astype(np.int64) + 1, NONE_FOUND)
    total = int(k[int32_index("step")]) + 1
    averaged = s[fp32_index("one_minus_ema_decay")]
    if options & at.EMA_WARMUP:
        averaged = max(averaged, np.float32(np.float64(9) / (9 + total)))
    columns = _Rows(s, groups, group_of, options).columns(t, grad)
    c[block_index("one_minus_ema_decay")], c[block_index("start_ema")] = averaged, total == 1
    rows = c[BLOCK_FLOATS:].reshape(-1, ROW_FLOATS)
    for name, values in columns.items():
        column = ROW.index(name)
        if quads >> column // 4 & 1:
            rows[:, column] = values
    steps[live > 0] = t[live > 0]


def begin_reference() -> Any:
    """Return ``reference(s, k, c, groups, ...)``, which works on its arrays in place."""
    poisoned, found, skip = map(int32_index, ("poisoned", "found_inf", "skip_step"))
    word, inverse = map(int32_index, ("settings", "settings_inverse"))
    first, latched = map(int32_index, ("first_nonfinite", "nonfinite_granule"))

    def reference(s, k, c, groups, group_of, live, steps, totals, options, quads, tensors, sums):
        if k[poisoned] or k[word] != ~k[inverse]:
            k[skip], k[found] = 1, 0
            return
        norm = np.float64(0)
        if options & at.GLOBAL_NORM:
            with np.errstate(all="ignore"):
                scale = np.float64(s[fp32_index("grad_scale")]) * np.float64(s[fp32_index("ranks")])
                norm = np.sqrt(sum(totals[:sums], start=norm)) / scale
                s[fp32_index("grad_norm")] = norm
        counter = int32_index("skipped_steps" if k[found] else "step")
        if k[found]:
            k[latched], k[first] = k[first], NONE_FOUND
        else:
            with np.errstate(all="ignore"):
                _fill(s, k, c, groups, group_of, live, steps, norm, options, quads)
        k[counter] = min(int(k[counter]) + 1, NONE_FOUND)
        k[skip], k[found] = k[found], 0
        s[fp32_index("grad_scale")] = s[fp32_index("loss_scale")]
        if options & at.LOSS_SCALING:
            scaling_reference(s, k)

    return reference

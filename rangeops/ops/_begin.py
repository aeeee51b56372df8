"""begin_step: one small kernel that turns hyper-parameters, step and scale into coefficients.

    found_inf = 0:   step += 1;  block and rows: ``rangeops.launch.coefficients``;  skip_step = 0
    found_inf = 1:   skip_step = 1;  skipped_steps += 1;  step, block and rows stay
    poisoned = 1:    skip_step = 1 and nothing else: a collective before this step has failed
    always:          found_inf = 0; the first non-finite granule is kept for the host
    global_norm:     grad_norm = sqrt(totals) / (grad_scale * ranks), and the gradients are clipped
    loss_scaling:    then grad_scaling's rule, so that a step needs no launch of its own for it

One thread a tensor writes that tensor's row; the last block to finish moves the counters, after
every other block has read them.  Everything that may change between steps is read here from the
device, so a captured graph is right for ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scalars import fp32_index, int32_index
from plan.scratch import BLOCK, BLOCK_FLOATS, GROUP_FLOATS, ROW, ROW_FLOATS, row_index
from rangeops.kernels.shells import per_tensor
from rangeops.launch import coefficients as at
from rangeops.launch.op import range_op
from rangeops.ops._scaling import scaling_body, scaling_reference

LR, DECAY = fp32_index("lr"), fp32_index("weight_decay")
CLIP_NORM, GRAD_NORM = fp32_index("clip_norm"), fp32_index("grad_norm")
GRAD_SCALE, LOSS_SCALE = fp32_index("grad_scale"), fp32_index("loss_scale")
OMB1, OMB2, _, RANKS, EMA, MOMENTUM, DAMPENING, BETA1, EPS = map(fp32_index, at.BLOCK_SCALARS)
STEP, FOUND_INF, SKIP_STEP = (
    int32_index("step"),
    int32_index("found_inf"),
    int32_index("skip_step"),
)
SKIPPED = int32_index("skipped_steps")
POISONED = int32_index("poisoned")
FIRST, LATCHED = int32_index("first_nonfinite"), int32_index("nonfinite_granule")
NONE_FOUND = 2**31 - 1
(
    ROW_LR, ROW_STEP_SIZE, ROW_KEEP, ROW_DECAY, ROW_SKIP, ROW_RATIO, ROW_SCALE, ROW_RATE,
) = map(row_index, ROW)  # fmt: skip


def _prepare(x: Any) -> Any:
    """Return ``prepare``: (found, norm, bc1, block) from the scalars, for all rows."""
    block = at.block_rule(x)
    int64, float64, sqrt = x.int64, x.float64, x.sqrt

    def prepare(s, k, c, groups, group_of, totals, options, tensors, sums):
        total = float64(0.0)
        if options & at.GLOBAL_NORM:
            for j in range(sums):
                total = total + totals[j]
        norm = sqrt(total) / (float64(s[GRAD_SCALE]) * float64(s[RANKS]))
        scalars = (
            s[OMB1], s[OMB2], s[GRAD_SCALE], s[RANKS], s[EMA], s[MOMENTUM], s[DAMPENING],
            s[BETA1], s[EPS],
        )  # fmt: skip
        step = int64(k[STEP]) + int64(1)
        bc1, filled = block(scalars, step, norm, s[CLIP_NORM], options)
        return k[FOUND_INF] | k[POISONED], norm, bc1, filled

    return x.device(prepare)


def _row(x: Any) -> Any:
    """Return ``row``: a tensor's coefficients, and the block's by the first one."""
    rule, int64, int32, float32 = at.row_rule(x), x.int64, x.int32, x.float32

    def block(c, filled):
        c[0], c[1], c[2], c[3] = filled[0], filled[1], filled[2], filled[3]
        c[4], c[5], c[6], c[7] = filled[4], filled[5], filled[6], filled[7]
        c[8], c[9], c[10], c[11] = filled[8], filled[9], filled[10], filled[11]
        c[12] = filled[12]

    block = x.device(block)

    def row(i, shared, s, k, c, groups, group_of, totals, options, tensors, sums):
        found, _, bc1, filled = shared
        if found != 0:
            return
        if i == 0:
            block(c, filled)
        group = group_of[i]
        skip = float32(0)
        if group < 0:
            skip = float32(1)
            group = int32(-1 - group)
        g = int64(GROUP_FLOATS) * int64(group)
        rate, step_size, keep, decay, scale, outside = rule(
            s[LR], s[DECAY], groups[g], groups[g + 1], bc1, options
        )
        j = int64(BLOCK_FLOATS) + int64(ROW_FLOATS) * i
        c[j + ROW_LR] = rate
        c[j + ROW_STEP_SIZE] = step_size
        c[j + ROW_KEEP] = keep
        c[j + ROW_DECAY] = decay
        c[j + ROW_SKIP] = skip
        c[j + ROW_RATIO] = float32(1)
        c[j + ROW_SCALE] = scale
        c[j + ROW_RATE] = outside

    return x.device(row)


def _finish(x: Any) -> Any:
    """Return ``finish``: the counters, the flag's life, and the loss scale."""
    int32, float32 = x.int32, x.float32
    move_scale = scaling_body(x)

    def finish(shared, s, k, c, groups, group_of, totals, options, tensors, sums):
        found, norm, _, _ = shared
        if k[POISONED] != 0:
            k[SKIP_STEP] = int32(1)
            k[FOUND_INF] = int32(0)
            return
        if options & at.GLOBAL_NORM:
            s[GRAD_NORM] = float32(norm)
        if found != 0:
            k[SKIPPED] = int32(k[SKIPPED] + 1)
            k[LATCHED] = k[FIRST]
            k[FIRST] = int32(NONE_FOUND)
            k[SKIP_STEP] = int32(1)
            k[FOUND_INF] = int32(0)
        else:
            k[STEP] = int32(k[STEP] + 1)
            k[SKIP_STEP] = int32(0)
        s[GRAD_SCALE] = s[LOSS_SCALE]
        if options & at.LOSS_SCALING:
            move_scale(s, k)

    return x.device(finish)


def _power(base: np.float64, exponent: int) -> np.float64:
    """base**exponent by the binary digits of the exponent, lowest first."""
    squares = [base]
    while len(squares) < exponent.bit_length():
        squares.append(squares[-1] * squares[-1])
    result = np.float64(1)
    for bit, square in enumerate(squares):
        if exponent >> bit & 1:
            result = result * square
    return result


def _reference() -> Any:
    def coefficients(s, k, c, groups, group_of, norm, options, tensors):
        t = int(k[STEP]) + 1
        bc1 = bc2 = np.float64(1)
        if options & at.BIAS_CORRECTION:
            bc1 = 1 - _power(1 - np.float64(s[OMB1]), t)
            bc2 = 1 - _power(1 - np.float64(s[OMB2]), t)
        ema = s[EMA]
        if options & at.EMA_WARMUP:
            ema = max(ema, np.float32(np.float64(9) / (9 + t)))
        clip = np.float64(-1 if options & at.MAXIMIZE else 1)
        if options & at.GLOBAL_NORM and s[CLIP_NORM] > 0:
            clip *= min(1, np.float64(s[CLIP_NORM]) / (norm + 1e-6))  # a NaN norm clips nothing
        look = (1, s[MOMENTUM]) if options & at.NESTEROV else (0, 1)
        c[: len(BLOCK)] = (
            s[OMB1],
            s[OMB2],
            np.float32(1 / np.sqrt(bc2)),
            s[EPS],
            clip / (np.float64(s[GRAD_SCALE]) * np.float64(s[RANKS])),
            ema,
            s[MOMENTUM] if t > 1 else 0,
            s[DAMPENING] if t > 1 else 1,
            np.float32(1 / bc1),
            s[BETA1],
            s[OMB1] if options & at.GRAD_AVERAGING else 1,
            *look,
        )
        group = np.where(group_of < 0, -1 - group_of, group_of)[:tensors]
        table = groups.reshape(-1, GROUP_FLOATS)[group].astype(np.float64)
        rate, decay = np.float64(s[LR]) * table[:, 0], np.float64(s[DECAY]) * table[:, 1]
        kept, added = (1 - rate * decay, 0) if options & at.DECOUPLED else (1, decay)
        scale, outside = (1, rate) if options & at.LR_OUTSIDE else (rate, 1)
        skipped = group_of[:tensors] < 0
        rows = c[BLOCK_FLOATS:].reshape(-1, ROW_FLOATS)[:tensors]
        columns = rate, rate / bc1, kept, added, skipped, 1, scale, outside
        for column, values in enumerate(columns):
            rows[:, column] = values

    def reference(s, k, c, groups, group_of, totals, options, tensors, sums):
        if k[POISONED]:
            k[SKIP_STEP], k[FOUND_INF] = 1, 0
            return
        norm = np.float64(0)
        if options & at.GLOBAL_NORM:
            with np.errstate(all="ignore"):
                scale = np.float64(s[GRAD_SCALE]) * np.float64(s[RANKS])
                norm = np.sqrt(sum(totals[:sums], start=norm)) / scale
                s[GRAD_NORM] = norm
        if k[FOUND_INF]:
            k[SKIPPED] += 1
            k[LATCHED], k[FIRST] = k[FIRST], NONE_FOUND
        else:
            with np.errstate(all="ignore"):
                coefficients(s, k, c, groups, group_of, norm, options, tensors)
            k[STEP] += 1
        k[SKIP_STEP], k[FOUND_INF] = k[FOUND_INF], 0
        s[GRAD_SCALE] = s[LOSS_SCALE]
        if options & at.LOSS_SCALING:
            scaling_reference(s, k)

    return reference


begin_step = range_op(
    "begin_step",
    origin="(step and bias correction)",
    formula="unless found_inf: step += 1, coefficients of block and rows",
    operands=(),
    kernel=per_tensor(
        "begin_step",
        ("s", "k", "c", "groups", "group_of", "totals"),
        ("options", "tensors", "totals"),
        _row,
        _reference,
        prepare=_prepare,
        finish=_finish,
    ),
    bytes_per_element=lambda flags: 4 * ROW_FLOATS,
    options=tuple(name for name in at.OPTIONS if name != "trust_clip"),  # trust_ratio's own
    elementwise=False,
)

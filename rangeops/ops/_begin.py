"""begin_step: one small kernel that turns hyper-parameters, step and scale into coefficients.

    found_inf = 0:   step += 1;  block and rows as in ``rangeops.coefficients``;  skip_step = 0
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
from plan.scratch import BLOCK_FLOATS, GROUP_FLOATS, ROW_FLOATS
from rangeops.kernels.spec import Kernel, arguments_of
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
SKIPPED, TICKET = int32_index("skipped_steps"), int32_index("ticket")
POISONED = int32_index("poisoned")
FIRST, LATCHED = int32_index("first_nonfinite"), int32_index("nonfinite_granule")
NONE_FOUND = 2**31 - 1


def _parts(x: Any) -> Any:
    """Return (norm, block, row writer, counters) compiled for a vocabulary."""
    block, row = at.rules(x)
    int64, int32, float32, float64, sqrt = x.int64, x.int32, x.float32, x.float64, x.sqrt

    def global_norm(s, totals, count, options):
        total = float64(0.0)
        if options & at.GLOBAL_NORM:
            for j in range(count):
                total = total + totals[j]
        return sqrt(total) / (float64(s[GRAD_SCALE]) * float64(s[RANKS]))

    def evaluate(s, k, norm, options):
        scalars = (
            s[OMB1], s[OMB2], s[GRAD_SCALE], s[RANKS], s[EMA], s[MOMENTUM], s[DAMPENING],
            s[BETA1], s[EPS],
        )  # fmt: skip
        return block(scalars, int64(k[STEP]) + int64(1), norm, s[CLIP_NORM], options)

    def write_block(c, filled):
        c[0], c[1], c[2], c[3] = filled[0], filled[1], filled[2], filled[3]
        c[4], c[5], c[6], c[7] = filled[4], filled[5], filled[6], filled[7]
        c[8], c[9], c[10], c[11] = filled[8], filled[9], filled[10], filled[11]
        c[12], c[13] = filled[12], filled[13]

    def write_row(i, s, c, groups, group_of, bc1, options):
        group = group_of[i]
        skip = float32(0)
        if group < 0:
            skip = float32(1)
            group = int32(-1 - group)
        g = int64(GROUP_FLOATS) * int64(group)
        rate, step_size, keep, decay, scale, outside = row(
            s[LR], s[DECAY], groups[g], groups[g + 1], bc1, options
        )
        j = int64(BLOCK_FLOATS) + int64(ROW_FLOATS) * i
        c[j + at.LR] = rate
        c[j + at.STEP_SIZE] = step_size
        c[j + at.KEEP] = keep
        c[j + at.WEIGHT_DECAY] = decay
        c[j + at.SKIP] = skip
        c[j + at.RATIO] = float32(1)
        c[j + at.SCALE] = scale
        c[j + at.RATE] = outside

    scale = scaling_body(x)

    def count(s, k, found, norm, options):
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
            scale(s, k)

    return tuple(map(x.device, (global_norm, evaluate, write_block, write_row, count)))


def _gpu(x: Any) -> Any:
    global_norm, evaluate, write_block, write_row, count = _parts(x)
    thread, syncthreads, block_index = x.thread, x.syncthreads, x.block_index
    atomic_add, int64, int32 = x.atomic_add, x.int64, x.int32

    def begin(s, k, c, groups, group_of, totals, options, tensors, sums):
        i = thread()
        found = k[FOUND_INF] | k[POISONED]
        norm = global_norm(s, totals, sums, options)
        if found == 0 and i < tensors:
            bc1, filled = evaluate(s, k, norm, options)
            if i == 0:
                write_block(c, filled)
            write_row(i, s, c, groups, group_of, bc1, options)
        syncthreads()
        lane, _, blocks = block_index()
        if lane == 0 and atomic_add(k, int64(TICKET), int32(1)) == blocks - 1:
            k[TICKET] = int32(0)
            count(s, k, found, norm, options)

    return begin


def _cpu(x: Any) -> Any:
    global_norm, evaluate, write_block, write_row, count = _parts(x)

    def begin(s, k, c, groups, group_of, totals, options, tensors, sums, start, stop):
        found = k[FOUND_INF] | k[POISONED]
        norm = global_norm(s, totals, sums, options)
        if found == 0:
            bc1, filled = evaluate(s, k, norm, options)
            write_block(c, filled)
            for i in range(tensors):
                write_row(i, s, c, groups, group_of, bc1, options)
        count(s, k, found, norm, options)

    return begin


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
        c[: at.LOOK_MOMENT + 1] = (
            s[OMB1],
            s[OMB2],
            np.float32(1 / np.sqrt(bc2)),
            s[EPS],
            clip / (np.float64(s[GRAD_SCALE]) * np.float64(s[RANKS])),
            ema,
            s[MOMENTUM] if t > 1 else 0,
            s[DAMPENING] if t > 1 else 1,
            s[MOMENTUM],
            np.float32(1 / bc1),
            s[BETA1],
            s[OMB1] if options & at.GRAD_AVERAGING else 1,
            *look,
        )
        group = np.where(group_of < 0, -1 - group_of, group_of)[:tensors]
        table = groups.reshape(-1, GROUP_FLOATS)[group].astype(np.float64)
        rate, decay = np.float64(s[LR]) * table[:, 0], np.float64(s[DECAY]) * table[:, 1]
        rows = c[BLOCK_FLOATS:].reshape(-1, ROW_FLOATS)[:tensors]
        rows[:, at.LR], rows[:, at.STEP_SIZE] = rate, rate / bc1
        rows[:, at.KEEP], rows[:, at.WEIGHT_DECAY] = 1 - rate * decay, decay
        rows[:, at.SKIP], rows[:, at.RATIO] = group_of[:tensors] < 0, 1
        rows[:, at.SCALE], rows[:, at.RATE] = (1, rate) if options & at.LR_OUTSIDE else (rate, 1)

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
    kernel=Kernel(
        "begin_step",
        arguments_of((), "s", "k", "c", "groups", "group_of", "totals"),
        ("options", "tensors", "totals"),
        _gpu,
        _cpu,
        _reference,
        per_thread=1,
        count="tensors",
    ),
    bytes_per_element=lambda flags: 4 * ROW_FLOATS,
    options=(
        "bias_correction",
        "ema_warmup",
        "maximize",
        "loss_scaling",
        "global_norm",
        "nesterov",
        "grad_averaging",
        "lr_outside",
    ),
    elementwise=False,
)

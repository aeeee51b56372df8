"""begin_step: one small kernel that turns settings, steps and scale into coefficients by tensor.

    found_inf = 0:   step += 1;  of every live tensor its own step += 1;  every tensor's row:
                     ``rangeops.launch.coefficients``;  skip_step = 0
    found_inf = 1:   skip_step = 1;  skipped_steps += 1;  steps and rows stay
    poisoned = 1:    skip_step = 1 and no count: a collective before this step has failed; so
                     where settings_inverse is not ~settings: ranks came with other settings
    always:          found_inf = 0; the first non-finite granule is kept for the host
    global_norm:     grad_norm = sqrt(totals) / (grad_scale * ranks), and the gradients are clipped
    loss_scaling:    then grad_scaling's rule, so that a step needs no launch of its own for it

One thread a tensor writes that tensor's row from its group and its own step; the last block to
finish moves the counters, after every other block has read them.  Every count of steps stops at
2**31-1.  All that may change between steps is read here from the device, so a captured graph is
right for ever.

A thread writes by fours what the plan's optimizer reads of its row (``quads``, a bit each): the
stores are what a model of 100,000 tensors waits for, 1.2 us each (H200).
"""

from __future__ import annotations

from typing import Any

from plan.scalars import fp32_index, int32_index
from plan.scratch import BLOCK_FLOATS, GROUP_FLOATS, ROW_FLOATS, block_index
from rangeops.kernels.shells import per_tensor
from rangeops.launch import coefficients as at
from rangeops.launch.op import range_op
from rangeops.ops._begin_reference import begin_reference
from rangeops.ops._scaling import scaling_body

SHARED = tuple(map(fp32_index, at.SHARED))
CLIP_NORM, GRAD_NORM, EMA = map(fp32_index, ("clip_norm", "grad_norm", "one_minus_ema_decay"))
GRAD_SCALE, LOSS_SCALE, RANKS = map(fp32_index, ("grad_scale", "loss_scale", "ranks"))
STEP, FOUND_INF, SKIP_STEP, SKIPPED, POISONED, FIRST, LATCHED = map(
    int32_index,
    (
        "step",
        "found_inf",
        "skip_step",
        "skipped_steps",
        "poisoned",
        "first_nonfinite",
        "nonfinite_granule",
    ),
)
WORD, INVERSE = int32_index("settings"), int32_index("settings_inverse")
NONE_FOUND = 2**31 - 1
EMA_AT, START_AT = map(block_index, ("one_minus_ema_decay", "start_ema"))
_LR, _WD, _TRUST, _OMB1, _OMB2, _BETA1, _EPS, _MU, _OMD = SHARED


def _prepare(x: Any) -> Any:
    """Return ``prepare``: what all rows share: (found, norm, grad, 1 - EMA decay, start of it)."""
    int64, float32, float64, sqrt = x.int64, x.float32, x.float64, x.sqrt
    clip, average = at.clip_rule(x), at.ema_rule(x)

    def prepare(s, k, c, groups, group_of, live, steps, totals, options, quads, tensors, sums):
        scale = float64(s[GRAD_SCALE]) * float64(s[RANKS])
        norm = float64(0.0)
        if options & at.GLOBAL_NORM:
            for j in range(sums):
                norm = norm + totals[j]
            norm = sqrt(norm) / scale
        grad = float32(clip(norm, s[CLIP_NORM], options) / scale)
        step = int64(k[STEP])
        start = float32(1.0) if step == 0 else float32(0.0)
        averaged = average(s[EMA], step + int64(1), options)
        held = k[POISONED] | (k[WORD] ^ ~k[INVERSE])
        return k[FOUND_INF] | held, norm, grad, averaged, start

    return x.device(prepare)


def _row(x: Any) -> Any:
    """Return ``row``: a tensor's coefficients, and its step if it moves."""
    rule, int64, store4 = at.row_rule(x), x.int64, x.store4

    def write(c, j, quads, bit, four):
        if quads & bit:
            store4(c, j, four, int64(4))

    write = x.device(write)

    def row(
        i, own, shared, s, k, c, groups, group_of, live, steps, totals,
        options, quads, tensors, sums,
    ):  # fmt: skip
        found, _, grad, averaged, start = shared
        word, t, g = own
        if found != 0:
            return
        if i == 0:
            c[EMA_AT] = averaged
            c[START_AT] = start
        if word > 0:
            steps[i] = t
        scalars = (
            s[_LR], s[_WD], s[_TRUST], s[_OMB1], s[_OMB2], s[_BETA1], s[_EPS], s[_MU], s[_OMD],
        )  # fmt: skip
        r = rule(scalars, g, t, grad, options)
        j = int64(BLOCK_FLOATS) + int64(ROW_FLOATS) * int64(i)
        write(c, j, quads, 1, (r[0], r[1], r[2], r[3]))
        write(c, j + int64(4), quads, 2, (r[4], r[5], r[6], r[7]))
        write(c, j + int64(8), quads, 4, (r[8], r[9], r[10], r[11]))
        write(c, j + int64(12), quads, 8, (r[12], r[13], r[14], r[15]))
        write(c, j + int64(16), quads, 16, (r[16], r[17], r[18], r[19]))

    return x.device(row)


def _own(x: Any) -> Any:
    """Return ``own``: a tensor's live word, step and group, asked for ahead of all else."""
    int64, int32, row4 = x.int64, x.int32, x.row4

    def own(i, s, k, c, groups, group_of, live, steps, totals, options, quads, tensors, sums):
        at0 = int64(GROUP_FLOATS) * int64(group_of[i])
        p, q = row4(groups, at0), row4(groups, at0 + int64(4))
        r, u = row4(groups, at0 + int64(8)), row4(groups, at0 + int64(12))
        t = int32(min(int64(steps[i]) + int64(1), int64(at.MOST_STEPS)))
        g = (
            p[0], p[1], p[2], p[3], q[0], q[1], q[2], q[3],
            r[0], r[1], r[2], r[3], u[0], u[1], u[2], u[3],
        )  # fmt: skip
        return live[i], t, g

    return x.device(own)


def _finish(x: Any) -> Any:
    """Return ``finish``: the counters, the flag's life, and the loss scale."""
    int64, int32, float32 = x.int64, x.int32, x.float32
    move_scale = scaling_body(x)

    def one_more(count):
        return int32(min(int64(count) + int64(1), int64(at.MOST_STEPS)))

    one_more = x.device(one_more)

    def finish(
        shared, s, k, c, groups, group_of, live, steps, totals, options, quads, tensors, sums
    ):
        found, norm, _, _, _ = shared
        if (k[POISONED] | (k[WORD] ^ ~k[INVERSE])) != 0:
            k[SKIP_STEP] = int32(1)
            k[FOUND_INF] = int32(0)
            return
        if options & at.GLOBAL_NORM:
            s[GRAD_NORM] = float32(norm)
        if found != 0:
            k[SKIPPED] = one_more(k[SKIPPED])
            k[LATCHED] = k[FIRST]
            k[FIRST] = int32(NONE_FOUND)
            k[SKIP_STEP] = int32(1)
            k[FOUND_INF] = int32(0)
        else:
            k[STEP] = one_more(k[STEP])
            k[SKIP_STEP] = int32(0)
        s[GRAD_SCALE] = s[LOSS_SCALE]
        if options & at.LOSS_SCALING:
            move_scale(s, k)

    return x.device(finish)


begin_step = range_op(
    "begin_step",
    origin="(step and bias correction)",
    formula="unless found_inf: steps += 1, coefficients of every tensor's row",
    operands=(),
    kernel=per_tensor(
        "begin_step",
        ("s", "k", "c", "groups", "group_of", "live", "steps", "totals"),
        ("options", "quads", "tensors", "totals"),
        _row,
        begin_reference,
        own=_own,
        prepare=_prepare,
        finish=_finish,
    ),
    bytes_per_element=lambda flags: 4 * (ROW_FLOATS + GROUP_FLOATS + 4),
    options=tuple(name for name in at.OPTIONS if name != "trust_clip"),  # trust_ratio's own
    elementwise=False,
)

"""The conversions of halves in all their spellings: every half widened, hard values narrowed."""

from __future__ import annotations

import numpy as np
import pytest

from plan import Range
from rangeops import Arena, ops
from rangeops.kernels.cuda import simulator
from rangeops.kernels.half import format_of
from tests.ops.plain import CPU

BITS = np.arange(1 << 16, dtype=np.uint16)
FORMATS = ("fp16", "bf16")


def theirs(half):
    """Return the type of a library that rounds on its own."""
    if half == "fp16":
        return np.float16
    return pytest.importorskip("ml_dtypes", reason="bf16's second opinion").bfloat16


def hard_values(half):
    """Return float32 on, beside and between the values of a format, and random bits."""
    with np.errstate(all="ignore"):
        wide = BITS.view(theirs(half)).astype(np.float32)
        bits = wide.view(np.uint32)
        between = (bits + (np.roll(bits, -1) - bits) // 2).astype(np.uint32)
    rng = np.random.default_rng(2)
    near = [bits, bits + 1, bits - 1, between, between + 1, between - 1]
    patterns = np.concatenate([*near, rng.integers(0, 2**32, 300_000, np.uint64)])
    return patterns.astype(np.uint32).view(np.float32)


def same_halves(got, want, half):
    """Return whether halves are the same to the bit, any NaN being any other."""
    exponent = format_of(half).exponent
    nan = [(bits & 0x7FFF) > exponent for bits in (got, want)]
    return ((got == want) | (nan[0] & nan[1])).all()


def same_floats(got, want):
    return ((got.view("u4") == want.view("u4")) | (np.isnan(got) & np.isnan(want))).all()


def narrowed(values, half):
    with np.errstate(all="ignore"):
        return values.astype(theirs(half)).view(np.uint16)


def widened(bits, half):
    with np.errstate(all="ignore"):
        return bits.view(theirs(half)).astype(np.float32)


@pytest.mark.parametrize("half", FORMATS)
@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_casts_of_every_half_and_of_hard_values(half, where):
    """Through the compiled loops, and on a GPU through its instructions."""
    values = hard_values(half)
    for op, source, want in (
        (ops.cast_fp16_to_fp32, BITS, widened(BITS, half)),
        (ops.cast_fp32_to_fp16, values, narrowed(values, half)),
    ):
        memory = np.zeros(source.nbytes + want.nbytes + 512, np.uint8)
        if where == "cuda":
            import cupy

            memory = cupy.asarray(memory)
        arena = Arena.wrap(memory)
        at = -(-source.nbytes // 256) * 256
        arena.write(0, source)
        op(arena, dst=Range(at, want.nbytes), src=Range(0, source.nbytes), half=half)
        got = arena.read(Range(at, want.nbytes), want.dtype)
        good = same_floats(got, want) if want.dtype == np.float32 else same_halves(got, want, half)
        assert good, op.name


def conversions():
    """Return (spelling, format, widen, narrow) of the rules that run as plain Python."""
    found = [(f"rule-{half}", half, *format_of(half).rules(CPU)) for half in FORMATS]
    return [*found, ("simulator-fp16", "fp16", *simulator.fp16)]


@pytest.mark.parametrize(("half", "widen", "narrow"), [c[1:] for c in conversions()],
                         ids=[c[0] for c in conversions()])  # fmt: skip
def test_the_rules_as_plain_python(half, widen, narrow):
    """As the simulator runs them: value by value, every half and some thousand hard values."""
    values = hard_values(half)
    values = np.concatenate([values[:393216:97], values[-3000:]])
    with np.errstate(all="ignore"):
        wide = np.array([widen(u) for u in BITS], np.float32)
        back = np.array([narrow(x) for x in values], np.uint16)
    assert same_floats(wide, widened(BITS, half))
    assert same_halves(back, narrowed(values, half), half)

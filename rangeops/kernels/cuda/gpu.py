"""The vocabulary on a GPU: 16-byte accesses, bit casts, atomics and warp sums as intrinsics."""

from __future__ import annotations

import math

from llvmlite import ir
from numba import cuda
from numba.cuda.extending import intrinsic

# numba.cuda brings its own type objects; those of numba itself do not unify with them.
from numba.cuda.types import (
    CPointer,
    UniTuple,
    float32,
    float64,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    void,
)

_POINTED = {"u1": uint8, "u2": uint16, "u4": uint32, "i4": int32, "f4": float32, "f8": float64}


def device(function):
    """Return ``function`` as kernels call it: inlined before typing."""
    return cuda.jit(device=True, inline="always")(function)


@device
def thread():
    """Return the index of this thread in the grid, 64-bit."""
    return cuda.grid(1)


@device
def block_index():
    """Return (thread in block, block, blocks)."""
    return cuda.threadIdx.x, cuda.blockIdx.x, cuda.gridDim.x


syncthreads = cuda.syncthreads


def _words(builder, pointer, index, count):
    """Return a pointer to ``count`` 32-bit words in global memory at element ``index``."""
    p = builder.gep(pointer, [index])
    p = builder.addrspacecast(p, ir.PointerType(p.type.pointee, 1))
    word = ir.IntType(32)
    return builder.bitcast(p, ir.PointerType(ir.VectorType(word, count), 1))


def _vector_load(lanes):
    @intrinsic
    def load(typingctx, pointer, index):
        def codegen(context, builder, sig, args):
            size = lanes * sig.args[0].dtype.bitwidth // 8
            words = builder.load(_words(builder, *args, size // 4), align=size)
            element = context.get_data_type(sig.args[0].dtype)
            v = builder.bitcast(words, ir.VectorType(element, lanes))
            out = [builder.extract_element(v, ir.IntType(32)(k)) for k in range(lanes)]
            return context.make_tuple(builder, sig.return_type, out)

        return UniTuple(pointer.dtype, lanes)(pointer, int64), codegen

    return load


def _vector_store(lanes):
    @intrinsic
    def store(typingctx, pointer, index, values):
        def codegen(context, builder, sig, args):
            element = context.get_data_type(sig.args[0].dtype)
            size = lanes * sig.args[0].dtype.bitwidth // 8
            v = ir.Constant(ir.VectorType(element, lanes), ir.Undefined)
            for k in range(lanes):
                lane = builder.extract_value(args[2], k)
                v = builder.insert_element(v, lane, ir.IntType(32)(k))
            words = builder.bitcast(v, ir.VectorType(ir.IntType(32), size // 4))
            builder.store(words, _words(builder, args[0], args[1], size // 4), align=size)
            return context.get_dummy_value()

        return void(pointer, int64, UniTuple(pointer.dtype, lanes)), codegen

    return store


_load4, _load8, _store4, _store8 = (
    _vector_load(4),
    _vector_load(8),
    _vector_store(4),
    _vector_store(8),
)


@device
def load4(a, i, left):
    """Return the elements i .. i+3 of ``a``; lanes that do not exist repeat the last."""
    if left >= 4:
        return _load4(a, i)
    last = i + left - 1
    return a[i], a[min(i + 1, last)], a[min(i + 2, last)], a[last]


@device
def load8(a, i, left):
    """Return the elements i .. i+7 of ``a``; lanes that do not exist repeat the last."""
    if left >= 8:
        return _load8(a, i)
    last = i + left - 1
    return (
        a[i],
        a[min(i + 1, last)],
        a[min(i + 2, last)],
        a[min(i + 3, last)],
        a[min(i + 4, last)],
        a[min(i + 5, last)],
        a[min(i + 6, last)],
        a[last],
    )


@device
def store4(a, i, lanes, left):
    """Write lanes to the elements i .. i+3 of ``a`` that exist."""
    if left >= 4:
        _store4(a, i, lanes)
    else:
        a[i] = lanes[0]
        if left > 1:
            a[i + 1] = lanes[1]
        if left > 2:
            a[i + 2] = lanes[2]


@device
def store8(a, i, lanes, left):
    """Write lanes to the elements i .. i+7 of ``a`` that exist."""
    if left >= 8:
        _store8(a, i, lanes)
    else:
        a[i] = lanes[0]
        if left > 1:
            a[i + 1] = lanes[1]
        if left > 2:
            a[i + 2] = lanes[2]
        if left > 3:
            a[i + 3] = lanes[3]
        if left > 4:
            a[i + 4] = lanes[4]
        if left > 5:
            a[i + 5] = lanes[5]
        if left > 6:
            a[i + 6] = lanes[6]


@intrinsic
def row4(typingctx, pointer, index):
    """Return four float32 from element ``index``, a multiple of 4, loaded where this stands.

    The load is assembly with a side effect: as a plain one the compiler moves it behind the branch
    that its fellows decide.
    """

    def codegen(context, builder, sig, args):
        p = builder.addrspacecast(
            builder.gep(args[0], [args[1]]), ir.PointerType(ir.FloatType(), 1)
        )
        four = ir.LiteralStructType([ir.FloatType()] * 4)
        load = ir.InlineAsm(
            ir.FunctionType(four, [ir.IntType(64)]),
            "ld.global.v4.f32 {$0, $1, $2, $3}, [$4];",
            "=f,=f,=f,=f,l",
            side_effect=True,
        )
        got = builder.call(load, [builder.ptrtoint(p, ir.IntType(64))])
        lanes = [builder.extract_value(got, k) for k in range(4)]
        return context.make_tuple(builder, sig.return_type, lanes)

    return UniTuple(float32, 4)(pointer, int64), codegen


@intrinsic
def clear16(typingctx, pointer, index):
    """Write 16 zero bytes from byte ``index`` of ``pointer``."""

    def codegen(context, builder, sig, args):
        zero = ir.Constant(ir.VectorType(ir.IntType(32), 4), [0, 0, 0, 0])
        builder.store(zero, _words(builder, args[0], args[1], 4), align=16)
        return context.get_dummy_value()

    return void(pointer, int64), codegen


@intrinsic
def copy16(typingctx, target, source, index):
    """Copy 16 bytes from byte ``index`` of ``source`` to byte ``index`` of ``target``."""

    def codegen(context, builder, sig, args):
        words = builder.load(_words(builder, args[1], args[2], 4), align=16)
        builder.store(words, _words(builder, args[0], args[2], 4), align=16)
        return context.get_dummy_value()

    return void(target, source, int64), codegen


def _conversion(source, target, convert):
    @intrinsic
    def cast(typingctx, value):
        def codegen(context, builder, sig, args):
            return convert(builder, args[0])

        return target(source), codegen

    return cast


_HALF, _I16, _F32, _I32 = ir.HalfType(), ir.IntType(16), ir.FloatType(), ir.IntType(32)
float_bits = _conversion(float32, uint32, lambda b, v: b.bitcast(v, _I32))
bits_float = _conversion(uint32, float32, lambda b, v: b.bitcast(v, _F32))
_widen_fp16 = _conversion(uint16, float32, lambda b, v: b.fpext(b.bitcast(v, _HALF), _F32))
_narrow_fp16 = _conversion(float32, uint16, lambda b, v: b.bitcast(b.fptrunc(v, _HALF), _I16))


def _atomic(operation):
    @intrinsic
    def atomic(typingctx, pointer, index, value):
        def codegen(context, builder, sig, args):
            p = builder.gep(args[0], [args[1]])
            p = builder.addrspacecast(p, ir.PointerType(p.type.pointee, 1))
            return builder.atomic_rmw(operation, p, args[2], "monotonic")

        return int32(pointer, int64, int32), codegen

    return atomic


atomic_min, atomic_add = _atomic("min"), _atomic("add")

fp16 = _widen_fp16, _narrow_fp16
sqrt = math.sqrt


@device
def warp_sum(x):
    """Return the float64 sum over the warp: lane k + lane k+16, then +8, +4, +2, +1."""
    for distance in (16, 8, 4, 2, 1):
        x = x + cuda.shfl_xor_sync(0xFFFFFFFF, x, distance)
    return x


@device
def warp_max(x):
    """Return the largest float64 of the warp."""
    for distance in (16, 8, 4, 2, 1):
        x = max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, distance))
    return x


def compile_to_ltoir(function, pointers, integers):
    """Compile a kernel to LTO-IR of compute_75, which links to every later GPU; needs no GPU.

    ``pointers`` are the element types of the leading arguments ("f4", "u2" …), ``integers`` the
    number of int64 arguments behind them.
    """
    signature = void(*[CPointer(_POINTED[t]) for t in pointers], *[int64] * integers)
    code, _ = cuda.compile(
        function, signature, cc=(7, 5), device=False, abi="numba", output="ltoir"
    )
    return code

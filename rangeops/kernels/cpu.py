"""The loop vocabulary of the CPU arena: numba.njit rules over raw pointers, compiled to objects.

A loop is a function ``loop(*pointers, *integers, start, stop)`` over items ``start .. stop-1``.
A pointer is indexed by any int64 and knows no size, as on the GPU: no wrap-around, no slices.  A
loop allocates nothing and raises nothing, so its machine code needs neither Python nor numba, and
``rangeops.device`` loads and runs it without them.
"""

from __future__ import annotations

import math
import sys
from types import FunctionType, ModuleType
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint8, uint16, uint32
from numba.core import cgutils
from numba.extending import intrinsic

from rangeops.kernels.half import format_of

WORDS = (
    "at", "atomic_min", "bits_float", "float32", "float64", "float_bits", "int32", "int64",
    "local", "row4", "sqrt", "store4", "uint8", "uint16", "uint32",
)  # fmt: skip
"""The names that generated loops may use."""

_POINTED = {"u1": uint8, "u2": uint16, "u4": uint32, "i4": int32, "f4": float32, "f8": float64}

_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


@intrinsic
def sqrt(typingctx, value):
    """Return the square root as LLVM's own operation; ``math.sqrt`` would call the C library."""

    def codegen(context, builder, sig, args):
        kind = args[0].type
        root = builder.module.declare_intrinsic("llvm.sqrt", [kind])
        return builder.call(root, args)

    return value(value), codegen


_MATH = ModuleType("math")
_MATH.__dict__["sqrt"] = sqrt


def device(function):
    """Return ``function`` as loops call it: inlined, NumPy's division, no contraction.

    A rule's ``math`` is the few functions of it that need nothing from outside.
    """
    if function.__globals__.get("math") is math:
        space = function.__globals__ | {"math": _MATH}
        function = FunctionType(
            function.__code__, space, function.__name__, None, function.__closure__
        )
    return njit(inline="always", **_OPTIONS)(function)


@intrinsic
def float_bits(typingctx, value):
    """Return the 32 bits of a float32 as uint32."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return uint32(float32), codegen


@intrinsic
def bits_float(typingctx, value):
    """Return the float32 with the bits of a uint32."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ir.FloatType())

    return float32(uint32), codegen


@intrinsic
def atomic_min(typingctx, pointer, index, value):
    """Lower the int32 ``pointer[index]`` to ``value``; loops of several cores may meet there."""

    def codegen(context, builder, sig, args):
        place = builder.gep(args[0], [args[1]])
        return builder.atomic_rmw("min", place, args[2], "monotonic")

    return int32(types.CPointer(int32), int64, int32), codegen


@intrinsic
def at(typingctx, pointer, index):
    """Return the pointer to element ``index``."""

    def codegen(context, builder, sig, args):
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, int64), codegen


@intrinsic(prefer_literal=True)
def local(typingctx, count, dtype):
    """Return a pointer to ``count`` (a constant) elements of scratch on the stack, not cleared."""
    size = count.literal_value
    element = dtype.instance_type

    def codegen(context, builder, sig, args):
        array = ir.ArrayType(context.get_value_type(element), size)
        slot = cgutils.alloca_once(builder, array)
        slot.align = 64
        return builder.bitcast(slot, context.get_value_type(sig.return_type))

    return types.CPointer(element)(count, dtype), codegen


@device
def row4(a, i):
    """Return the elements i .. i+3 of ``a``."""
    return a[i], a[i + 1], a[i + 2], a[i + 3]


@device
def store4(a, i, lanes, left):
    """Write lanes to the elements i .. i+3 of ``a``."""
    a[i] = lanes[0]
    a[i + 1] = lanes[1]
    a[i + 2] = lanes[2]
    a[i + 3] = lanes[3]


def half(dtype):
    """Return (widen, narrow) of a half format: uint16 -> float32 and back, nearest even."""
    return tuple(device(rule) for rule in format_of(dtype).rules(sys.modules[__name__]))


def target_machine():
    """Return LLVM's compiler for this CPU."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )


def compile_loop(function, pointers, integers, entry):
    """Return the machine code (an object file) of a loop, whose one function is named ``entry``.

    It is called as ``int32 f(void*, void*, pointers..., int64..., start, stop)``; the first two
    are numba's places for a result and an exception, and are not used.

    Raises:
        ValueError: the loop needs something from outside, an allocation or an exception.

    """
    compiled = njit(**_OPTIONS)(function)
    signature = (*(types.CPointer(_POINTED[t]) for t in pointers), *[int64] * (integers + 2))
    compiled.compile(types.void(*signature))
    native = compiled.overloads[signature].fndesc.llvm_func_name
    module = llvm.parse_assembly(compiled.inspect_llvm(signature))
    for part in (*module.functions, *module.global_variables):
        if not part.is_declaration and part.name != native:
            part.linkage = "internal"
    module.get_function(native).name = entry
    machine = target_machine()
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    outside = [
        part.name
        for part in (*module.functions, *module.global_variables)
        if part.is_declaration and not part.name.startswith("llvm.")
    ]
    if outside:
        raise ValueError(
            f"{function.__name__}: the loop needs {', '.join(outside)}, expected nothing from "
            "outside; allocate nothing and raise nothing in it"
        )
    return machine.emit_object(module)

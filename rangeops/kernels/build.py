"""build: a variant's code for a GPU or a CPU, from the disk by content or built now.

A GPU's vocabulary, ``rangeops.kernels.<kind>``, compiles for it (``native``): with numba-cuda and
nvJitLink to a cubin.  A CPU's loop becomes object code by numba and LLVM.

A warm start reads the code from the disk and imports neither numba nor a linker.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rangeops.device import host_loops, linker
from rangeops.kernels.cache import cached, key_of

if TYPE_CHECKING:
    from rangeops.kernels.spec import Kernel

Flags = tuple[tuple[str, Any], ...]
"""The compile-time choices of a variant, sorted by name."""


def cache_key(kernel: Kernel, flags: Flags, arch: str) -> str:
    """Return the content key of one kernel variant for one GPU architecture.

    Ops that share a Kernel share its code: no op's name is part of the key.
    """
    facts = (kernel.name, kernel.arguments, kernel.integers, flags, arch, linker.LINK_OPTIONS)
    return key_of(kernel.gpu, *facts)


@cache
def ltoir(kernel: Kernel, flags: Flags) -> bytes:
    """Compile one kernel variant to LTO-IR; needs numba-cuda, no GPU."""
    from rangeops.kernels import cuda

    function = kernel.gpu(cuda, **dict(flags))
    return cuda.compile_to_ltoir(function, kernel.pointers, len(kernel.integers))


def native(kernel: Kernel, flags: Flags, arch: str, kind: str = "cuda") -> bytes:
    """Return the code of a variant for a kind of GPU, a cubin for CUDA's: kept, or built now."""

    def build() -> bytes:
        words = import_module(f"rangeops.kernels.{kind}")
        function = kernel.gpu(words, **dict(flags))
        return bytes(words.native(function, kernel.pointers, len(kernel.integers), arch))

    return cached(f"{kind}bin", cache_key(kernel, flags, f"{kind} {arch}"), build)


@cache
def gpu_kernel(kernel: Kernel, flags: Flags, device: Any) -> Any:
    """Return the loaded kernel of a variant on a GPU, a ``rangeops.device.base.Compiled``."""
    return device.load(native(kernel, flags, device.architecture, device.kind))


@cache
def simulated_kernel(kernel: Kernel, flags: Flags) -> Any:
    """Return the Python function that Numba's simulator runs as a variant's kernel."""
    from rangeops.kernels import cuda

    return kernel.gpu(cuda, **dict(flags))


def cpu_object(kernel: Kernel, flags: Flags) -> tuple[bytes, str]:
    """Return the object code of a variant's loop for this processor, and its function's name."""
    facts = (kernel.name, kernel.arguments, kernel.integers, flags, host_loops.architecture())
    key = key_of(kernel.cpu, *facts)
    entry = f"loop_{key[:32]}"

    def build() -> bytes:
        from rangeops.kernels import cpu

        function = kernel.cpu(cpu, **dict(flags))
        return cpu.compile_loop(function, kernel.pointers, len(kernel.integers), entry)

    return cached("o", key, build), entry


@cache
def cpu_loop(kernel: Kernel, flags: Flags) -> Any:
    """Return the loop of a variant, callable with addresses and integers."""
    code, entry = cpu_object(kernel, flags)
    return host_loops.load(code, entry, len(kernel.arguments), len(kernel.integers))

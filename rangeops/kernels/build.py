"""Numba -> LTO-IR -> nvJitLink -> cubin, or numba -> object code of a CPU; kept by content.

A warm start reads the code from the disk and imports neither numba nor a linker.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from rangeops.kernels.cache import cached, key_of

if TYPE_CHECKING:
    from rangeops.kernels.spec import Kernel

LINK_OPTIONS = ("-lto", "-fma=0", "-Xptxas=-v")
"""-fma=0 is what makes kernels equal NumPy to the bit; it costs no speed (H200)."""

Flags = tuple[tuple[str, Any], ...]
"""The compile-time choices of a variant, sorted by name."""


def cache_key(kernel: Kernel, flags: Flags, arch: str) -> str:
    """Return the content key of one kernel variant for one GPU architecture.

    Ops that share a Kernel share its code: no op's name is part of the key.
    """
    facts = (kernel.name, kernel.arguments, kernel.integers, flags, arch, LINK_OPTIONS)
    return key_of(kernel.gpu, *facts)


@cache
def ltoir(kernel: Kernel, flags: Flags) -> bytes:
    """Compile one kernel variant to LTO-IR; needs numba-cuda, no GPU."""
    from rangeops.kernels import cuda

    function = kernel.gpu(cuda, **dict(flags))
    return cuda.compile_to_ltoir(function, kernel.pointers, len(kernel.integers))


def link(code: bytes, arch: str, ptx: bool = False) -> tuple[bytes, str]:
    """Link LTO-IR for ``arch`` ("sm_90"); return the cubin (or PTX) and the linker's report."""
    from cuda.bindings import nvjitlink

    options = [f"-arch={arch}", *LINK_OPTIONS, *(["-ptx"] if ptx else [])]
    handle = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, code, len(code), "kernel")
        nvjitlink.complete(handle)
        if ptx:
            out = bytearray(nvjitlink.get_linked_ptx_size(handle))
            nvjitlink.get_linked_ptx(handle, out)
        else:
            out = bytearray(nvjitlink.get_linked_cubin_size(handle))
            nvjitlink.get_linked_cubin(handle, out)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    finally:
        nvjitlink.destroy(handle)
    return bytes(out), log.decode(errors="replace")


def cubin(kernel: Kernel, flags: Flags, arch: str) -> bytes:
    """Return the cubin of a kernel variant, from the disk cache or built now."""
    key = cache_key(kernel, flags, arch)
    return cached("cubin", key, lambda: link(ltoir(kernel, flags), arch)[0])


def entry_name(code: bytes) -> str:
    """Return the name of the one kernel in a cubin, from its ELF symbol table."""
    (offset,) = struct.unpack_from("<Q", code, 0x28)
    size, count, _ = struct.unpack_from("<HHH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, offset + k * size) for k in range(count)]
    for section in sections:
        if section[1] != 2:
            continue
        strings = sections[section[6]][4]
        for k in range(section[5] // 24):
            name, info = struct.unpack_from("<IB", code, section[4] + 24 * k)
            if info == 0x12:
                start = strings + name
                return code[start : code.index(b"\0", start)].decode()
    raise ValueError("cubin: found no global function in its symbol table, expected one kernel")


@cache
def gpu_kernel(kernel: Kernel, flags: Flags, device_id: int) -> Any:
    """Return the loaded cuda.core kernel of a variant on a device."""
    from cuda.core import Device, ObjectCode

    device = Device(device_id)
    device.set_current()
    major, minor = device.compute_capability
    code = cubin(kernel, flags, f"sm_{major}{minor}")
    return ObjectCode.from_cubin(code).get_kernel(entry_name(code))


@cache
def simulated_kernel(kernel: Kernel, flags: Flags) -> Any:
    """Return the Python function that Numba's simulator runs as a variant's kernel."""
    from rangeops.kernels import cuda

    return kernel.gpu(cuda, **dict(flags))


@cache
def cpu_loop(kernel: Kernel, flags: Flags) -> Any:
    """Return the compiled loop of a variant for the CPU arena."""
    from rangeops.kernels import cpu

    function = kernel.cpu(cpu, **dict(flags))
    return cpu.compile_loop(function, kernel.pointers, len(kernel.integers))

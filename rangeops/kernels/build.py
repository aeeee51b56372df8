"""Numba -> LTO-IR -> nvJitLink -> cubin, kept on disk by content.

The key of a cubin is a hash of all kernel sources of this package, the kernel's name and flags,
the architecture, the link options and the versions of the tools: whatever could change the code
changes the key, so nothing stale is ever loaded.  A warm start reads the cubin and imports
neither numba nor a linker.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import struct
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rangeops.kernels.spec import Kernel

LINK_OPTIONS = ("-lto", "-fma=0", "-Xptxas=-v")
"""-fma=0 is what makes kernels equal NumPy to the bit; it costs no speed (H200)."""

_TOOLS = ("numba", "numba-cuda", "llvmlite", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12")

Flags = tuple[tuple[str, Any], ...]


def cache_directory() -> Path:
    """Return where cubins are kept: RANGEOPS_CACHE_DIR, else the user's cache directory."""
    own = os.environ.get("RANGEOPS_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "rangeops"


@cache
def _versions() -> str:
    found = []
    for tool in _TOOLS:
        try:
            found.append(f"{tool} {metadata.version(tool)}")
        except metadata.PackageNotFoundError:
            continue
    return "; ".join(found)


@cache
def _sources(extra: str) -> bytes:
    """Return a hash of every source that can reach a kernel; ``extra`` is the op's own file."""
    package = Path(__file__).parents[1]
    files = sorted({*package.rglob("*.py"), Path(extra)})
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.digest()


def cache_key(kernel: Kernel, flags: Flags, arch: str) -> str:
    """Return the content key of one kernel variant for one architecture."""
    own = inspect.getsourcefile(kernel.gpu) or __file__
    text = repr((kernel.name, kernel.arguments, kernel.integers, flags, arch, LINK_OPTIONS))
    digest = hashlib.sha256(_sources(own))
    digest.update(f"{text}{_versions()}".encode())
    return digest.hexdigest()


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
    file = cache_directory() / f"{cache_key(kernel, flags, arch)}.cubin"
    try:
        stored = file.read_bytes()
    except OSError:
        stored = b""
    if stored[:32] == hashlib.sha256(stored[32:]).digest():
        return stored[32:]
    code, _ = link(ltoir(kernel, flags), arch)
    _store(file, hashlib.sha256(code).digest() + code)
    return code


def _store(file: Path, content: bytes) -> None:
    """Write a cache file in one move, so that a reader sees all of it or none."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as out:
            out.write(content)
        os.replace(out.name, file)
    except OSError:
        return  # a read-only cache directory costs the next process time, nothing else


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

"""linker: LTO-IR -> cubin or PTX by nvJitLink, without a GPU, and the kernel's name in a cubin."""

from __future__ import annotations

import struct

LINK_OPTIONS = ("-lto", "-fma=0", "-Xptxas=-v")
"""-fma=0 is what makes kernels equal NumPy to the bit.  ``cuda.core.Linker`` cannot give it:
``LinkerOptions(fma=False)`` becomes ``-fma=false``, which libnvvm refuses (cuda-core 1.2)."""


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


def entry_name(code: bytes) -> str:
    """Return the name of the one kernel in a cubin, from its ELF symbol table; needs no driver.

    Raises:
        ValueError: the table has no global function.

    """
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

"""host_loops: compiled loops of the CPU: machine code loaded into the process, run on all cores.

A loop is ``int32 loop(void*, void*, pointers..., int64..., start, stop)`` over the items
``start .. stop-1``; the first two are the compiler's places for a result and an exception.  It
needs neither Python nor numba, so a process that finds its loops on the disk imports llvmlite's
loader alone (about 20 ms; ``python -X importtime``).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

PIECE = 1 << 14
"""Elements a further thread has to get: below, handing over costs more than it brings."""

_lock = threading.Lock()
_result = ctypes.create_string_buffer(16)
_RESULT = ctypes.addressof(_result)
"""Where every loop writes that it returns nothing; nobody reads it."""

Loop = Callable[..., None]
"""``loop(*addresses, *integers, start, stop)``."""


@cache
def architecture() -> str:
    """Return what decides a loop's machine code: the processor, and what numba is told of it."""
    import llvmlite.binding as llvm

    told = [os.environ.get(f"NUMBA_{name}", "") for name in ("CPU_NAME", "CPU_FEATURES", "OPT")]
    return "/".join([llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), *told])


@cache
def _engine() -> Any:
    """Return LLVM's loader; it keeps the machine code of all loops."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target.create_target_machine())


def load(code: bytes, entry: str, pointers: int, integers: int) -> Loop:
    """Return the function ``entry`` of an object file; it runs without the interpreter's lock.

    Args:
        code: the object file.
        entry: its function's name, of which a process may load one.
        pointers: number of its pointer arguments.
        integers: number of its int64 arguments before ``start`` and ``stop``.

    """
    import llvmlite.binding as llvm

    with _lock:
        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = engine.get_function_address(entry)
    kinds = [ctypes.c_void_p] * (pointers + 2) + [ctypes.c_int64] * (integers + 2)
    call = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(address)

    def loop(*arguments: int) -> None:
        if call(_RESULT, _RESULT, *arguments):
            raise RuntimeError(f"{entry}: the loop raised, expected one that raises nothing")

    return loop


@cache
def _pool() -> tuple[ThreadPoolExecutor, int]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(cores), cores or 1


def launcher(
    loop: Loop, arguments: Sequence[int], count: int, unit: int, elements: int
) -> Callable[[int], None]:
    """Return ``launch(stream)``, which runs a loop over ``count`` items on all cores and waits.

    Args:
        loop: what ``load`` returned.
        arguments: its addresses and integers.
        count: items.
        unit: a core gets a multiple of so many items; 0: one core gets all.
        elements: elements that the items hold; for few of them one core is faster.

    """
    pool, cores = _pool()
    pieces = min(cores, elements // PIECE) if unit else 1
    if pieces <= 1:
        whole = (*arguments, 0, count)
        return lambda stream: loop(*whole)
    step = -(-count // (pieces * unit)) * unit
    calls = [(*arguments, first, min(count, first + step)) for first in range(0, count, step)]

    def launch(stream: int) -> None:
        for job in [pool.submit(loop, *call) for call in calls]:
            job.result()

    return launch

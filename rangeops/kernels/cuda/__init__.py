"""The kernel vocabulary; this package alone imports numba.cuda.

Kernels receive this module as ``x`` and use its names only: ``thread``, ``load4``, ``store4`` ….
``gpu`` has them for a GPU, where a pointer argument is a ``CPointer``; ``simulator`` for Numba's
simulator, where it is a one-dimensional array.  Half data are uint16 in memory and float32 in
arithmetic; ``half(format)`` gives the conversions.

``load4(a, i, left)`` reads elements ``i .. i+3`` as one vector when ``left >= 4``; at the end of
a range it reads the ``left`` elements that exist one by one, and nothing past them.
"""

from __future__ import annotations

from importlib import import_module

from numba.core import config

from rangeops.kernels.half import format_of

WORDS = (
    "atomic_add", "atomic_min", "bits_float", "block_index", "clear16", "copy16", "float32",
    "float64", "float_bits", "int32", "int64", "load4", "load8", "row4", "sqrt", "store4",
    "store8", "syncthreads", "thread", "uint8", "uint16", "uint32", "warp_max", "warp_sum",
)  # fmt: skip
"""The names that kernels may use."""

SIMULATED = bool(config.ENABLE_CUDASIM)
_forms = import_module(f"rangeops.kernels.cuda.{'simulator' if SIMULATED else 'gpu'}")


def __getattr__(name):
    """Return a word of the vocabulary in the form that this process runs."""
    return getattr(_forms, name)


def half(dtype):
    """Return (widen, narrow) of a half format: uint16 -> float32 and back, nearest even.

    By the form's own conversions where it has them, else by the rules.
    """
    own = getattr(_forms, dtype or "fp16", None)
    return own or tuple(_forms.device(rule) for rule in format_of(dtype).rules(_forms))


def native(function, pointers, integers, arch):
    """Return the cubin of a kernel for an architecture ("sm_90"); needs no GPU."""
    from rangeops.device.linker import link

    return link(_forms.compile_to_ltoir(function, pointers, integers), arch)[0]

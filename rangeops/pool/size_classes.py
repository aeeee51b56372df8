"""Size classes: how many bytes a request takes, so that requests of one class share blocks.

    size class     up to 1 MiB: the next multiple of 512 bytes;  beyond: the next power of two
    exception      beyond 1 GiB: the next multiple of 2 MiB, since doubling 70 GiB fits no GPU

Source: the origin's phase T11, without the exception.
"""

from __future__ import annotations

GRAIN = 512
"""Bytes: small classes are multiples of this."""

SMALL = 1 << 20
"""Bytes up to which classes are multiples of GRAIN; beyond, powers of two."""

HUGE = 1 << 30
"""Bytes beyond which a block is rounded to HUGE_GRAIN only: the stated exception."""

HUGE_GRAIN = 2 << 20


def size_class(nbytes: int) -> int:
    """Return the origin's class of a request in bytes; 0 takes a block of its own, of 512.

    >>> [size_class(n) for n in (0, 1, 512, 513, 2**20, 2**20 + 1)]
    [512, 512, 512, 1024, 1048576, 2097152]

    Raises:
        ValueError: a negative request.

    """
    if nbytes < 0:
        raise ValueError(f"pool: got {nbytes} bytes, expected 0 or more; check the shape")
    if nbytes <= SMALL:
        return max(1, -(-nbytes // GRAIN)) * GRAIN
    return 1 << (nbytes - 1).bit_length()


def capacity_of(nbytes: int) -> int:
    """Return the bytes that a request takes: its class, or for a huge one its own size rounded.

    >>> capacity_of(70 * 2**30 + 1) - 70 * 2**30
    2097152
    """
    if nbytes > HUGE:
        return -(-nbytes // HUGE_GRAIN) * HUGE_GRAIN
    return size_class(nbytes)

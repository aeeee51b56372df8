"""CachingPool: device memory that is given back to a list, never to the driver, and taken from it.

    size class     up to 1 MiB: the next multiple of 512 bytes;  beyond: the next power of two
    exception      beyond 1 GiB: the next multiple of 2 MiB, since doubling 70 GiB fits no GPU

A released block goes to the list of the device, the stream and the class it was acquired for, so a
later use is ordered behind the earlier one by the stream itself; whoever used a block on other
streams as well says so with ``used_on``, and the release makes the block's stream wait for them.
Contents are not cleared.  Lists are unbounded; ``trim`` gives cached blocks back to the driver, and
so does an allocation that finds no memory, before it fails.

Locks are of two levels: a registry lock held for one lookup, and a lock per device, so threads of
different devices never wait for each other.  Source: the origin's phase T11 (thread per GPU); keyed
by stream here, because on non-blocking streams T11's lists would hand out blocks still in use.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Protocol

GRAIN = 512
"""Bytes: small classes are multiples of this."""

SMALL = 1 << 20
"""Bytes up to which classes are multiples of GRAIN; beyond, powers of two."""

HUGE = 1 << 30
"""Bytes beyond which a block is rounded to HUGE_GRAIN only: the stated exception."""

HUGE_GRAIN = 2 << 20


def size_class(nbytes: int) -> int:
    """Return the origin's class of a request in bytes; 0 is a class of its own size, 512.

    >>> [size_class(n) for n in (0, 1, 512, 513, 2**20, 2**20 + 1)]
    [512, 512, 512, 1024, 1048576, 2097152]
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


class OutOfMemory(MemoryError):
    """The driver has no block of the size, or the pool has not after giving its cache back."""


class Driver(Protocol):
    """What the pool needs of a device library; a fake one serves the tests."""

    def current_device(self) -> int:
        """Return the device that this thread works on."""

    def current_stream(self) -> int:
        """Return the raw handle of the stream that this thread works on."""

    def capturing(self, stream: int) -> bool:
        """Return whether the stream is being captured into a graph."""

    def allocate(self, device: int, nbytes: int) -> int:
        """Return the address of ``nbytes`` new bytes; raise OutOfMemory where there are none."""

    def free(self, device: int, pointer: int) -> None:
        """Give a block back."""

    def synchronize(self, device: int) -> None:
        """Wait for all work of a device."""

    def wait_for(self, device: int, waiting: int, other: int) -> None:
        """Make stream ``waiting`` wait for what stream ``other`` has been given so far."""


@dataclass
class Block:
    """One live block.

    Attributes:
        pointer: its address.
        nbytes: the bytes that were asked for; nothing reads or writes beyond.
        capacity: the bytes it has.
        device: the device it lies on, wherever it is released.
        stream: raw handle of the stream it was acquired on.

    """

    pointer: int
    nbytes: int
    capacity: int
    device: int
    stream: int
    _others: set[int] = field(default_factory=set, repr=False)

    def used_on(self, stream: int) -> None:
        """Say that another stream uses the block too; a release will wait for it."""
        if stream != self.stream:
            self._others.add(stream)


@dataclass(frozen=True)
class Statistics:
    """Counts and bytes of one device since the pool was made."""

    hits: int
    misses: int
    live_bytes: int
    cached_bytes: int
    reserved_bytes: int
    peak_live_bytes: int
    peak_reserved_bytes: int


class _DevicePool:
    """The lists of one device; every access holds ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self.live: dict[int, Block] = {}
        self.hits = self.misses = 0
        self.live_bytes = self.cached_bytes = self.peak_live = self.peak_reserved = 0

    def took(self, block: Block) -> None:
        self.live[block.pointer] = block
        self.live_bytes += block.capacity
        self.peak_live = max(self.peak_live, self.live_bytes)
        self.peak_reserved = max(self.peak_reserved, self.live_bytes + self.cached_bytes)


class CachingPool:
    """Device memory by class, device and stream; see the module's docstring.

    Args:
        driver: the device library.
        limit: most bytes that one device may have reserved, None for the device's own limit.

    """

    def __init__(self, driver: Driver, limit: int | None = None) -> None:
        self._driver = driver
        self._limit = limit
        self._registry = threading.Lock()
        self._pools: dict[int, _DevicePool] = {}
        self._process = os.getpid()

    def _pool(self, device: int) -> _DevicePool:
        with self._registry:
            return self._pools.setdefault(device, _DevicePool())

    def acquire(self, nbytes: int, stream: int | None = None) -> Block:
        """Return a block of at least ``nbytes`` on the current device, for ``stream``.

        ``stream`` is a raw handle (default: the current one).  Contents are whatever was there.

        Raises:
            OutOfMemory: none, even with the cache given back.
            RuntimeError: in a forked process, or a miss while the stream is captured.

        """
        self._check_process()
        device = self._driver.current_device()
        handle = self._driver.current_stream() if stream is None else stream
        capacity = capacity_of(nbytes)
        pool = self._pool(device)
        with pool.lock:
            cached = pool.free.get((handle, capacity))
            if cached:
                block = Block(cached.pop(), nbytes, capacity, device, handle)
                pool.hits += 1
                pool.cached_bytes -= capacity
            else:
                if self._driver.capturing(handle):
                    raise RuntimeError(
                        f"pool: acquire of {nbytes} bytes found no cached block of {capacity} "
                        "while the stream is capturing, expected one; acquire and release one of "
                        "this size on this stream before the capture"
                    )
                pointer = self._allocate(pool, device, capacity)
                block = Block(pointer, nbytes, capacity, device, handle)
                pool.misses += 1
            pool.took(block)
        return block

    def _allocate(self, pool: _DevicePool, device: int, capacity: int) -> int:
        try:
            return self._from_driver(pool, device, capacity)
        except OutOfMemory:
            self._give_back(pool, device)
            return self._from_driver(pool, device, capacity)

    def _from_driver(self, pool: _DevicePool, device: int, capacity: int) -> int:
        reserved = pool.live_bytes + pool.cached_bytes
        if self._limit is not None and reserved + capacity > self._limit:
            raise OutOfMemory(
                f"pool: device {device} has {reserved} bytes reserved and needs {capacity} more, "
                f"expected at most {self._limit}; release blocks or raise the limit"
            )
        return self._driver.allocate(device, capacity)

    def release(self, block: Block) -> None:
        """Put a block back into the list of the device and stream it was acquired for.

        Raises:
            ValueError: not a live block of this pool: released already, or foreign.
            RuntimeError: in a forked process.

        """
        self._check_process()
        pool = self._pool(block.device)
        with pool.lock:
            if pool.live.get(block.pointer) is not block:
                raise ValueError(
                    f"pool: release got address {block.pointer:#x}, which is no live block of "
                    f"device {block.device}, expected one acquired and not yet released; release "
                    "once, to the pool that gave it"
                )
            del pool.live[block.pointer]
            for other in sorted(block._others):
                self._driver.wait_for(block.device, block.stream, other)
            pool.free[block.stream, block.capacity].append(block.pointer)
            pool.live_bytes -= block.capacity
            pool.cached_bytes += block.capacity

    def trim(self, device: int | None = None) -> int:
        """Give all cached blocks of a device (default: of all) to the driver; returns bytes."""
        self._check_process()
        with self._registry:
            chosen = [d for d in self._pools if device in (None, d)]
        total = 0
        for number in chosen:
            pool = self._pool(number)
            with pool.lock:
                total += self._give_back(pool, number)
        return total

    def _give_back(self, pool: _DevicePool, device: int) -> int:
        """Free what is cached; work that still uses it is waited for first."""
        given = pool.cached_bytes
        if given:
            self._driver.synchronize(device)
        for pointers in pool.free.values():
            for pointer in pointers:
                self._driver.free(device, pointer)
        pool.free.clear()
        pool.cached_bytes = 0
        return given

    def statistics(self) -> dict[int, Statistics]:
        """Return counts and bytes by device."""
        with self._registry:
            pools = dict(self._pools)
        out = {}
        for device, pool in sorted(pools.items()):
            with pool.lock:
                out[device] = Statistics(
                    pool.hits,
                    pool.misses,
                    pool.live_bytes,
                    pool.cached_bytes,
                    pool.live_bytes + pool.cached_bytes,
                    pool.peak_live,
                    pool.peak_reserved,
                )
        return out

    def table(self) -> str:
        """Return the statistics as text, a line per device."""
        heads = list(Statistics.__dataclass_fields__)
        lines = [" ".join(["device", *(f"{head:>19}" for head in heads)])]
        for device, found in self.statistics().items():
            cells: list[Any] = [getattr(found, head) for head in heads]
            lines.append(" ".join([f"{device:>6}", *(f"{cell:>19,}" for cell in cells)]))
        return "\n".join(lines)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "pool: got a call in a forked process, expected the one that made the pool; its "
                "memory does not exist here, start processes with spawn and make a pool in each"
            )

"""CachingPool: free lists by device, stream and size class; see ``rangeops.pool``.

A released block goes to the list of the device, the stream and the class it was acquired for, so a
later use is ordered behind the earlier one by the stream itself; whoever used a block on other
streams as well says so with ``used_on``, and the release makes the block's stream wait for them.
Contents are not cleared.  Lists are unbounded; ``trim`` gives cached blocks back to the driver, and
so does an allocation that finds no memory, before it fails.  A stream that is destroyed has to be
idle, since the driver may give its handle to another one.

A captured graph goes on writing to its temporaries, so a block that was acquired or released while
its stream was being captured is handed to captures of that stream only, until
``trim(captured=True)`` after the graphs are gone.

Locks are of two levels: a registry lock held for one lookup, and a lock per device, so threads of
different devices never wait for each other.  Source: the origin's phase T11 (thread per GPU); keyed
by stream here, because on non-blocking streams T11's lists would hand out blocks still in use.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from rangeops.pool.classes import capacity_of
from rangeops.pool.driver import CudaDriver, Driver, OutOfMemory, same_stream


class Block:
    """One live block.

    Attributes:
        pointer: its address.
        nbytes: the bytes that were asked for; nothing reads or writes beyond.
        capacity: the bytes it has.
        device: the device it lies on, wherever it is released.
        stream: raw handle of the stream it was acquired on.
        captured: whether a graph may go on using it after its release.

    """

    __slots__ = ("_others", "capacity", "captured", "device", "nbytes", "pointer", "stream")

    def __init__(
        self, pointer: int, nbytes: int, capacity: int, device: int, stream: int, captured: bool
    ) -> None:
        self.pointer, self.nbytes, self.capacity = pointer, nbytes, capacity
        self.device, self.stream, self.captured = device, stream, captured
        self._others: tuple[int, ...] = ()

    def used_on(self, stream: int) -> None:
        """Say that another stream uses the block too; a release will wait for it."""
        handle = same_stream(stream)
        if handle != self.stream and handle not in self._others:
            self._others += (handle,)


@dataclass(frozen=True)
class Statistics:
    """Counts and bytes of one device since the pool was made.

    Attributes:
        hits, misses: acquires served from a list, and from the driver.
        live_bytes: capacity of the blocks that are held.
        cached_bytes: capacity of the blocks in lists.
        captured_bytes: the part of it that only captures may take.
        reserved_bytes: live and cached, what the driver has given.

    """

    hits: int
    misses: int
    live_bytes: int
    cached_bytes: int
    captured_bytes: int
    reserved_bytes: int
    peak_live_bytes: int
    peak_reserved_bytes: int


_Key = tuple[int, int, bool]


class _DevicePool:
    """The lists of one device; every access holds ``lock``.

    The lock may be taken twice by one thread: the garbage collector may drop the last hold on
    a block, and with it release it, at any allocation of Python's, also at one in here.  So no
    method keeps a list or a sum in a variable over a call.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.free: defaultdict[_Key, list[int]] = defaultdict(list)
        self.live: dict[int, Block] = {}
        self.hits = self.misses = 0
        self.live_bytes = self.reserved = 0
        self.peak_live = self.peak_reserved = 0

    def take(self, key: _Key) -> int | None:
        """Return the address of a cached block, None if the list is empty."""
        cached = self.free.get(key)
        if not cached:
            return None
        self.hits += 1
        return cached.pop()

    def got(self, nbytes: int) -> None:
        """Count a block that the driver gave."""
        self.misses += 1
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def cached(self, captured: bool = False) -> int:
        """Return the bytes in lists, or in those of captures only."""
        return sum(key[1] * len(some) for key, some in [*self.free.items()] if key[2] >= captured)

    def drain(self, captured: bool) -> list[int]:
        """Empty the lists, of captures too if asked; return what was in them."""
        taken = []
        for key in [key for key in self.free if captured or not key[2]]:
            pointers = self.free.pop(key)
            self.reserved -= key[1] * len(pointers)
            taken += pointers
        return taken


_pools: weakref.WeakSet[CachingPool] = weakref.WeakSet()


def _mark_forked() -> None:
    for pool in _pools:
        pool.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


class CachingPool:
    """Device memory by class, device and stream; see the module's docstring.

    Args:
        driver: the device library (default: CUDA).
        limit: most bytes that one device may have reserved, None for the device's own limit.

    Attributes:
        forked: whether this process is a fork of the one that made the pool.

    """

    def __init__(self, driver: Driver | None = None, limit: int | None = None) -> None:
        self._driver: Driver = CudaDriver() if driver is None else driver
        self._limit = limit
        self._registry = threading.RLock()
        self._pools: dict[int, _DevicePool] = {}
        self.forked = False
        _pools.add(self)

    def _pool(self, device: int) -> _DevicePool:
        pool = self._pools.get(device)
        if pool is None:
            with self._registry:
                pool = self._pools.setdefault(device, _DevicePool())
        return pool

    def acquire(self, nbytes: int, stream: int | None = None) -> Block:
        """Return a block of at least ``nbytes`` on the current device, for ``stream``.

        ``stream`` is a raw handle (default: the current one).  Contents are whatever was there.

        Raises:
            OutOfMemory: none, even with the cache given back.
            RuntimeError: in a forked process, or a miss while the stream is captured.
            ValueError: negative bytes, or the per-thread default stream.

        """
        if self.forked:
            self._refuse_fork()
        driver = self._driver
        device = driver.current_device()
        handle = driver.current_stream() if stream is None else same_stream(stream)
        capacity = capacity_of(nbytes)
        captured = driver.capturing(handle)
        pool = self._pool(device)
        with pool.lock:
            pointer = pool.take((handle, capacity, captured))
            if pointer is None and captured:
                pointer = pool.take((handle, capacity, False))
                if pointer is None:
                    raise RuntimeError(
                        f"pool: acquire of {nbytes} bytes found no cached block of {capacity} "
                        "while the stream is capturing, expected one; acquire and release one of "
                        "this size on this stream before the capture"
                    )
            if pointer is None:
                pointer = self._allocate(pool, device, capacity)
                pool.got(capacity)
            block = Block(pointer, nbytes, capacity, device, handle, captured)
            pool.live[pointer] = block
            pool.live_bytes += capacity
            if pool.live_bytes > pool.peak_live:
                pool.peak_live = pool.live_bytes
        return block

    def _allocate(self, pool: _DevicePool, device: int, capacity: int) -> int:
        try:
            return self._from_driver(pool, device, capacity)
        except OutOfMemory:
            self._give_back(pool, device, captured=False)
            return self._from_driver(pool, device, capacity)

    def _from_driver(self, pool: _DevicePool, device: int, capacity: int) -> int:
        if self._limit is not None and pool.reserved + capacity > self._limit:
            raise OutOfMemory(
                f"pool: device {device} has {pool.reserved} bytes reserved and needs {capacity} "
                f"more, expected at most {self._limit}; release blocks or raise the limit"
            )
        return self._driver.allocate(device, capacity)

    def release(self, block: Block) -> None:
        """Put a block back into the list of the device and stream it was acquired for.

        Raises:
            ValueError: not a live block of this pool: released already, or foreign.
            RuntimeError: in a forked process.

        """
        if self.forked:
            self._refuse_fork()
        pool = self._pool(block.device)
        with pool.lock:
            if pool.live.get(block.pointer) is not block:
                raise ValueError(
                    f"pool: release got address {block.pointer:#x}, which is no live block of "
                    f"device {block.device}, expected one acquired and not yet released; release "
                    "once, to the pool that gave it"
                )
            for other in block._others:
                self._driver.wait_for(block.device, block.stream, other)
            block.captured = block.captured or self._driver.capturing(block.stream)
            del pool.live[block.pointer]
            pool.live_bytes -= block.capacity
            pool.free[block.stream, block.capacity, block.captured].append(block.pointer)

    def trim(self, device: int | None = None, captured: bool = False) -> int:
        """Give cached blocks of a device (default: of all) to the driver; returns bytes.

        ``captured`` says that the graphs which used blocks of captures are gone.
        """
        if self.forked:
            self._refuse_fork()
        with self._registry:
            chosen = [d for d in self._pools if device in (None, d)]
        total = 0
        for number in chosen:
            pool = self._pool(number)
            with pool.lock:
                total += self._give_back(pool, number, captured)
        return total

    def _give_back(self, pool: _DevicePool, device: int, captured: bool) -> int:
        """Free what is cached; work that still uses it is waited for first."""
        if not pool.cached():
            return 0
        self._driver.synchronize(device)
        before = pool.reserved
        taken = pool.drain(captured)
        given = before - pool.reserved
        for pointer in taken:
            self._driver.free(device, pointer)
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
                    pool.cached(),
                    pool.cached(captured=True),
                    pool.reserved,
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

    def _refuse_fork(self) -> None:
        raise RuntimeError(
            "pool: got a call in a forked process, expected the one that made the pool; its "
            "memory does not exist here, start processes with spawn and make a pool in each"
        )

"""CachingPool: free lists by device, stream and size class; see ``rangeops.pool``.

A released block goes to the list of the device, the stream and the class it was acquired for, so a
later use is ordered behind the earlier one by the stream itself; whoever used a block on other
streams as well says so with ``used_on``, and the release makes the block's stream wait for them.
Contents are cleared only if asked.  Lists are unbounded; ``trim`` gives cached blocks back to the
driver, and so does an allocation that finds no memory, before it fails.  A stream that is destroyed
has to be idle, since the driver may give its handle to another one.

A captured graph goes on writing to its temporaries, so a block that was acquired while its stream
was being captured, or released while the current one was, is handed to captures of that stream
only, until ``trim(captured=True)`` after the graphs are gone.

Source: the origin's phase T11 (a thread per GPU), keyed by stream here, because on non-blocking
streams T11's lists would hand out blocks still in use.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass

from rangeops.pool.driver import CudaDriver, Driver, OutOfMemory, same_stream
from rangeops.pool.free_lists import Block, DevicePool
from rangeops.pool.size_classes import capacity_of


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
        self._pools: dict[int, DevicePool] = {}
        self.forked = False
        _pools.add(self)

    def _pool(self, device: int) -> DevicePool:
        pool = self._pools.get(device)
        if pool is None:
            with self._registry:
                pool = self._pools.setdefault(device, DevicePool())
        return pool

    def acquire(self, nbytes: int, stream: int | None = None, zero: bool = False) -> Block:
        """Return a block of at least ``nbytes`` on the current device, for ``stream``.

        ``stream`` is a raw handle (default: the current one).  Contents are whatever was there;
        with ``zero`` the bytes asked for, and no more, are cleared in order of the stream.

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
        pointer = pool.take((handle, capacity, captured))
        if pointer is None and captured:
            pointer = pool.take((handle, capacity, False))
            if pointer is None:
                raise RuntimeError(
                    f"pool: acquire of {nbytes} bytes found no cached block of {capacity} while "
                    "the stream is capturing, expected one; acquire and release one of this size "
                    "on this stream before the capture"
                )
        if pointer is None:
            pointer = self._allocate(pool, device, capacity)
        block = Block(pointer, nbytes, capacity, device, handle, captured)
        pool.live[block] = None
        pool.count(capacity, 1)
        if zero and nbytes:
            driver.clear(pointer, nbytes, handle)
        return block

    def _allocate(self, pool: DevicePool, device: int, capacity: int) -> int:
        with pool.lock:
            try:
                pointer = self._from_driver(pool, device, capacity)
            except OutOfMemory:
                self._give_back(pool, device, captured=False)
                pointer = self._from_driver(pool, device, capacity)
            pool.misses += 1
            pool.reserved += capacity
            pool.peak_reserved = max(pool.peak_reserved, pool.reserved)
        return pointer

    def _from_driver(self, pool: DevicePool, device: int, capacity: int) -> int:
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
        if pool.live.pop(block, block) is not None:
            raise ValueError(
                f"pool: release got address {block.pointer:#x}, which is no live block of device "
                f"{block.device}, expected one acquired and not yet released; release once, to "
                "the pool that gave it"
            )
        driver = self._driver
        for other in block._others:
            driver.wait_for(block.device, block.stream, other)
        # The current stream, since the block's own may have been destroyed.
        block.captured = block.captured or driver.capturing(driver.current_stream())
        pool.count(-block.capacity, 0)
        pool.put(block)

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

    def _give_back(self, pool: DevicePool, device: int, captured: bool) -> int:
        """Free what is cached; work that still uses it is waited for first."""
        if not pool.cached():
            return 0
        self._driver.synchronize(device)
        freed = 0
        for pointer, nbytes in pool.drain(captured):
            pool.reserved -= nbytes
            freed += nbytes
            self._driver.free(device, pointer)
        return freed

    def statistics(self) -> dict[int, Statistics]:
        """Return counts and bytes by device."""
        with self._registry:
            pools = dict(self._pools)
        out = {}
        for device, pool in sorted(pools.items()):
            with pool.lock:
                out[device] = Statistics(
                    pool.acquired - pool.misses,
                    pool.misses,
                    pool.live_bytes,
                    pool.cached(),
                    pool.cached(captured=True),
                    pool.reserved,
                    pool.peak_live,
                    pool.peak_reserved,
                )
        return out

    def _refuse_fork(self) -> None:
        raise RuntimeError(
            "pool: got a call in a forked process, expected the one that made the pool; its "
            "memory does not exist here, start processes with spawn and make a pool in each"
        )

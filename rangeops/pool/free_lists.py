"""The lists of one device: what is free, by stream and class, what is live, and the sums.

Taking from a list and putting into it are single operations of Python's lists and dicts, which
threads may call at once; a lock would be waited for with the GIL given away, and threads then take
turns every 5 ms (eight of them took 36,000 blocks a second while there was one, 130,000 to 160,000
since; hosts of H200s, ``python -m bench --only pool``).  What reaches the driver holds a lock of
the device, found under a registry lock, so threads of different devices never wait for each other.
Both may be taken again by their holder: the garbage collector may release a block inside any call.
Without the GIL the sums are kept under the device's lock.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rangeops.pool.driver import same_stream

FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


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


_Key = tuple[int, int, bool]


class DevicePool:
    """The lists and sums of one device."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sums: AbstractContextManager[Any] = self.lock if FREE_THREADED else nullcontext()
        self.free: dict[_Key, list[int]] = {}
        self.live: dict[Block, None] = {}
        self.acquired = self.misses = 0
        self.live_bytes = self.reserved = 0
        self.peak_live = self.peak_reserved = 0

    def take(self, key: _Key) -> int | None:
        """Return the address of a cached block, None if the list is empty."""
        cached = self.free.get(key)
        if cached is None:
            return None
        try:
            return cached.pop()
        except IndexError:
            return None

    def put(self, block: Block) -> None:
        """Put a block into its list."""
        key = (block.stream, block.capacity, block.captured)
        cached = self.free.get(key)
        if cached is None:
            cached = self.free.setdefault(key, [])
        cached.append(block.pointer)

    def count(self, nbytes: int, acquired: int) -> None:
        """Add to the sums what was acquired, or with 0 released."""
        with self.sums:
            self.acquired += acquired
            self.live_bytes += nbytes
            if self.live_bytes > self.peak_live:
                self.peak_live = self.live_bytes

    def cached(self, captured: bool = False) -> int:
        """Return the bytes in lists, or in those of captures only."""
        lists = [*self.free.items()]
        return sum(key[1] * len(blocks) for key, blocks in lists if key[2] >= captured)

    def drain(self, captured: bool) -> Iterator[tuple[int, int]]:
        """Take every block out of the lists, of captures too if asked: (address, bytes).

        The lists stay, since another thread may be about to put a block into one.
        """
        for key in [*self.free]:
            while (captured or not key[2]) and (pointer := self.take(key)) is not None:
                yield pointer, key[1]

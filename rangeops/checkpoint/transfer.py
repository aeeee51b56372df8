"""transfer: bytes of files into an arena.

Straight into host memory; through pinned memory to a GPU, where one part is read while the one
before is on its way.
"""

from __future__ import annotations

import numpy as np

from plan import Range
from rangeops.arena.arena import Arena
from rangeops.checkpoint.archive import Piece

PART = 32 << 20
"""Bytes of a pinned buffer; two of them."""


class Uploads:
    """The way of files' bytes into one arena, on its framework's current stream."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._device = arena, arena.backend
        self._stream = arena.current_stream()
        self._host = isinstance(arena.view(Range(0, 0)), np.ndarray)
        pinned = [] if self._host else [self._device.pinned(PART) for _ in range(2)]
        self._slots = [(memory, self._device.event()) for memory in pinned]
        self._count = 0

    def read(self, piece: Piece, skip: int, span: Range) -> None:
        """Fill a range of the arena from the piece's byte ``skip`` on."""
        if self._host:
            piece.read_into(self._arena.view(span), skip)
            return
        for at in range(0, span.size, PART):
            size = min(PART, span.size - at)
            memory, event = self._slots[self._count % len(self._slots)]
            event.synchronize()
            piece.read_into(memory[:size], skip + at)
            address = self._arena.ptr_at(span.base_offset + at)
            self._device.upload(address, memory[:size], self._stream, wait=False)
            event.record(self._stream)
            self._count += 1

    def finish(self) -> None:
        """Wait for the last parts."""
        for _, event in self._slots:
            event.synchronize()

"""memory: the bytes of an arena: where they lie, views of them, copies from and to the host.

Whatever hands out bytes or writes them says so (``exposed``), so that the host's mirror of the
scalars never goes stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from plan import Range
from rangeops.arena.buffer import check_inside
from rangeops.arena.scalars import Scalars
from rangeops.arena.sparse import check_mapped, outside
from rangeops.device.base import Device


class ArenaMemory:
    """The bytes of an arena; what a plan makes of them is ``Arena``."""

    backend: Device
    framework: str
    nbytes: int
    ptr: int
    unmapped: tuple[Range, ...]
    holes: tuple[Range, ...]
    _memory: Any
    _stream: int | None
    _scalars: Scalars | None

    @property
    def device(self) -> str:
        """Where it lies: "cuda:0", "cpu" or "simulator"."""
        return self.backend.name

    @property
    def on_gpu(self) -> bool:
        """Whether its memory is a GPU's, so that views are CuPy arrays."""
        return self.backend.index >= 0

    @property
    def memory(self) -> Any:
        """All its bytes as a flat uint8 array of CuPy or NumPy."""
        self.exposed(Range(0, self.nbytes))
        return self._memory

    def exposed(self, span: Range, lasting: bool = True) -> None:
        """Note that bytes may be written past the arena's own methods, so that no copy is stale."""
        if self._scalars is not None:
            self._scalars.written(span, lasting)

    def ptr_at(self, offset: int) -> int:
        """Return the raw address of byte ``offset``."""
        return self.ptr + int(offset)

    def view(self, span: Range, dtype: str = "u1") -> Any:
        """Return a zero-copy one-dimensional view of a byte range (CuPy or NumPy array).

        Raises:
            PlanError: bytes outside the arena, or no whole elements.

        """
        self._check_inside("view", span, dtype)
        self.exposed(span)
        return self._memory[span.base_offset : span.base_offset + span.size].view(dtype)

    def clear(self, span: Range) -> None:
        """Zero what has memory of a range, in order of the current stream."""
        stream = self.current_stream()
        for part in outside(self.holes, span):
            self.backend.clear(self.ptr_at(part.base_offset), part.size, stream)
        self.exposed(span, lasting=False)

    def copy_bytes(self, offset: int, source: Range) -> None:
        """Copy a range to byte ``offset``, in order of the current stream."""
        target, first = self.ptr_at(offset), self.ptr_at(source.base_offset)
        self.backend.move(target, first, source.size, self.current_stream())
        self.exposed(Range(offset, source.size), lasting=False)

    def write(self, offset: int, values: np.ndarray) -> None:
        """Copy host values to byte ``offset`` in order of the current stream.

        Raises:
            PlanError: bytes outside the arena.
            RuntimeError: the stream is capturing; a graph would read the host's memory later.

        """
        source = np.ascontiguousarray(values)
        self._check_inside("write", Range(offset, source.nbytes))
        stream = self.current_stream()
        if self.backend.capturing(stream):
            raise RuntimeError(
                "arena: got a host write while the stream is capturing, expected it outside; "
                "set scalars before or after the capture, the graph reads them at replay"
            )
        self.backend.upload(self.ptr_at(offset), source, stream)
        self.exposed(Range(offset, source.nbytes), lasting=False)

    def read(self, span: Range, dtype: str = "u1") -> np.ndarray:
        """Return a host copy of a byte range, after the current stream's work.

        Raises:
            PlanError: bytes outside the arena, or no whole elements.
            RuntimeError: the stream is capturing.

        """
        self._check_inside("read", span, dtype)
        stream = self.current_stream()
        if self.backend.capturing(stream):
            raise RuntimeError(
                "arena: got a host read while the stream is capturing, expected it outside; "
                "read after the replay"
            )
        out = np.empty(span.size, np.uint8)
        self.backend.download(out, self.ptr_at(span.base_offset), stream)
        return out.view(dtype)

    def _check_inside(self, what: str, span: Range, dtype: str = "u1") -> None:
        check_inside(f"arena: {what}", self.nbytes, span, dtype)
        check_mapped(self.unmapped, what, span)

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Copy in order of a raw stream inside a ``with``, whatever the framework's current one."""
        before, self._stream = self._stream, stream
        try:
            yield
        finally:
            self._stream = before

    def current_stream(self) -> int:
        """Return the raw handle of the stream that the caller's framework works on."""
        if self._stream is not None:
            return self._stream
        return self.backend.stream_reader(self.framework)()

    def capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""
        return self.backend.capturing(self.current_stream())

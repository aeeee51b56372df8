"""Graph: calls captured once, replayed with one launch.

Everything that may change between replays is a device scalar, so a captured graph stays right for
ever.  Capturing compiles and allocates nothing: launches are bound before.  On the CPU and in the
simulator there is nothing to capture; a replay runs the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rangeops.arena.arena import Arena
from rangeops.device.streams import current_reader, handle_of


class Graph:
    """A sequence of launches and of the caller's own stream work, captured in a CUDA graph.

    Args:
        arena: the arena that the launches work on.
        calls: bound launches (whatever says ``on_stream`` and takes a stream), and functions
            without arguments that enqueue work on CuPy's current stream.

    Raises:
        Whatever a call raises; the capture is ended first and the stream is usable.

    """

    def __init__(self, arena: Arena, calls: Sequence[Callable[..., Any]]) -> None:
        self._calls = tuple(calls)
        self._graph: Any = None
        self._executable: Any = None
        if arena.on_gpu:
            self._capture(arena)

    def _capture(self, arena: Arena) -> None:
        import cupy

        self._current = current_reader(arena.device_id, arena.framework)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                for call in self._calls:
                    _enqueue(call, stream.ptr)
            finally:
                graph = stream.end_capture()
        self._graph = graph
        self._executable = graph.graphExec
        self._launch = cupy.cuda.runtime.graphLaunch

    def close(self) -> None:
        """Destroy the graph now; it replays no more.  Work that was launched goes on."""
        self._graph = self._executable = None
        self._calls = ()

    def replay(self, stream: Any = None) -> None:
        """Launch the graph on ``stream`` (default: the framework's current one)."""
        if self._executable is None:
            for call in self._calls:
                call()
            return
        handle = self._current() if stream is None else handle_of(stream)
        self._launch(self._executable, handle)


def _enqueue(call: Callable[..., Any], handle: int) -> None:
    if getattr(call, "on_stream", False):
        call(handle)
    else:
        call()

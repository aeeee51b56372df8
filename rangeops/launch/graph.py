"""Graph: calls captured once, replayed with one launch.

Everything that may change between replays is a device scalar, so a captured graph stays right for
ever.  Capturing compiles and allocates nothing: launches are bound before.  On the CPU and in the
simulator there is nothing to capture; a replay runs the calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rangeops.arena.arena import Arena
from rangeops.device.base import Executable, Launchable
from rangeops.device.streams import handle_of


class Graph:
    """A sequence of launches and of the caller's own stream work, captured in a CUDA graph.

    The stream being captured is handed to every call that takes a ``stream``, and is meanwhile the
    current one of CuPy and, for an arena over a torch tensor, of torch.  Memory that a call
    allocates while it is captured has to live as long as the graph: a replay writes there again.

    >>> from plan import PlanConfig
    >>> from plan.models import mlp, plan_model
    >>> from rangeops import OptimizerStep
    >>> arena = Arena(plan_model(mlp((4, 3)), PlanConfig("sgd")), device="cpu")
    >>> graph = Graph(arena, [OptimizerStep(arena, lr=0.1)])
    >>> graph.replay()
    >>> arena.scalars.step
    1

    Args:
        arena: the arena that the launches work on.
        calls: what has a parameter ``stream`` (a bound launch, an OptimizerStep, a collective), and
            functions without arguments that enqueue work on CuPy's or torch's current stream.

    A call with a method ``ready`` (an OptimizerStep) is asked before every replay; it raises if it
    must not run.

    Raises:
        TypeError: a call that is neither.
        Whatever a call raises; the capture is ended first and the stream is usable.

    """

    def __init__(self, arena: Arena, calls: Sequence[Callable[..., Any]]) -> None:
        # Kept, since a replay uses the memory and the code of what was captured.
        self._calls = tuple(launchable(call, f"call {k}") for k, call in enumerate(calls))
        self._ready = tuple({call.ready: None for call in calls if hasattr(call, "ready")})
        self._current = arena.backend.stream_reader(arena.framework)
        self._executable: Executable | None = arena.backend.capture(self._calls, arena.framework)

    def close(self) -> None:
        """Destroy the graph now; it replays no more.  Work that was launched goes on."""
        self._executable, self._calls = None, ()

    def replay(self, stream: Any = None) -> None:
        """Launch the graph on ``stream`` (default: the framework's current one).

        Raises:
            RuntimeError: the graph is closed.

        """
        if self._executable is None:
            raise RuntimeError(
                "Graph: got replay() after close(), expected it before; capture anew"
            )
        for ready in self._ready:
            ready()
        self._executable.launch(self._current() if stream is None else handle_of(stream))


def launchable(call: Callable[..., Any], what: str) -> Launchable:
    """Return a call as one that is given its stream; its signature says whether it takes one.

    A function whose signature Python does not know (some of C) is called without arguments.

    Raises:
        TypeError: neither a parameter ``stream`` alone nor no parameters will do.

    """
    name = getattr(call, "__qualname__", type(call).__name__)
    if not callable(call):
        raise TypeError(f"Graph: {what} got {name}, expected a launch or a function; bind an op")
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    takes = "stream" in signature.parameters
    try:
        signature.bind(**({"stream": 0} if takes else {}))
    except TypeError as error:
        raise TypeError(
            f"Graph: {what} ({name}) got parameters {signature}, expected `stream` alone or none; "
            "wrap it in a lambda"
        ) from error
    if takes:
        return lambda stream=None: call(stream=stream)
    return lambda stream=None: call()

"""BoundLaunch: a Binding with the call that launches it; bind and run make them.

Binding has done all the thinking, so launching is one driver call with packed arguments (or one
call of the compiled loop on the CPU).  ``run`` may be called by several threads and on several
streams at once; who has bound a launch calls ``set`` and it in turn.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rangeops.arena import scalars
from rangeops.arena.arena import Arena
from rangeops.device import find
from rangeops.device.streams import PER_THREAD, handle_of
from rangeops.kernels.spec import OpSpec
from rangeops.launch import coefficients, launchers
from rangeops.launch.binding import Binding
from rangeops.launch.reference import flags_in_words
from rangeops.launch.resolve import as_arena, resolve


def _noting_swaps(binding: Binding, launch: launchers.Launch) -> launchers.Launch:
    """Return a launch that lets the arena know of live and averaged weights that it exchanges.

    What a graph replays is the graph's own affair: capturing exchanges nothing.
    """
    arena = binding.arena

    def enqueue(stream: int) -> None:
        launch(stream)
        if binding.first is not None and not arena.backend.capturing(stream):
            arena.owner.toggle(binding.first.span)

    return enqueue


def _nothing(stream: int) -> None:
    """Launch nothing, for a range of no elements."""


class BoundLaunch:
    """A checked, compiled op on fixed ranges; calling it launches.

    Attributes:
        binding: what it was made of: op, arena, state, flags, ranges.
        count: elements (or tensors, chunks ...) that threads are spread over.
        threads: threads that have work, before the grid is rounded up to whole blocks.
        nbytes: bytes that one launch moves.
        enqueue: ``enqueue(handle)``: the launch itself, on a raw stream.

    """

    def __init__(self, binding: Binding) -> None:
        kernel = binding.op.kernel
        self.binding = binding
        self.count = binding.sizes[kernel.count]
        self.threads = launchers.threads_of(binding)
        moved = binding.elements if kernel.count == "chunks" else self.count
        self.nbytes = int(moved * binding.op.bytes_per_element(binding.flags))
        self._step = 1
        self._current = binding.arena.backend.stream_reader(binding.arena.framework)
        launch = launchers.launcher_of(binding)
        self.enqueue = launch if self.count else _nothing
        if binding.flags.get("swap") and not binding.raw:
            self.enqueue = _noting_swaps(binding, self.enqueue)
        if binding.raw and (binding.fresh or binding.values or binding.step):
            self.set(binding.step, **binding.values)

    def __call__(self, stream: Any = None) -> None:
        """Launch on ``stream`` (default: the framework's current one); size 0 launches nothing."""
        self.enqueue(self._current() if stream is None else handle_of(stream))

    def __repr__(self) -> str:
        """Return op, what is on, elements and place in one line."""
        on = flags_in_words(self.binding.flags)
        return (
            f"<launch of {self.binding.op.name}({on}): {self.count:,} {self.binding.unit}, "
            f"{self.nbytes:,} bytes, on {self.binding.arena.device}>"
        )

    @property
    def integers(self) -> list[int]:
        """The kernel's int64 arguments."""
        return self.binding.integers

    def arrays(self, download: bool = False) -> list[Any]:
        """Return the pointer arguments as typed views of the memory, or as host copies."""
        return [place.read() if download else place.view() for place in self.binding.arguments]

    @property
    def state(self) -> Arena:
        """The arena of its scalars; another raw launch bound with ``state=`` shares it."""
        return self.binding.state

    @property
    def scalars(self) -> scalars.Scalars:
        """The scalars that this launch reads: the plan's, or its own when bound raw."""
        return self.binding.state.scalars

    def set(self, step: int | None = None, **values: float) -> None:
        """Give a raw launch other hyper-parameters, in order of the current stream.

        ``step`` counts from 1 and enters the bias corrections.

        Raises:
            ValueError, TypeError: a value or name that cannot be; nothing is written then.

        """
        name = self.binding.op.name
        if not self.binding.raw:
            raise TypeError(
                f"{name}: set() got a launch of a planned arena, expected a raw one; "
                "write arena.scalars and run begin_step"
            )
        if step is not None and not 1 <= operator.index(step) < 2**31:
            got = scalars.said(step)
            raise ValueError(f"{name}: step got {got}, expected 1 .. 2**31-1; count from 1")
        for own in values.keys() & self.binding.op.scalars.keys():
            scalars.number(own, values[own])
        self.scalars.set(**values)
        self._step = self._step if step is None else int(step)
        block = coefficients.fill_on_host(
            self.scalars.host_values(), self._step, self.binding.options
        )
        _, span = self.binding.locate("c")
        assert span is not None
        self.binding.state.write(span.base_offset, block)


FOREIGN_BINDINGS = 32
"""Launches kept for raw buffers; the oldest goes first, and with it the hold on its buffer."""

OWN_BINDINGS = 1024
"""Launches that an arena keeps; the oldest goes first."""

_foreign: dict[Any, Any] = {}
_guard = threading.Lock()


class _Kept:
    """A launch with its own state, the hyper-parameters in it, and the lock over both.

    Setting and launching are one step under the lock, which launches that share a state share.
    """

    def __init__(self, launch: BoundLaunch) -> None:
        binding = launch.binding
        self.launch, self.values = launch, dict[str, Any]()
        with _guard:
            self.lock: threading.Lock = binding.state.keep("lock", threading.Lock)
        # Others write a shared state, and a kernel that is no rule may move scalars of its own.
        self.stays = binding.fresh and bool(binding.op.kernel.stages)

    def __call__(self, values: dict[str, Any], handle: int) -> None:
        """Launch on a raw stream with hyper-parameters; of none the state keeps its own."""
        with self.lock:
            if values and values != self.values:
                self.values = {}
                self._set(values, handle)
                self.values = values if self.stays else {}
            self.launch.enqueue(handle)

    def _set(self, values: dict[str, Any], handle: int) -> None:
        """Set hyper-parameters behind the launch before on this stream, ahead of the next one."""
        state = self.launch.state
        if state.backend.capturing(handle):
            raise RuntimeError(
                f"{self.launch.binding.op.name}: got other hyper-parameters while the stream is "
                "capturing, expected those of the call before; a graph reads them at replay, set "
                "them outside with launch.set(...)"
            )
        with state.on(handle):
            self.launch.set(**values)


def bind(
    op: OpSpec,
    memory: Any,
    spans: Sequence[Any],
    arguments: Mapping[str, Any],
    stream: Any = None,
) -> BoundLaunch:
    """Return the launch of an op; see ``RangeOp.bind``.  ``stream`` is that of its first call."""
    arena = as_arena(memory)
    if not arena.backend.is_current():
        raise ValueError(
            f"{op.name}: the arena lies on {arena.device}, the current device is "
            f"{find(arena.backend.kind).name}; bind inside `with arena.backend.current()`"
        )
    first = stream is not None and arena.backend.capturing(handle_of(stream))
    if first or arena.capturing():
        raise RuntimeError(
            f"{op.name}: got its first use while the stream is capturing, expected a launch bound "
            "before; call op.bind(arena, ...) ahead of the capture, it compiles and allocates"
        )
    return BoundLaunch(resolve(op, arena, spans, arguments))


@cache
def _scalars_of(op: OpSpec) -> frozenset[str]:
    """Return the names of arguments that are scalars, and may differ from call to call."""
    return frozenset((*scalars.NAMES, *op.scalars, "step"))


def run(
    op: OpSpec, memory: Any, spans: Sequence[Any], arguments: Mapping[str, Any], stream: Any
) -> None:
    """Launch through the binding kept for these arguments; hyper-parameters may differ by call.

    A call is a function of its arguments: a binding is of the names of the hyper-parameters given,
    so one left out has its default, and of the stream, so calls on other streams and in other
    threads never see each other's.  An arena keeps its own bindings and takes them along when it
    goes.
    """
    arena = as_arena(memory)
    settable = _scalars_of(op)
    values = {n: v for n, v in arguments.items() if n in settable and v is not None}
    # Arenas look alike in words; a binding holds its state, so that no other has its id.
    rest = {n: id(v) if n == "state" else v for n, v in arguments.items() if n not in settable}
    launches: dict[Any, Any] = _foreign
    key: tuple[Any, ...] = (op.name, repr((spans, rest)))
    if arena is memory:
        launches = arena.keep("launches", dict)
    else:
        key += (arena.ptr, arena.nbytes, arena.device, arena.element, arena.framework)
    if not values and arena.plan is not None and "state" not in rest:
        launch = launches.get(key)
        if launch is None:
            launch = _keep(launches, key, bind(op, arena, spans, arguments, stream))
        launch(stream)
        return
    handle = arena.current_stream() if stream is None else handle_of(stream)
    thread = threading.get_ident() if handle == PER_THREAD else 0
    key += (frozenset(values), handle, thread)
    kept = launches.get(key)
    if kept is None:
        kept = _keep(launches, key, _Kept(bind(op, arena, spans, arguments, handle)))
    kept(values, handle)


def _keep(launches: dict[Any, Any], key: Any, made: Any) -> Any:
    """Keep a launch, the oldest going where there are too many; return what other threads have."""
    with _guard:
        kept = launches.setdefault(key, made)
        if len(launches) > (FOREIGN_BINDINGS if launches is _foreign else OWN_BINDINGS):
            del launches[next(iter(launches))]
        return kept

"""BoundLaunch: a Binding with the call that launches it; bind and run make them.

Binding has done all the thinking, so launching is one driver call with packed arguments (or one
call of the compiled loop on the CPU).
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any

from rangeops.arena import scalars
from rangeops.arena.arena import Arena
from rangeops.device import find
from rangeops.device.streams import handle_of
from rangeops.kernels.spec import OpSpec
from rangeops.launch import coefficients, launchers
from rangeops.launch.binding import Binding
from rangeops.launch.reference import flags_in_words
from rangeops.launch.resolve import as_arena, resolve


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
            raise ValueError(f"{name}: step got {step}, expected 1 .. 2**31-1; count from 1")
        self.scalars.set(**values)
        self._step = self._step if step is None else int(step)
        block = coefficients.fill_on_host(
            self.scalars.host_values(), self._step, self.binding.options
        )
        _, span = self.binding.locate("c")
        assert span is not None
        self.binding.state.write(span.base_offset, block)


_Launched = tuple[BoundLaunch, dict[str, Any]]
"""A launch and the hyper-parameters that it was last given."""

FOREIGN_BINDINGS = 32
"""Launches kept for raw buffers; the oldest goes first, and with it the hold on its buffer."""

_foreign: OrderedDict[Any, _Launched] = OrderedDict()


def bind(
    op: OpSpec, memory: Any, spans: Sequence[Any], arguments: Mapping[str, Any]
) -> BoundLaunch:
    """Return the launch of an op; see ``RangeOp.bind``."""
    arena = as_arena(memory)
    if not arena.backend.is_current():
        raise ValueError(
            f"{op.name}: the arena lies on {arena.device}, the current device is "
            f"{find(arena.backend.kind).name}; bind inside `with arena.backend.current()`"
        )
    if arena.capturing():
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

    An arena keeps its own bindings and takes them along when it goes.
    """
    arena = as_arena(memory)
    launches: MutableMapping[Any, _Launched] = (
        arena.keep("launches", dict) if arena is memory else _foreign
    )
    settable = _scalars_of(op)
    values = {name: value for name, value in arguments.items() if name in settable}
    rest = {name: value for name, value in arguments.items() if name not in settable}
    place = (arena.ptr, arena.nbytes, arena.device)
    key = (op.name, place, repr((spans, rest)), bool(values))
    launch, last = launches.get(key) or (None, values)
    if launch is None:
        launch = bind(op, arena, spans, arguments)
        launches[key] = launch, values
        if len(_foreign) > FOREIGN_BINDINGS:
            _foreign.popitem(last=False)
    elif values != last:
        launch.set(**values)
        launches[key] = launch, values
    launch(stream)

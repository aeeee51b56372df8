"""Binding + stream -> BoundLaunch: the grid rule, the compiled kernel, the call.

Binding has done all the thinking, so launching is one driver call with packed arguments (or one
call of the compiled loop on the CPU).
"""

from __future__ import annotations

import ctypes
import operator
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plan import GRANULE
from rangeops.arena import scalars
from rangeops.device.streams import LEGACY, current_reader, handle_of
from rangeops.kernels import build
from rangeops.launch import coefficients
from rangeops.launch.binding import Binding
from rangeops.launch.resolve import as_arena, resolve

if TYPE_CHECKING:
    from rangeops.kernels.spec import Kernel, OpSpec

THREADS = 128
"""Threads a block; with one vector a thread and no grid-stride loop the fastest on H200."""

WARP = 32
"""Threads a warp: a chunk, a fold or a total is the work of one."""

SIMULATED_THREADS = 32
"""Threads a block in the simulator, where every thread is a Python thread."""

MAX_BLOCKS = 2**31 - 1


def grid(count: int, per_thread: int, threads: int = THREADS) -> int:
    """Return the number of blocks for ``count`` elements, plain ints of any size.

    >>> grid(2**33, 4)
    16777216

    Raises:
        ValueError: more blocks than a grid can have.

    """
    blocks = -(-count // (per_thread * threads))
    if blocks > MAX_BLOCKS:
        raise ValueError(
            f"grid: {count} elements need {blocks} blocks, expected at most {MAX_BLOCKS}; "
            "split the range"
        )
    return blocks


class BoundLaunch:
    """A checked, compiled op on fixed ranges; calling it launches.

    Attributes:
        binding: what it was made of: op, arena, state, flags, ranges.
        count: elements (or tensors, chunks ...) that threads are spread over.
        threads: threads that have work, before the grid is rounded up to whole blocks.
        nbytes: bytes that one launch moves.
        integers: the kernel's int64 arguments.

    """

    on_stream = True

    def __init__(self, made: Binding) -> None:
        self.binding = made
        kernel = made.op.kernel
        elements = made.first.numel if made.first else 0
        sizes = {"n": elements, "one": 1, "tensors": made.rows, **made.sums()}
        self.count = sizes[kernel.count]
        self.threads = self.count * (WARP if kernel.count in made.sums() else 1)
        moved = elements if kernel.count == "chunks" else self.count
        self.nbytes = int(moved * made.op.bytes_per_element(made.flags))
        menu = {
            **sizes,
            "half_start": made.half_start,
            "shift": 63 if made.raw else GRANULE.bit_length() - 1,
            "granule0": made.first_granule,
            "biases": made.biases,
            "options": made.options,
        }
        self.integers = [menu[name] for name in kernel.integers]
        self._step = 1
        self._prepare(kernel, tuple(sorted(made.flags.items())))
        if made.raw and (made.fresh or made.values or made.step):
            self.set(made.step, **made.values)

    def _prepare(self, kernel: Kernel, flags: build.Flags) -> None:
        """Compile the kernel and lay out its arguments."""
        raise NotImplementedError

    def _pointers(self) -> list[int]:
        places = [self.binding.place(name) for name, _ in self.binding.op.kernel.arguments]
        return [a.ptr if span is None else a.ptr_at(span.base_offset) for a, span in places]

    def arrays(self, download: bool = False) -> list[Any]:
        """Return the pointer arguments as typed views of the memory, or as host copies."""
        kernel = self.binding.op.kernel
        out = []
        for (name, _), dtype in zip(kernel.arguments, kernel.pointers, strict=True):
            owner, span = self.binding.place(name)
            if span is None:
                out.append(np.empty(0, dtype))
            else:
                out.append(owner.read(span, dtype) if download else owner.view(span, dtype))
        return out

    def __call__(self, stream: Any = None) -> None:
        """Launch on ``stream`` (default: the framework's current one); size 0 launches nothing."""
        raise NotImplementedError

    @property
    def state(self) -> Any:
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
        _, span = self.binding.place("c")
        assert span is not None
        self.binding.state.write(span.base_offset, block)


class GpuLaunch(BoundLaunch):
    """A launch on a GPU: one driver call with arguments that were packed when it was bound."""

    def _prepare(self, kernel: Kernel, flags: build.Flags) -> None:
        from cuda.bindings import driver

        device = self.binding.arena.device_id
        self._current = current_reader(device, self.binding.arena.framework)
        self._kernel = build.gpu_kernel(kernel, flags, device)
        function = driver.CUfunction(int(self._kernel.handle))
        arguments = [*self._pointers(), *self.integers]
        self._values = (ctypes.c_int64 * len(arguments))(*arguments)
        first = ctypes.addressof(self._values)
        self._places = (ctypes.c_void_p * len(arguments))(
            *range(first, first + 8 * len(arguments), 8)
        )
        blocks = max(1, grid(self.threads, kernel.per_thread, THREADS))
        shape = (function, blocks, 1, 1, THREADS, 1, 1, 0)
        places = ctypes.addressof(self._places)

        def launch(handle: int) -> None:
            (error,) = driver.cuLaunchKernel(*shape, handle or LEGACY, places, 0)
            if error:
                raise RuntimeError(
                    f"{kernel.name}: the driver refused the launch with {error.name}, expected "
                    "none; is the stream one of the arena's device?"
                )

        self._launch = launch

    def __call__(self, stream: Any = None) -> None:
        """Launch on ``stream``; see ``BoundLaunch``."""
        if self.count:
            self._launch(self._current() if stream is None else handle_of(stream))


class SimulatedLaunch(BoundLaunch):
    """A launch of the same kernel in Numba's simulator."""

    def _prepare(self, kernel: Kernel, flags: build.Flags) -> None:
        self._kernel = build.simulated_kernel(kernel, flags)
        # Kernels may count on groups of THREADS threads, so as many threads run as on a GPU.
        self._grid = grid(self.threads, kernel.per_thread) * (THREADS // SIMULATED_THREADS)

    def __call__(self, stream: Any = None) -> None:
        """Launch; there are no streams in the simulator."""
        if self.count:
            from rangeops.kernels import cuda

            cuda.simulate(self._kernel, self._grid, SIMULATED_THREADS, self.arrays(), self.integers)


class CpuLaunch(BoundLaunch):
    """The compiled loop over all cores of the CPU."""

    def _prepare(self, kernel: Kernel, flags: build.Flags) -> None:
        from rangeops.kernels import cpu

        self._loop = build.cpu_loop(kernel, flags)
        self._run = cpu.run
        self._unit = {"n": GRANULE, "chunks": 1}.get(kernel.count, 0) if not kernel.serial else 0
        self._arguments = [*self.arrays(), *self.integers]

    def __call__(self, stream: Any = None) -> None:
        """Run; the call returns when all cores are done."""
        if self.count:
            self._run(self._loop, self._arguments, self.count, self._unit)


_Kept = tuple[BoundLaunch, dict[str, Any]]

FOREIGN_BINDINGS = 32
"""Bindings kept for raw buffers; the oldest goes first, and with it the hold on its buffer."""

_foreign: OrderedDict[Any, _Kept] = OrderedDict()


def bind(
    op: OpSpec, memory: Any, spans: Sequence[Any], arguments: Mapping[str, Any]
) -> BoundLaunch:
    """Return the launch of an op; see ``OpSpec.bind``."""
    arena = as_arena(memory)
    if arena.on_gpu and arena.current_device() != arena.device_id:
        raise ValueError(
            f"{op.name}: the arena lies on {arena.device}, the current device is "
            f"{arena.current_device()}; bind inside `with cupy.cuda.Device({arena.device_id})`"
        )
    if arena.on_gpu and arena.capturing():
        raise RuntimeError(
            f"{op.name}: got its first use while the stream is capturing, expected a launch bound "
            "before; call op.bind(arena, ...) ahead of the capture, it compiles and allocates"
        )
    made = resolve(op, arena, spans, arguments)
    if arena.on_gpu:
        return GpuLaunch(made)
    return SimulatedLaunch(made) if made.arena.simulated else CpuLaunch(made)


def run(
    op: OpSpec, memory: Any, spans: Sequence[Any], arguments: Mapping[str, Any], stream: Any
) -> None:
    """Launch through the binding kept for these arguments; hyper-parameters may differ by call.

    An arena keeps its own bindings and takes them along when it goes.
    """
    arena = as_arena(memory)
    kept: MutableMapping[Any, _Kept] = arena.bindings if arena is memory else _foreign
    values = {k: v for k, v in arguments.items() if k in scalars.NAMES or k == "step"}
    rest = {k: v for k, v in arguments.items() if k not in values}
    place = (arena.ptr, arena.nbytes, arena.device)
    key = (op.name, place, repr((spans, rest)), bool(values))
    known = kept.get(key)
    if known is None:
        known = kept[key] = (bind(op, arena, spans, arguments), values)
        if len(_foreign) > FOREIGN_BINDINGS:
            _foreign.popitem(last=False)
    elif values != known[1]:
        known[0].set(**values)
        known = kept[key] = (known[0], values)
    known[0](stream)

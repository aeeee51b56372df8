"""Arena: the one allocation, typed views of it, scalars, upload and download.

An arena is made for a plan, or wraps a buffer that the caller owns; then it needs no plan.  It
lies on a GPU, in host memory (``device="cpu"``, where ops run their rules through numba.njit), or
in host memory played by Numba's simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from plan import DTensor, MemoryPlan, PlanConfig, PlanError, Range, Region
from plan.chunks import chunks_of
from plan.region import PARAMETER_KINDS, WEIGHT_KINDS
from plan.segments import weight_segments
from rangeops.arena.buffer import allocate, flat, tensor_view, write_kept
from rangeops.arena.scalars import Scalars
from rangeops.arena.sparse import check_mapped
from rangeops.device.streams import current_reader


class Arena:
    """One allocation that holds all tensors of a plan.

    Creation zeroes every byte, then writes the initial scalars and the segment table, so padding
    is zero from the start and stays so.

    >>> from plan import MemoryPlan, PlanConfig
    >>> plan = MemoryPlan(PlanConfig("sgd"))
    >>> w = plan.parameter("w", "fc_weight", (2, 3)).weight
    >>> arena = Arena(plan.finalize(), device="cpu")
    >>> arena[w] = 1.5
    >>> float(arena["w"].sum())
    9.0

    Args:
        plan: a finalized plan.
        device: "cuda", "cuda:1", "cpu", or None for a GPU where there is one.
        buffer: memory of the caller's for the plan, at least ``plan.total_bytes`` long; it is
            zeroed.
        unmapped: ranges that are never touched and need no memory, as of ``Shard.unmapped``.

    Raises:
        PlanError: plan not finalized, or larger than the memory (both numbers are in the message).

    """

    unmapped: tuple[Range, ...]

    def __init__(
        self,
        plan: MemoryPlan,
        device: str | int | None = None,
        buffer: Any = None,
        unmapped: Sequence[Range] = (),
    ) -> None:
        if not plan.finalized:
            raise PlanError("Arena: the plan is not finalized, call plan.finalize() first")
        if buffer is None:
            memory, simulated, stale = allocate(plan.total_bytes, device, unmapped)
            self._adopt(memory, simulated, "cupy")
        else:
            if unmapped:
                raise PlanError("Arena: got a buffer and unmapped, expected one of the two")
            memory, framework = flat(buffer)
            stale = [Range(0, plan.total_bytes)]
            self._adopt(memory, device == "simulator", framework)
            if self.nbytes < plan.total_bytes:
                raise PlanError(
                    f"Arena: the buffer holds {self.nbytes} bytes, the plan needs "
                    f"{plan.total_bytes}; give a larger one"
                )
        self.plan: MemoryPlan | None = plan
        self.unmapped = tuple(hole for hole in unmapped if hole.size)
        with self._cupy().cuda.Device(self.device_id) if self.on_gpu else nullcontext():
            self._initialize(plan, stale)

    @classmethod
    def wrap(cls, buffer: Any, device: str | None = None) -> Arena:
        """Return an arena over memory that the caller owns, with no plan.

        ``buffer`` is a NumPy array, a CuPy array, a torch tensor or anything contiguous with
        ``__cuda_array_interface__`` or DLPack.  Nothing is copied or zeroed.  Host memory is a
        CPU arena; with ``device="simulator"`` the simulator's kernels run on it.

        Raises:
            TypeError: none of these. ValueError: not contiguous, or read-only.

        """
        self = cls.__new__(cls)
        memory, framework = flat(buffer)
        self._adopt(memory, device == "simulator", framework)
        self.plan = None
        return self

    def _adopt(self, memory: Any, simulated: bool, framework: str) -> None:
        self.memory = memory
        self.framework = framework
        self.nbytes = int(memory.nbytes)
        self.on_gpu = not isinstance(memory, np.ndarray)
        self.device_id = int(memory.device.id) if self.on_gpu else -1
        self.simulated = simulated and not self.on_gpu
        self.ptr = int(memory.data.ptr) if self.on_gpu else int(memory.ctypes.data)
        self._scalars: Scalars | None = None
        self.bindings: dict[Any, Any] = {}
        self.unmapped = ()

    def _initialize(self, plan: MemoryPlan, stale: Sequence[Range]) -> None:
        for part in stale:
            self.memory[part.base_offset : part.end] = 0
        self.scalars.reset()
        if "step.segments" not in plan.tensors:
            return
        table = weight_segments(plan)
        self["step.segments"] = table.rows.astype(np.int32)
        groups = np.ones(plan.tensors["step.groups"].shape, np.float32)
        groups[1, 1:3] = 0.0
        self["step.groups"] = groups
        group = [0 if t.region.kind in WEIGHT_KINDS else 1 for t in table.tensors]
        self["step.group_of_tensor"] = np.array(group, np.int32)
        names = "norm.chunks", "norm.folds", "norm.fold_of_tensor"
        for name, values in zip(names, chunks_of(table.first), strict=True):
            self[name] = values
        if self.on_gpu:  # whoever works on another stream next finds all of it done
            self._cupy().cuda.runtime.deviceSynchronize()

    # Views

    @property
    def device(self) -> str:
        """Where it lies: "cuda:0", "cpu" or "simulator"."""
        if self.on_gpu:
            return f"cuda:{self.device_id}"
        return "simulator" if self.simulated else "cpu"

    def ptr_at(self, offset: int) -> int:
        """Return the raw address of byte ``offset``."""
        return self.ptr + int(offset)

    def view(self, span: Range, dtype: str = "u1") -> Any:
        """Return a zero-copy one-dimensional view of a byte range (CuPy or NumPy array)."""
        check_mapped(self.unmapped, "view", span)
        return self.memory[span.base_offset : span.base_offset + span.size].view(dtype)

    def tensor(self, tensor: DTensor | str) -> DTensor:
        """Return the descriptor of a tensor of the plan by name; a descriptor returns itself."""
        if isinstance(tensor, DTensor):
            return tensor
        if self.plan is None:
            raise PlanError(f"arena[{tensor!r}]: this arena wraps a buffer, it has no tensors")
        if tensor not in self.plan.tensors:
            raise KeyError(f"arena: no tensor is named {tensor!r}")
        return self.plan.tensors[tensor]

    def __getitem__(self, tensor: DTensor | str) -> Any:
        """Return a zero-copy view of a tensor in its logical shape; bf16 comes as uint16 bits."""
        found = self.tensor(tensor)
        check_mapped(self.unmapped, f"arena[{found.name!r}]", Range(found.offset, found.nbytes))
        return tensor_view(self.memory, found)

    def __setitem__(self, tensor: DTensor | str, values: Any) -> None:
        """Write a tensor from a scalar, a NumPy or a CuPy array; its padding is not touched."""
        view = self[tensor]
        if self.on_gpu and isinstance(values, np.ndarray):
            values = self._cupy().asarray(values.astype(view.dtype, copy=False))
        view[...] = values

    def download(self, tensor: DTensor | str) -> np.ndarray:
        """Return a copy of a tensor in host memory, after the current stream's work."""
        view = self[tensor]
        return np.asarray(view.get()) if self.on_gpu else view.copy()

    def initialize(self) -> None:
        """Write every region's initial value: variances and norm scales 1, the rest stays."""
        assert self.plan is not None
        for tensor in self.plan:
            if tensor.region.initial:
                write_kept(self, tensor, tensor.region.initial)

    # Raw bytes, in stream order

    def write(self, offset: int, values: np.ndarray) -> None:
        """Copy host values to byte ``offset`` in order of the current stream.

        Raises:
            RuntimeError: the stream is capturing; a graph would read the host's memory later.

        """
        if not self.on_gpu:
            self.view(Range(offset, values.nbytes))[:] = np.ascontiguousarray(values).view("u1")
            return
        runtime = self._cupy().cuda.runtime
        stream = self.current_stream()
        if self.capturing():
            raise RuntimeError(
                "arena: got a host write while the stream is capturing, expected it outside; "
                "set scalars before or after the capture, the graph reads them at replay"
            )
        # Pageable memory below 64 KiB is staged before the call returns, so `values` may go away.
        source = np.ascontiguousarray(values)
        runtime.memcpyAsync(self.ptr_at(offset), source.ctypes.data, source.nbytes, 1, stream)
        if source.nbytes >= 1 << 16:
            runtime.streamSynchronize(stream)

    def read(self, span: Range, dtype: str = "u1") -> np.ndarray:
        """Return a host copy of a byte range, after the current stream's work.

        Raises:
            RuntimeError: the stream is capturing.

        """
        check_mapped(self.unmapped, "read", span)
        if not self.on_gpu:
            return self.view(span, dtype).copy()
        runtime = self._cupy().cuda.runtime
        stream = self.current_stream()
        if self.capturing():
            raise RuntimeError(
                "arena: got a host read while the stream is capturing, expected it outside; "
                "read after the replay"
            )
        out = np.empty(span.size, np.uint8)
        runtime.memcpyAsync(out.ctypes.data, self.ptr_at(span.base_offset), span.size, 2, stream)
        runtime.streamSynchronize(stream)
        return out.view(dtype)

    def current_stream(self) -> int:
        """Return the raw handle of the stream that the caller's framework works on."""
        return current_reader(self.device_id, self.framework)()

    def current_device(self) -> int:
        """Return the number of the GPU that this thread works on."""
        return int(self._cupy().cuda.runtime.getDevice())

    def capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""
        if not self.on_gpu:
            return False
        return bool(self._cupy().cuda.runtime.streamIsCapturing(self.current_stream()))

    def nonfinite_tensor(self) -> str | None:
        """Return the name of the first weight whose gradient ``check_nan`` found not finite.

        Speaks of the step being checked, or else of the last skipped one; waits for the device.
        """
        assert self.plan is not None
        granule = self.scalars.first_nonfinite
        if granule == 2**31 - 1:
            granule = self.scalars.nonfinite_granule
        if granule == 2**31 - 1:
            return None
        table = weight_segments(self.plan)
        return table.tensors[table.rows[granule]].name

    @property
    def scalars(self) -> Scalars:
        """The scalars of the plan, by attribute."""
        if self.plan is None:
            raise PlanError(
                "arena.scalars: this arena wraps a buffer and has no plan; "
                "give hyper-parameters to the op, then use launch.set(...)"
            )
        if self._scalars is None:
            plan = self.plan
            base = {
                "fp32": plan.range(Region.S_SCALAR_FP32).base_offset,
                "int32": plan.range(Region.S_SCALAR_INT32).base_offset,
            }

            def upload(kind: str, element: int, values: np.ndarray) -> None:
                self.write(base[kind] + 4 * element, values)

            def download(kind: str, element: int) -> Any:
                dtype = "f4" if kind == "fp32" else "i4"
                return self.read(Range(base[kind] + 4 * element, 4), dtype)[0].item()

            self._scalars = Scalars(upload, download)
        return self._scalars

    @staticmethod
    def _cupy() -> Any:
        import cupy

        return cupy


def private_arena(beside: Arena) -> Arena:
    """Return a small arena with scalars and one coefficient row, for an op bound without a plan.

    It lies on the device of ``beside`` and its writes follow the same framework's stream.
    """
    plan = MemoryPlan(PlanConfig("none"))
    plan.parameter("row", PARAMETER_KINDS[3], (1,))
    arena = Arena(plan.finalize(), device=beside.device)
    arena.framework = beside.framework
    return arena

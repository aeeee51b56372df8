"""Arena: the one allocation, typed views of it, scalars, upload and download.

An arena is made for a plan, or wraps a buffer that the caller owns; then it needs no plan.  It
lies on a GPU, in host memory (``device="cpu"``, where ops run as compiled loops), or in host memory
on which Numba's simulator plays the GPU; ``arena.backend`` is that device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from plan import DTensor, MemoryPlan, PlanError, Range
from plan.segments import weight_segments
from rangeops.arena.buffer import flat, tensor_view
from rangeops.arena.copies import cloned, reduced
from rangeops.arena.groups import Groups
from rangeops.arena.memory import ArenaMemory
from rangeops.arena.ownership import Ownership
from rangeops.arena.scalars import Scalars
from rangeops.arena.sparse import check_mapped, write_kept
from rangeops.arena.tables import tables_of
from rangeops.device import find
from rangeops.device.base import Device


class Arena(ArenaMemory):
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

    Attributes:
        plan: the plan, None for a wrapped buffer.
        ptr, nbytes: where its bytes are, how many.
        backend: the device, as ``rangeops.device.base`` has it.
        holes: ``unmapped``, and what nobody uses of a plan with frozen parameters (``plan.idle``).
        framework: "cupy" or "torch": whose current stream is meant where none is given.
        element: the type of a wrapped buffer ("<f4", "bfloat16" ...), None for bytes.

    Raises:
        PlanError: plan not finalized, or larger than the memory (both numbers are in the message).

    """

    plan: MemoryPlan | None

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
            backend = find(device)
            memory, stale = backend.allocate(plan.total_bytes, unmapped, plan.idle)
            self._take(backend, memory, "cupy")
        else:
            if unmapped:
                raise PlanError("Arena: got a buffer and unmapped, expected one of the two")
            self._take(*flat(buffer, device))
            stale = [Range(0, plan.total_bytes)]
            if self.nbytes < plan.total_bytes:
                raise PlanError(
                    f"Arena: the buffer holds {self.nbytes} bytes, the plan needs "
                    f"{plan.total_bytes}; give a larger one"
                )
        self.plan = plan
        self.unmapped = tuple(hole for hole in unmapped if hole.size)
        self.holes = (*self.unmapped, *plan.idle)
        with self.backend.current():
            for part in stale:
                self._memory[part.base_offset : part.end] = 0
            self.scalars.reset()
            for name, table in tables_of(plan).items():
                self[name] = table
            self.backend.synchronize()  # whoever works on another stream next finds it all done
        if buffer is not None:
            self.exposed(Range(0, self.nbytes))

    @classmethod
    def wrap(cls, buffer: Any, device: str | None = None) -> Arena:
        """Return an arena over memory that the caller owns, with no plan.

        ``buffer`` is a NumPy array, a CuPy array, a torch tensor or anything contiguous with
        ``__cuda_array_interface__`` or DLPack.  Nothing is copied or zeroed.  Host memory is a
        CPU arena, or the simulator's with ``device="simulator"``.  Ops take ranges of a buffer of
        their own type, and of plain bytes (uint8) whatever the bytes are.

        Raises:
            TypeError: none of these, a subclass with an indexing of its own, a mask, or autograd.
            ValueError: not contiguous, or read-only.

        """
        self = cls.__new__(cls)
        self._take(*flat(buffer, device))
        return self

    def _take(
        self, backend: Device, memory: Any, framework: str, element: str | None = None
    ) -> None:
        self.backend, self._memory, self.framework = backend, memory, framework
        self.nbytes, self.ptr = int(memory.nbytes), backend.address(memory)
        self.plan, self.unmapped, self.holes = None, (), ()
        self.element = element
        self._stream = None
        self._scalars: Scalars | None = None
        self.owner = Ownership()
        self._kept: dict[Hashable, Any] = {}

    def __repr__(self) -> str:
        """Return device, bytes, kind of plan and number of tensors."""
        what = "no plan"
        if self.plan is not None:
            config = self.plan.config
            extras = [config.half or "", "ema" if config.ema else ""]
            names = " ".join(filter(None, (config.kind.label, *extras)))
            what = f"plan for {names}, {len(self.plan.tensors)} tensors"
        holes = f", {len(self.unmapped)} unmapped" if self.unmapped else ""
        return f"<Arena on {self.device}: {self.nbytes:,} bytes, {what}{holes}>"

    def planned(self, what: str, remedy: str = "make it of a finalized plan") -> MemoryPlan:
        """Return the plan, for ``what`` (its name opens the error) that cannot do without.

        Raises:
            PlanError: this arena wraps a buffer and has none.

        """
        if self.plan is None:
            raise PlanError(f"{what}: got an arena without a plan, expected Arena(plan); {remedy}")
        return self.plan

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what others keep with this arena, made at the first use; it goes when it goes."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> Arena:
        """Return a whole arena of its own; one over a caller's buffer is refused."""
        return cloned(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return plan, bytes and facts, of which unpickling makes a whole arena."""
        return reduced(self)

    # Views

    def tensor(self, tensor: DTensor | str) -> DTensor:
        """Return the descriptor of a tensor of the plan by name; a descriptor returns itself.

        Raises:
            KeyError: no tensor is named so.
            PlanError: a descriptor of another plan, or bytes outside a wrapped buffer.

        """
        name = tensor.name if isinstance(tensor, DTensor) else tensor
        if self.plan is not None:
            return self.plan.tensor(tensor, f"arena[{name!r}]")
        if not isinstance(tensor, DTensor):
            raise PlanError(f"arena[{name!r}]: this arena wraps a buffer, it has no tensors")
        self._check_inside(f"[{name!r}]", Range(tensor.offset, tensor.nbytes))
        return tensor

    def __getitem__(self, tensor: DTensor | str) -> Any:
        """Return a zero-copy view of a tensor in its logical shape; bf16 comes as uint16 bits."""
        planned = self.tensor(tensor)
        span = Range(planned.offset, planned.nbytes)
        check_mapped(self.holes, f"arena[{planned.name!r}]", span)
        self.exposed(span)
        return tensor_view(self._memory, planned)

    def __setitem__(self, tensor: DTensor | str, values: Any) -> None:
        """Write a tensor from a scalar, a NumPy or a CuPy array; its padding is not touched.

        On a GPU the copy follows CuPy's current stream.
        """
        view = self[tensor]
        view[...] = self.backend.array(values, view.dtype)

    def download(self, tensor: DTensor | str) -> np.ndarray:
        """Return a copy of a tensor in host memory, after the current stream's work."""
        planned = self.tensor(tensor)
        raw = self.read(Range(planned.offset, planned.nbytes))
        view = tensor_view(raw, planned, planned.offset)
        return view if view.flags.c_contiguous else view.copy()

    def initialize(self) -> None:
        """Write every region's initial value: variances and norm scales 1, the rest stays."""
        for tensor in self.planned("arena.initialize"):
            if tensor.region.initial:
                write_kept(self, tensor, tensor.region.initial)

    def nonfinite_tensor(self) -> str | None:
        """Return the name of the first weight whose gradient ``check_nan`` found not finite.

        Speaks of the step being checked, or else of the last skipped one; waits for the device.
        """
        plan = self.planned("arena.nonfinite_tensor")
        granule = self.scalars.first_nonfinite
        if granule == 2**31 - 1:
            granule = self.scalars.nonfinite_granule
        if granule == 2**31 - 1:
            return None
        table = weight_segments(plan)
        return table.tensors[table.rows[granule]].name

    @property
    def groups(self) -> Groups:
        """The settings of the plan's parameters by group, and which of them are frozen or rest.

        Raises:
            PlanError: no plan, or one without parameters.

        """
        groups: Groups = self.keep("groups", lambda: Groups(self, self.planned("arena.groups")))
        return groups

    @property
    def scalars(self) -> Scalars:
        """The scalars of the plan, by attribute."""
        if self.plan is None:
            raise PlanError(
                "arena.scalars: this arena wraps a buffer and has no plan; "
                "give hyper-parameters to the op, then use launch.set(...)"
            )
        if self._scalars is None:
            self._scalars = Scalars(self, self.plan)
        return self._scalars

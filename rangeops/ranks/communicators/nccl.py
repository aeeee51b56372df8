"""NCCL through nccl4py's public names: the collectives of GPU arenas.  The only importer of nccl.

The communicator is non-blocking: it is polled against a deadline, and can be aborted while its
kernels wait for a rank that is gone.  An abort lets work queued behind a collective run on data
that was never reduced, so the poison word in pinned memory is set first; ``begin_step`` reads a
copy of it that is made on the device between the collectives and the step, and then moves nothing.

Leave NVLink multicast off where others share the GPUs (NCCL_NVLS_ENABLE=0).
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from nccl import core

from rangeops.arena.arena import Arena
from rangeops.kernels.half import numpy_type
from rangeops.ranks.communicators import Call
from rangeops.ranks.world import World

SUCCESS, IN_PROGRESS = 0, 7
"""NCCL's result codes."""


def connect(world: World, arena: Arena) -> NcclCommunicator:
    """Return the communicator of an arena on a GPU.

    Raises:
        ValueError: an arena in host memory.

    """
    if not arena.on_gpu:
        raise ValueError(
            f"nccl: got an arena on {arena.device}, expected one on a GPU; use "
            "communicator='sockets'"
        )
    return NcclCommunicator(world, arena)


class NcclCommunicator:
    """Collectives of one arena's GPU with those of the other ranks.

    Args:
        world: the ranks; every rank makes its communicator at the same time.
        arena: an arena on this rank's GPU.
        timeout: seconds for NCCL to connect.

    Raises:
        TimeoutError: NCCL did not connect. RuntimeError: it says why not.

    """

    def __init__(self, world: World, arena: Arena, timeout: float = 60.0) -> None:
        self._world, self._arena, self._timeout = world, arena, timeout
        self._lock = threading.Lock()
        self._aborted = False
        self.poison_word = arena.backend.pinned(4).view(np.int32)
        mine = bytes(core.get_unique_id()).hex() if world.rank == 0 else ""
        unique = core.UniqueId.from_bytes(bytes.fromhex(world.exchange(mine)[0]))
        with arena.backend.current():
            config = core.NCCLConfig(blocking=False)
            self._comm = core.Communicator.init(world.size, world.rank, unique, config)
            self._settle("connecting")
        world.on_loss(self.abort)

    def _settle(self, what: str) -> None:
        """Wait until NCCL has accepted the last call; the device may not have done it yet."""
        end = time.monotonic() + self._timeout
        while (state := int(self._comm.get_async_error())) == IN_PROGRESS:
            self._world.check()
            if time.monotonic() > end:
                raise TimeoutError(
                    f"nccl: rank {self._world.rank} waited {self._timeout:.0f} s for {what}, "
                    "expected all ranks to call it; see NCCL_DEBUG=INFO"
                )
        if state != SUCCESS:
            self._world.check()
            raise RuntimeError(f"nccl: {what} failed with {core.get_error_string(state)}")

    def run(self, calls: tuple[Call, ...], views: list[Any], stream: int) -> None:
        """Enqueue calls as one group; each works in place on its view."""
        with self._lock:
            if self._aborted:
                self._world.check()
                raise RuntimeError("nccl: got a call after an abort, expected a new process")
            with core.group():
                for call, view in zip(calls, views, strict=True):
                    self._enqueue(call, view, stream)
            self._settle(str(calls[0]))

    def _enqueue(self, call: Call, view: Any, stream: int) -> None:
        if call.is_half:
            view = view.view(numpy_type(call.dtype))
        comm, op = self._comm, core.MAX if call.op == "max" else core.SUM
        shard = view.size // self._world.size
        mine = view[self._world.rank * shard : (self._world.rank + 1) * shard]
        if call.name == "all_reduce":
            comm.allreduce(view, view, op, stream=stream)
        elif call.name == "reduce_scatter":
            comm.reduce_scatter(view, mine, op, stream=stream)
        elif call.name == "all_gather":
            comm.allgather(mine, view, stream=stream)
        else:
            comm.broadcast(view, view, call.root, stream=stream)

    def copy_poison(self, ptr: int, stream: int) -> None:
        """Copy the poison word to device address ``ptr`` in order of ``stream``."""
        self._arena.backend.upload(ptr, self.poison_word, stream, wait=False)

    def abort(self) -> None:
        """Poison the steps that are queued, then end the kernels that wait for a lost rank."""
        self.poison_word[0] = 1
        # A thread inside a call asks for a loss while it waits, and then releases the lock.
        held = self._lock.acquire(timeout=2.0)
        try:
            if not self._aborted:
                self._aborted = True
                self._comm.abort()
        finally:
            if held:
                self._lock.release()

    def close(self) -> None:
        """Finalize and destroy; with a captured graph still alive it would wait for ever."""
        with self._lock:  # an abort may be under way
            if self._aborted:
                return
            self._comm.finalize()
            self._settle("finalize")
            self._comm.destroy()
            self._aborted = True

"""Sockets: the collectives of CPU arenas over the ranks' own connections; the reference of others.

Everything goes through rank 0, which compares the calls of all ranks before a byte of
data moves, and adds in the order of the ranks: FP32 in FP32, halves in FP32 with one rounding.  So
every rank has the same bits, and a shard of a reduce-scatter those of the whole all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rangeops.arena.arena import Arena
from rangeops.kernels.half import from_half, to_half
from rangeops.ranks import transport
from rangeops.ranks.communicators import Call, RankMismatch
from rangeops.ranks.world import World


def connect(world: World, arena: Arena) -> CpuCommunicator:
    """Return the communicator of an arena in host memory.

    Raises:
        ValueError: an arena on a GPU, and ranks to exchange it with.

    """
    if arena.on_gpu and world.size > 1:
        raise ValueError(
            f"sockets: got an arena on {arena.device}, expected one in host memory; use "
            "communicator='nccl'"
        )
    return CpuCommunicator(world)


class CpuCommunicator:
    """Collectives of CPU arenas through rank 0."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._number = 0

    def run(self, calls: tuple[Call, ...], views: list[Any], stream: int = 0) -> None:
        """Run calls one after the other.

        Raises:
            RankMismatch: ranks call different things; on every rank, before data move.
            RankLost: a rank is gone.

        """
        for call, view in zip(calls, views, strict=True):
            self._number += 1
            self._agree(call)
            getattr(self, f"_{call.name}")(call, view)

    def copy_poison(self, ptr: int, stream: int) -> None:
        """Do nothing: a call that fails raises, and no step is queued behind it."""

    def abort(self) -> None:
        """Do nothing: a call that waits on a socket asks the world itself."""

    def close(self) -> None:
        """Do nothing: the sockets are the world's."""

    # One message at a time, to or from one peer

    def _send(self, peer: int, kind: int, content: Any) -> None:
        world = self._world
        try:
            transport.send(world.data[peer], kind, content, world.check)
        except transport.Closed as error:
            raise world.gone(peer, error) from error

    def _receive(self, peer: int, into: np.ndarray | None = None) -> Any:
        world = self._world
        view = None if into is None else into.view("u1").data
        try:
            return transport.receive(world.data[peer], view, self._still(peer))[1]
        except transport.Closed as error:
            raise world.gone(peer, error) from error

    def _still(self, peer: int) -> Callable[[], None]:
        def still() -> None:
            self._world.check()
            if peer in self._world.left:
                raise transport.Closed("it has left")

        return still

    def _agree(self, call: Call) -> None:
        """Compare the call with rank 0's; the number tells calls of one kind apart."""
        mine = [self._number, str(call), call.root]
        if self._world.rank:
            self._send(0, transport.OBJECT, mine)
            fault = self._receive(0)
        else:
            theirs = {peer: self._receive(peer) for peer in self._peers()}
            fault = ""
            for peer, other in theirs.items():
                if other != mine:
                    fault = (
                        f"ranks: call {other[0]} of rank {peer} is {other[1]}, call {mine[0]} of "
                        f"rank 0 is {mine[1]}, expected one call on all; run the same program"
                    )
                    break
            for peer in self._peers():
                self._send(peer, transport.OBJECT, fault)
        if fault:
            raise RankMismatch(fault)

    def _peers(self) -> range:
        return range(1, self._world.size)

    # The collectives

    def _reduced(self, call: Call, view: np.ndarray) -> np.ndarray:
        """Return the reduction of all ranks' views, at rank 0."""
        half = call.dtype if call.is_half else None
        total = from_half(view, half) if half else view.copy()
        other = np.empty_like(view)
        for peer in self._peers():
            self._receive(peer, other)
            value = from_half(other, half) if half else other
            with np.errstate(all="ignore"):
                (np.maximum if call.op == "max" else np.add)(total, value, out=total)
        return to_half(total, half) if half else total

    def _all_reduce(self, call: Call, view: np.ndarray) -> None:
        if self._world.rank:
            self._send(0, transport.BYTES, view.view("u1"))
            self._receive(0, view)
            return
        view[:] = self._reduced(call, view)
        for peer in self._peers():
            self._send(peer, transport.BYTES, view.view("u1"))

    def _reduce_scatter(self, call: Call, view: np.ndarray) -> None:
        shard = view.size // self._world.size
        mine = slice(self._world.rank * shard, (self._world.rank + 1) * shard)
        if self._world.rank:
            self._send(0, transport.BYTES, view.view("u1"))
            self._receive(0, view[mine])
            return
        total = self._reduced(call, view)
        view[mine] = total[mine]
        for peer in self._peers():
            part = total[peer * shard : (peer + 1) * shard]
            self._send(peer, transport.BYTES, part.view("u1"))

    def _all_gather(self, call: Call, view: np.ndarray) -> None:
        shard = view.size // self._world.size
        parts = [view[k * shard : (k + 1) * shard] for k in range(self._world.size)]
        if self._world.rank:
            self._send(0, transport.BYTES, parts[self._world.rank].view("u1"))
            self._receive(0, view)
            return
        for peer in self._peers():
            self._receive(peer, parts[peer])
        for peer in self._peers():
            self._send(peer, transport.BYTES, view.view("u1"))

    def _broadcast(self, call: Call, view: np.ndarray) -> None:
        if self._world.rank == 0:
            if call.root:
                self._receive(call.root, view)
            for peer in self._peers():
                if peer != call.root:
                    self._send(peer, transport.BYTES, view.view("u1"))
        elif self._world.rank == call.root:
            self._send(0, transport.BYTES, view.view("u1"))
        else:
            self._receive(0, view)

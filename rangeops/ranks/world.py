"""World: the processes of one training, and how they notice that one is gone.

Rank 0 listens and the others connect, once for control and once for data.  The control
connections stay open as failure detector: the connection of a killed process ends (noticed at
once), a stopped process sends no sign of life (noticed after ``deadline`` seconds).  Rank 0 tells
the others which rank it lost, so that all name the same.  A call that waits in here then raises
``RankLost``; a process that still runs ``grace`` seconds later (its main thread may be inside a
driver call) prints the sentence and ends with status 1.

A star through rank 0 serves the start and CPU arenas; gradients of GPUs go by NCCL.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rangeops.ranks import transport
from rangeops.ranks.info import RankInfo, rank_info
from rangeops.ranks.rendezvous import TICK, Sockets, rendezvous

WHOLE, BETWEEN = "those of the last finished step", "between two steps"
"""What weights are when a rank is lost."""


class RankLost(RuntimeError):
    """A rank is gone; the training cannot go on in this process.

    Attributes:
        rank: the lost one.

    """

    def __init__(self, sentence: str, rank: int) -> None:
        super().__init__(sentence)
        self.rank = rank


class World:
    """The ranks that this process trains with; use it in a ``with`` block, or ``close`` it.

    Args:
        info: this rank among all (default: as the environment says).
        timeout: seconds to wait for all ranks to connect.
        deadline: seconds without a sign of life after which a rank is lost.
        grace: seconds between a loss and this process's forced end.

    Attributes:
        info: this rank among all.
        rank, size, local_rank, take_device: see ``RankInfo``.

    Raises:
        TimeoutError: some ranks did not connect. ValueError: they disagree on rank or number.

    """

    def __init__(
        self,
        info: RankInfo | None = None,
        *,
        timeout: float = 60.0,
        deadline: float = 5.0,
        grace: float = 10.0,
    ) -> None:
        self.info = rank_info() if info is None else info
        self.rank, self.size = self.info.rank, self.info.size
        self.local_rank, self.take_device = self.info.local_rank, self.info.take_device
        self.doing, self.weights = "its start", WHOLE
        self._deadline, self._grace = deadline, grace
        self._lost: RankLost | None = None
        self._listeners: list[Callable[[], None]] = []
        self._listening: list[threading.Thread] = []
        self.left: set[int] = set()
        self._closed = threading.Event()
        self._control: Sockets = {}
        self.data: Sockets = {}
        if self.size == 1:
            return
        self._control, self.data = rendezvous(self.info, timeout)
        self._inbox: dict[int, queue.SimpleQueue[Any]] = {
            peer: queue.SimpleQueue() for peer in self._control
        }
        self._sending = {peer: threading.Lock() for peer in self._control}
        self._heard = dict.fromkeys(self._control, time.monotonic())
        self._watcher = threading.Thread(target=self._watch, name="rangeops ranks", daemon=True)
        self._watcher.start()

    def __repr__(self) -> str:
        """Return the rank, where rank 0 listens, and which rank is lost."""
        at = f" at {self.info.address}:{self.info.port}" if self.size > 1 else ""
        lost = f", rank {self._lost.rank} is lost" if self._lost else ""
        return f"<World: rank {self.rank} of {self.size}{at}{lost}>"

    def __enter__(self) -> World:
        """Return itself."""
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        """Leave; after an error without telling, so that the others count this rank as lost."""
        self.close(peaceful=kind is None)

    # The failure detector

    def _watch(self) -> None:
        """Send signs of life and read the control connections, until the world is closed."""
        buffers = {peer: bytearray() for peer in self._control}
        with selectors.DefaultSelector() as selector:
            for peer, sock in self._control.items():
                selector.register(sock, selectors.EVENT_READ, peer)
            beat = 0.0
            while not self._closed.is_set():
                now = time.monotonic()
                if now >= beat:
                    beat = now + self._deadline / 5
                    for peer in self._control:
                        self._push(peer, transport.BEAT)
                for key, _ in selector.select(TICK):
                    if not self._read(key.data, buffers[key.data]):
                        selector.unregister(key.fileobj)
                self._lose_the_silent()

    def _read(self, peer: int, buffer: bytearray) -> bool:
        """Read what a peer sent; return whether its connection is still open."""
        try:
            received = self._control[peer].recv(1 << 16)
        except TimeoutError:
            return True
        except OSError:
            received = b""
        if not received:
            if peer not in self.left:
                self._lose(peer, "its connection ended")
            return False
        self._heard[peer] = time.monotonic()
        buffer += received
        while len(buffer) >= transport.HEAD.size:
            nbytes, kind = transport.HEAD.unpack_from(buffer)
            if len(buffer) < transport.HEAD.size + nbytes:
                break
            body = bytes(buffer[transport.HEAD.size : transport.HEAD.size + nbytes])
            del buffer[: transport.HEAD.size + nbytes]
            if kind == transport.LEAVE:
                self.left.add(peer)
                self._inbox[peer].put(None)
            elif kind == transport.LOST:
                self._lose(*transport.parse(body))
            elif kind == transport.OBJECT:
                self._inbox[peer].put([transport.parse(body)])
        return True

    def _lose_the_silent(self) -> None:
        """Count ranks as lost that sent no sign of life within the deadline."""
        now = time.monotonic()
        for peer, heard in self._heard.items():
            if now - heard > self._deadline and peer not in self.left:
                self._lose(peer, f"no sign of life for {self._deadline:g} s")

    def _tell(self, peer: int, kind: int, content: Any = b"") -> None:
        """Send a message; to a peer that is gone there is nothing to say."""
        with contextlib.suppress(transport.Closed), self._sending[peer]:
            transport.send(self._control[peer], kind, content, self.check)

    def _push(self, peer: int, kind: int, content: Any = b"") -> None:
        """Send a message from the watching thread, which never waits for a peer."""

        def give_up() -> None:
            raise transport.Closed("it does not read")

        lock = self._sending[peer]
        if lock.acquire(timeout=0.05):
            try:
                transport.send(self._control[peer], kind, content, give_up)
            except transport.Closed:
                pass  # reading from that peer tells what happened to it
            finally:
                lock.release()

    def _lose(self, rank: int, reason: str) -> None:
        """Record the first loss, start the listeners, tell the other ranks."""
        if self._lost is not None or self._closed.is_set():
            return
        for listener in self._listeners:
            thread = threading.Thread(target=listener, daemon=True)
            thread.start()
            self._listening.append(thread)  # once it runs, since ``close`` joins all in here
        self._lost = RankLost(
            f"ranks: rank {self.rank} of {self.size} lost rank {rank} ({reason}) in {self.doing}; "
            f"weights are {self.weights}, start again from a checkpoint",
            rank,
        )
        if self.rank == 0:
            for peer in self._control:
                if peer != rank:
                    self._push(peer, transport.LOST, [rank, reason])
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        """End this process if it has not ended by itself within the grace."""
        if not self._closed.wait(self._grace):
            print(self._lost, file=sys.stderr, flush=True)
            os._exit(1)

    def on_loss(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, in a thread of its own, when a rank is lost."""
        self._listeners.append(listener)

    def check(self) -> None:
        """Raise RankLost if a rank was lost."""
        if self._lost is not None:
            raise self._lost

    def gone(self, peer: int, error: Exception) -> RankLost:
        """Return what to raise when a peer's connection failed; the watcher's finding, if any."""
        end = time.monotonic() + self._deadline
        while self._lost is None and peer not in self.left and time.monotonic() < end:
            time.sleep(0.01)
        why = "it has left" if peer in self.left else str(error)
        return self._lost or RankLost(
            f"ranks: rank {self.rank} of {self.size} lost rank {peer} ({why}) in {self.doing}; "
            f"weights are {self.weights}",
            peer,
        )

    # Messages

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order; every rank has to call it.

        ``value`` is anything that JSON can hold.

        Raises:
            RankLost: a rank is gone.

        """
        if self.size == 1:
            return [value]
        if self.rank:
            self._tell(0, transport.OBJECT, value)
            return list(self._from(0))
        values = [value, *(self._from(peer) for peer in range(1, self.size))]
        for peer in range(1, self.size):
            self._tell(peer, transport.OBJECT, values)
        return values

    def _from(self, peer: int) -> Any:
        """Return the next object from a peer."""
        while True:
            self.check()
            try:
                message = self._inbox[peer].get(timeout=TICK)
            except queue.Empty:
                continue
            if message is None:
                raise self.gone(peer, ConnectionError("it has left"))
            return message[0]

    def close(self, peaceful: bool = True) -> None:
        """Leave: wait until all ranks do, ``deadline`` seconds at most, and end the connections.

        After a loss it waits for an abort under way, during which Python must not end.
        """
        if self.size == 1 or self._closed.is_set():
            return
        if peaceful and self._lost is None:
            for peer in self._control:
                self._tell(peer, transport.LEAVE)
            end = time.monotonic() + self._deadline
            while len(self.left) < len(self._control) and time.monotonic() < end:
                time.sleep(0.005)
        self._closed.set()
        self._watcher.join(2.0)  # it alone starts listeners, and none once it has ended
        for thread in self._listening:
            thread.join(self._grace)
        for sock in (*self._control.values(), *self.data.values()):
            sock.close()

"""Transport: messages over a socket, a length and a kind before each."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct("<QB")
"""Bytes of the message, kind."""

MOST = 1 << 28
"""Largest object in bytes: a plan of a million tensors."""

BEAT, LEAVE, LOST, OBJECT, BYTES = range(5)
"""Kinds: sign of life; the sender ends well; a rank is lost; a JSON object; raw bytes."""


class Closed(ConnectionError):
    """The other end is gone."""


def connection(sock: socket.socket) -> socket.socket:
    """Return a socket that sends small messages at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def send(
    sock: socket.socket, kind: int, content: Any = b"", still: Callable[[], None] = lambda: None
) -> None:
    """Send one message; ``content`` is bytes, or for the kinds of objects what JSON can hold.

    ``still`` is called whenever the socket's time-out passes, and may raise to give up.

    Raises:
        Closed: the other end is gone.

    """
    body = json.dumps(content).encode() if kind in (LOST, OBJECT) else content
    view = memoryview(body).cast("B")
    for part in (memoryview(HEAD.pack(view.nbytes, kind)), view):
        done = 0
        while done < part.nbytes:
            try:
                done += sock.send(part[done:])
            except TimeoutError:
                still()
            except OSError as error:
                raise Closed(str(error)) from error


def parse(body: bytes) -> Any:
    """Return the object of a message."""
    return json.loads(body) if body else None


def receive(
    sock: socket.socket, into: memoryview | None, still: Callable[[], None], most: int = MOST
) -> Any:
    """Receive one message; bytes go ``into`` a view of their length, objects have at most ``most``.

    ``still`` is called whenever the socket's time-out passes, and may raise to give up.

    Raises:
        Closed: the other end is gone, or sent no such message.

    """
    head = bytearray(HEAD.size)
    _fill(sock, memoryview(head), still)
    nbytes, kind = HEAD.unpack(head)
    if kind == BYTES and into is not None and into.nbytes == nbytes:
        _fill(sock, into, still)
        return kind, into
    if kind != OBJECT or nbytes > most:
        raise Closed(f"got kind {kind} of {nbytes} bytes, expected another message")
    body = bytearray(nbytes)
    _fill(sock, memoryview(body), still)
    return kind, parse(bytes(body))


def _fill(sock: socket.socket, view: memoryview, still: Callable[[], None]) -> None:
    done = 0
    while done < view.nbytes:
        try:
            received = sock.recv_into(view[done:])
        except TimeoutError:
            still()
            continue
        except OSError as error:
            raise Closed(str(error)) from error
        if not received:
            raise Closed("the connection ended")
        done += received

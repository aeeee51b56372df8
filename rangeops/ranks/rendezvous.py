"""Rendezvous: rank 0 listens, the others connect, and each says who it is.

Two connections a rank: one for control, which stays free for signs of life, one for data.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from rangeops.ranks import transport
from rangeops.ranks.info import RankInfo

MAGIC = "rangeops ranks 1"
TICK = 0.2
"""Seconds after which whoever waits on a connection looks whether to go on."""

Sockets = dict[int, socket.socket]


def meet(where: RankInfo, timeout: float) -> tuple[Sockets, Sockets]:
    """Return the control and the data connections by rank, once all ranks are there.

    Raises:
        TimeoutError: not all came. ValueError: they disagree on who they are.

    """
    control: Sockets = {}
    data: Sockets = {}
    if where.rank == 0:
        _gather(where, timeout, control, data)
    else:
        control[0], data[0] = (_join(where, name, timeout) for name in ("control", "data"))
    for sock in (*control.values(), *data.values()):
        sock.settimeout(TICK)
    return control, data


def _listen(where: RankInfo) -> socket.socket:
    try:
        return socket.create_server((where.address, where.port), backlog=2 * where.size)
    except OSError as error:
        raise OSError(
            f"ranks: rank 0 cannot listen at {where.address}:{where.port} ({error}), expected an "
            "address of this host and a free port; set MASTER_ADDR and RANGEOPS_PORT"
        ) from error


def _gather(where: RankInfo, timeout: float, control: Sockets, data: Sockets) -> None:
    end = time.monotonic() + timeout
    with _listen(where) as server:
        while len(control) + len(data) < 2 * (where.size - 1):
            server.settimeout(max(0.01, end - time.monotonic()))
            try:
                sock, _ = server.accept()
            except TimeoutError:
                missing = set(range(1, where.size)) - set(control)
                raise TimeoutError(
                    f"ranks: ranks {sorted(missing)} did not come to {where.address}:"
                    f"{where.port} in {timeout:.0f} s, expected {where.size}; are they started "
                    "with the same MASTER_ADDR and RANGEOPS_PORT (or MASTER_PORT)?"
                ) from None
            _admit(where, transport.connection(sock), {"control": control, "data": data})


def _admit(where: RankInfo, sock: socket.socket, channels: dict[str, Sockets]) -> None:
    """Take one connection in, if it speaks our language and belongs here."""
    sock.settimeout(5.0)

    def give_up() -> None:
        raise transport.Closed("nothing came")

    try:
        _, hello = transport.receive(sock, None, give_up, most=1000)
        channel = channels[hello["channel"]]
        peer, restart = int(hello["rank"]), int(hello["restart"])
        fault = _fault(where, hello, taken=peer in channel)
        transport.send(sock, transport.OBJECT, fault)
    except (transport.Closed, ValueError, TypeError, KeyError):
        sock.close()  # no rank of ours: a scanner, or another program
        return
    if fault:
        sock.close()
        if restart < where.restart:
            return  # left behind by an earlier start; the one of this start will come
        raise ValueError(f"ranks: {fault}")
    channel[peer] = sock


def _fault(where: RankInfo, hello: dict[str, Any], taken: bool) -> str:
    """Return what is wrong with a rank that says hello, and the remedy, or nothing."""
    peer, restart, size = (int(hello[key]) for key in ("rank", "restart", "size"))
    remedy = "start all ranks with one WORLD_SIZE and own RANKs"
    if hello["magic"] != MAGIC:
        return f"magic got {hello['magic']!r}, expected {MAGIC!r}; install one version on all hosts"
    if restart != where.restart:
        return (
            f"rank {peer} is of restart {restart}, rank 0 of restart {where.restart}; end the "
            "processes of the earlier start"
        )
    if size != where.size:
        return f"rank {peer} expects {size} ranks, rank 0 {where.size}; {remedy}"
    if not 0 < peer < where.size or taken:
        return f"rank {peer} came twice or is none of 1 .. {where.size - 1}; {remedy}"
    return ""


def _join(where: RankInfo, channel: str, timeout: float) -> socket.socket:
    end = time.monotonic() + timeout
    while True:
        try:
            sock = socket.create_connection((where.address, where.port), timeout=5.0)
            if sock.getsockname() != sock.getpeername():
                break
            sock.close()  # a free port of this host may be given to the caller's own end
            raise ConnectionError("connected to itself")
        except OSError as error:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"ranks: rank {where.rank} found nobody at {where.address}:{where.port} in "
                    f"{timeout:.0f} s ({error}), expected rank 0; is it started, with the same "
                    "MASTER_ADDR and RANGEOPS_PORT (or MASTER_PORT)?"
                ) from None
            time.sleep(0.02)
    transport.connection(sock).settimeout(TICK)
    hello = {"magic": MAGIC, "channel": channel}
    hello |= {key: getattr(where, key) for key in ("rank", "size", "restart")}
    transport.send(sock, transport.OBJECT, hello)

    def waiting() -> None:
        if time.monotonic() > end:
            raise TimeoutError(f"ranks: rank 0 at {where.address}:{where.port} says nothing")

    _, fault = transport.receive(sock, None, waiting)
    if fault:
        sock.close()
        raise ValueError(f"ranks: {fault}")
    return sock

"""Rendezvous: rank 0 listens, the others connect, and each introduces itself.

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
"""Seconds after which a thread that waits on a connection asks whether to go on."""

Sockets = dict[int, socket.socket]


def rendezvous(info: RankInfo, timeout: float) -> tuple[Sockets, Sockets]:
    """Return the control and the data connections by rank, once all ranks are connected.

    Raises:
        TimeoutError: some ranks did not connect. ValueError: they disagree on rank or number.

    """
    control: Sockets = {}
    data: Sockets = {}
    if info.rank == 0:
        _gather(info, timeout, control, data)
    else:
        control[0], data[0] = (_join(info, name, timeout) for name in ("control", "data"))
    for sock in (*control.values(), *data.values()):
        sock.settimeout(TICK)
    return control, data


def _listen(info: RankInfo) -> socket.socket:
    try:
        return socket.create_server((info.address, info.port), backlog=2 * info.size)
    except OSError as error:
        raise OSError(
            f"ranks: rank 0 cannot listen at {info.address}:{info.port} ({error}), expected an "
            "address of this host and a free port; set MASTER_ADDR and RANGEOPS_PORT"
        ) from error


def _gather(info: RankInfo, timeout: float, control: Sockets, data: Sockets) -> None:
    end = time.monotonic() + timeout
    with _listen(info) as server:
        while len(control) + len(data) < 2 * (info.size - 1):
            server.settimeout(max(0.01, end - time.monotonic()))
            try:
                sock, _ = server.accept()
            except TimeoutError:
                missing = set(range(1, info.size)) - set(control)
                raise TimeoutError(
                    f"ranks: ranks {sorted(missing)} did not come to {info.address}:"
                    f"{info.port} in {timeout:.0f} s, expected {info.size}; are they started "
                    "with the same MASTER_ADDR and RANGEOPS_PORT (or MASTER_PORT)?"
                ) from None
            _admit(info, transport.connection(sock), {"control": control, "data": data})


def _admit(info: RankInfo, sock: socket.socket, channels: dict[str, Sockets]) -> None:
    """Accept one connection, if it is one of our ranks."""
    sock.settimeout(5.0)

    def give_up() -> None:
        raise transport.Closed("nothing came")

    try:
        _, hello = transport.receive(sock, None, give_up, most=1000)
        channel = channels[hello["channel"]]
        peer, restart = int(hello["rank"]), int(hello["restart"])
        fault = _fault(info, hello, taken=peer in channel)
        transport.send(sock, transport.OBJECT, fault)
    except (transport.Closed, ValueError, TypeError, KeyError):
        sock.close()  # none of our ranks: a port scanner, or another program
        return
    if fault:
        sock.close()
        if restart < info.restart:
            return  # left behind by an earlier start; the rank of this start is still to connect
        raise ValueError(f"ranks: {fault}")
    channel[peer] = sock


def _fault(info: RankInfo, hello: dict[str, Any], taken: bool) -> str:
    """Return what is wrong with a rank that introduces itself, and the remedy; "" if nothing."""
    peer, restart, size = (int(hello[key]) for key in ("rank", "restart", "size"))
    remedy = "start all ranks with one WORLD_SIZE and own RANKs"
    if hello["magic"] != MAGIC:
        return f"magic got {hello['magic']!r}, expected {MAGIC!r}; install one version on all hosts"
    if restart != info.restart:
        return (
            f"rank {peer} is of restart {restart}, rank 0 of restart {info.restart}; end the "
            "processes of the earlier start"
        )
    if size != info.size:
        return f"rank {peer} expects {size} ranks, rank 0 {info.size}; {remedy}"
    if not 0 < peer < info.size or taken:
        return f"rank {peer} came twice or is none of 1 .. {info.size - 1}; {remedy}"
    return ""


def _join(info: RankInfo, channel: str, timeout: float) -> socket.socket:
    end = time.monotonic() + timeout
    while True:
        try:
            sock = socket.create_connection((info.address, info.port), timeout=5.0)
            if sock.getsockname() != sock.getpeername():
                break
            sock.close()  # where nobody listens, TCP may connect a socket to itself
            raise ConnectionError("connected to itself")
        except OSError as error:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"ranks: rank {info.rank} found nobody at {info.address}:{info.port} in "
                    f"{timeout:.0f} s ({error}), expected rank 0; is it started, with the same "
                    "MASTER_ADDR and RANGEOPS_PORT (or MASTER_PORT)?"
                ) from None
            time.sleep(0.02)
    transport.connection(sock).settimeout(TICK)
    hello = {"magic": MAGIC, "channel": channel}
    hello |= {key: getattr(info, key) for key in ("rank", "size", "restart")}
    transport.send(sock, transport.OBJECT, hello)

    def waiting() -> None:
        if time.monotonic() > end:
            raise TimeoutError(f"ranks: rank 0 at {info.address}:{info.port} says nothing")

    _, fault = transport.receive(sock, None, waiting)
    if fault:
        sock.close()
        raise ValueError(f"ranks: {fault}")
    return sock

"""h2d_copy: host values to one tensor or one zone, in order of a stream."""

from __future__ import annotations

from typing import Any

from plan import DTensor, Range
from rangeops.arena.arena import Arena
from rangeops.arena.sparse import check_mapped
from rangeops.device.streams import handle_of
from rangeops.h2d.staging import RING_BYTES, pieces, ring_of, shaped
from rangeops.h2d.zones import REGIONS, Zone


def h2d_copy(
    arena: Arena, target: DTensor | str, values: Any, stream: Any = None, pad: bool = False
) -> None:
    """Copy host values to one tensor, or a (data, label) pair to zone "a" or "b".

    The copy runs in order of ``stream`` (default: the framework's current one).  Values may be
    pageable or pinned and are free to change when the call returns: they are staged.

    Raises:
        ValueError, TypeError: another shape, or a dtype that would change kind.
        RuntimeError: the stream is capturing; a replay would read the host's memory of today.

    """
    if arena.capturing():
        raise RuntimeError(
            "h2d_copy: got a copy while the stream is capturing, expected it outside; copy before "
            "the replay, the addresses never change"
        )
    zone = Zone(arena, target) if isinstance(target, str) and target in REGIONS else None
    if zone is None:
        tensor = arena.tensor(target)
        array = shaped(tensor, values, f"h2d_copy: {tensor.name}")
        parts = pieces(tensor, array, RING_BYTES)
        span = Range(tensor.offset, tensor.nbytes)
    else:
        parts = iter([(0, zone.span.size, lambda m: zone.fill(m, values, pad, "h2d_copy"))])
        span = zone.span
    check_mapped(arena.holes, "h2d_copy", span)
    handle = arena.current_stream() if stream is None else handle_of(stream)
    ring = ring_of(arena, RING_BYTES if zone is None else span.size)
    with ring.lock:
        for offset, size, fill in parts:
            slot = ring.take()
            fill(slot.memory)
            ring.send(slot, arena.ptr_at(span.base_offset + offset), size, handle)

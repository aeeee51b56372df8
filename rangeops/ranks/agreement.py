"""agreement: every rank steps with the same settings, or none does.

Groups, frozen and resting tensors, and the scalars of the host are hashed on each rank.  The hash
and its complement travel as two words through a maximum over ranks beside the gradients: they are
each other's complement afterwards exactly where all ranks gave one hash.  Where they are not,
``begin_step`` holds the step back on every rank, the words come back to the host with the step, and
the next call raises with the first difference.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from plan import Range
from plan.scalars import DEVICE_OWNED, FP32_SCALARS, INT32_SCALARS
from rangeops.ranks.communicators import Call, RankMismatch

if TYPE_CHECKING:
    from rangeops.ranks.group import Ranks

WORDS = ("settings", "settings_inverse")

COMPARED = tuple(n for n in (*FP32_SCALARS, *INT32_SCALARS) if n not in DEVICE_OWNED)
"""Scalars of the host that decide a step."""

OWN = frozenset({"batch_size"})
"""Scalars that are a rank's own affair."""


class Agreement:
    """The comparison of one arena's settings with those of the other ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._arena = ranks, ranks.arena
        self._places = [ranks.plan.scalar(name)[0] for name in WORDS]
        first, last = self._places
        self._span = Range(first, last + 4 - first)
        self._heard = ranks.arena.backend.pinned(self._span.size)
        self._sent: tuple[int, int] | None = None
        self._hear(0, -1)

    @property
    def call(self) -> Call:
        """The maximum over ranks of the two words."""
        return self._ranks.call("all_reduce", self._span, "max")

    def listen(self, stream: Any = None) -> None:
        """Enqueue the words' way to the host, behind the maximum."""
        device, arena = self._arena.backend, self._arena
        at = arena.ptr_at(self._span.base_offset)
        device.download(self._heard, at, self._ranks.handle(stream), wait=False)

    def prepare(self) -> None:
        """Give the words for the next step, if settings changed; raise if they differed before.

        Raises:
            RankMismatch: on every rank, with the first difference.

        """
        if self._ranks.world.size == 1:
            return
        words = self._heard.view(np.int32)
        if int(words[0]) != ~int(words[-1]):
            self._explain()
        arena = self._arena
        version = arena.groups.version, arena.scalars.version
        if version != self._sent:
            self._sent = version
            word = self._hash()
            for place, value in zip(self._places, (word, ~word), strict=True):
                arena.write(place, np.array([value], np.int32))

    def _hear(self, word: int, inverse: int) -> None:
        words = self._heard.view(np.int32)
        words[0], words[-1] = word, inverse

    def _scalars(self) -> dict[str, float]:
        own = self._ranks.plan.config.own_scalars
        names = [*(n for n in COMPARED if n not in OWN), *own]
        return {name: self._arena.scalars.get(name) for name in names}

    def _hash(self) -> int:
        values = np.array(list(self._scalars().values()), np.float64).tobytes()
        word = zlib.crc32(self._arena.groups.fingerprint(), zlib.crc32(values))
        return int(np.uint32(word).view(np.int32))

    def _facts(self) -> dict[str, Any]:
        """Return what was hashed as plain data, by tensor."""
        groups = self._arena.groups
        state = groups.state()
        facts: dict[str, Any] = {f"scalars.{name}": v for name, v in self._scalars().items()}
        for group in state["groups"].values():
            facts |= {f"{tensor}: settings": group["settings"] for tensor in group["of"]}
        facts |= {f"{tensor}: frozen": True for tensor in state["frozen"]}
        return facts | {f"{tensor}: no gradient": True for tensor in groups.resting}

    def _explain(self) -> None:
        first, *others = self._ranks.world.exchange(self._facts())
        for rank, other in enumerate(others, 1):
            for name in sorted({*first, *other}):
                if first.get(name) != other.get(name):
                    raise RankMismatch(
                        f"ranks: {name} is {other.get(name)} on rank {rank} and "
                        f"{first.get(name)} on rank 0, expected the same on all; no rank has "
                        "stepped since. Give all ranks the same settings"
                    )
        raise RankMismatch(
            "ranks: settings differed in a step that none has taken, and are the same now, "
            "expected every rank to change them before the same step; do so"
        )

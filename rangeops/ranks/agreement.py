"""agreement: every rank steps with the same settings, or none does.

Groups, frozen and resting tensors, and the scalars of the host are hashed on each rank.  The hash
and its complement travel as two words through a maximum over ranks beside the gradients: they are
each other's complement afterwards exactly where all ranks gave one hash.  Where they are not,
``begin_step`` holds the step back on every rank, the words come back to the host with the step, and
the next call raises with the first difference.

Every call waits for the words of the call before, which lie ahead of that step's update: so all
ranks raise at the same call, none with a collective on its way that another never joins.
"""

from __future__ import annotations

import json
import time
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

OWN = frozenset({"batch_size", "dropout_seed"})
"""Scalars that are a rank's own affair."""

PROGRESS = ("step", "loss_scale", "growth_tracker", "hysteresis_tracker")
"""Scalars of the device that all ranks have to begin with."""

ON_THE_WAY = (0, 0)
"""What the host has of words that it waits for: no hash is 0, nor is its complement."""


class Agreement:
    """The comparison of one arena's settings with those of the other ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._arena = ranks, ranks.arena
        self._places = [ranks.plan.scalar(name)[0] for name in WORDS]
        first, last = self._places
        self._span = Range(first, last + 4 - first)
        self._heard = ranks.arena.backend.pinned(self._span.size).view(np.int32)
        self._event = ranks.arena.backend.event()
        self._sent: tuple[int, int] | None = None

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

        At the first call, and behind a difference, ranks compare all they begin with at once.

        Raises:
            RankMismatch: on every rank, with the first difference.

        """
        arena = self._arena
        if self._ranks.world.size == 1 or arena.capturing():
            return
        differed = self._differed()
        if differed or self._sent is None:
            self._sent = None
            self._compare(differed)
        version = arena.groups.version, arena.scalars.version
        if version != self._sent:
            self._sent = version
            word = self._hash()
            for place, value in zip(self._places, (word, ~word), strict=True):
                arena.write(place, np.array([value], np.int32))

    def _differed(self) -> bool:
        """Wait for the words of the step before; return whether they were not the same."""
        self._event.record(self._arena.current_stream())
        while self._on_the_way() and not self._event.done:
            self._ranks.world.check()
            time.sleep(0)
        ran, (word, inverse) = not self._on_the_way(), self._heard[[0, -1]].tolist()
        self._heard[0], self._heard[-1] = ON_THE_WAY
        return ran and word != ~inverse

    def _on_the_way(self) -> bool:
        return not (self._heard[0] and self._heard[-1])

    def _scalars(self) -> dict[str, float]:
        own = self._ranks.plan.config.own_scalars
        names = [*(n for n in COMPARED if n not in OWN), *own]
        return {name: self._arena.scalars.get(name) for name in names}

    def _hash(self) -> int:
        values = np.array(list(self._scalars().values()), np.float64).tobytes()
        word = zlib.crc32(self._arena.groups.fingerprint(), zlib.crc32(values))
        found = int(np.uint32(word).view(np.int32))
        return found if found not in (0, ~0) else 1

    def _facts(self) -> dict[str, Any]:
        """Return what was hashed, and what ranks begin with, as plain data, by tensor."""
        arena, groups = self._arena, self._arena.groups
        state = groups.state()
        facts: dict[str, Any] = {f"scalars.{name}": v for name, v in self._scalars().items()}
        facts |= {f"scalars.{name}": arena.scalars.get(name) for name in PROGRESS}
        facts |= {f"option {name}": value for name, value in arena.owner.options.items()}
        for group in state["groups"].values():
            facts |= {f"{tensor}: settings": group["settings"] for tensor in group["of"]}
        facts |= {f"{tensor}: frozen": True for tensor in state["frozen"]}
        facts |= {f"{tensor}: no gradient": True for tensor in groups.resting}
        facts |= {f"{tensor}: steps": steps for tensor, steps in groups.steps().items()}
        return json.loads(json.dumps(facts, default=float))  # as it comes from other ranks

    def _compare(self, differed: bool) -> None:
        """Raise with the first difference, or if there was one and is none now."""
        facts, world = self._facts(), self._ranks.world
        hashes = world.exchange(zlib.crc32(json.dumps(facts, sort_keys=True).encode()))
        same = len(set(hashes)) == 1
        first, *others = [{}] if same else world.exchange(facts)
        for rank, other in enumerate(others, 1):
            for name in sorted({*first, *other}):
                one, two = first.get(name, False), other.get(name, False)
                if one != two:
                    raise RankMismatch(
                        f"ranks: {name} is {two} on rank {rank} and {one} on rank 0, expected the "
                        "same on all; no rank has stepped since. Give all ranks the same settings"
                    )
        if differed:
            raise RankMismatch(
                "ranks: settings differed in a step that none has taken, and are the same now, "
                "expected every rank to change them before the same step; do so"
            )

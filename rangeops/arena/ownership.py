"""ownership: who drives an arena's optimizer state, and whether averaged weights are swapped in.

One driver at a time owns moments, steps and averages: two of them would move one step counter and
each other's moments.  A driver begins anew (moments and steps zero, the average equal to the
weights) unless it is told to resume.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

from plan import PlanError, Range
from plan.scalars import FP32_SCALARS, INT32_SCALARS
from rangeops.arena.sparse import outside

PROGRESS = (
    "step",
    "found_inf",
    "skip_step",
    "skipped_steps",
    "growth_tracker",
    "floor_hits",
    "first_nonfinite",
    "nonfinite_granule",
)
"""The scalars that a driver that begins anew sets as in a fresh arena."""


class Ownership:
    """What is known of an arena's optimizer state beside its bytes.

    Attributes:
        options: what the driver chose that the bytes do not tell (``ema_warmup`` ...).
        waiting: whether a checkpoint was loaded that no driver has resumed yet.

    """

    def __init__(self) -> None:
        self._driver: weakref.ref[Any] = weakref.ref(self)
        self._driven = False
        self._swapped: set[Range] = set()
        self.options: dict[str, Any] = {}
        self.waiting = False
        self._loaded: Mapping[str, Any] | None = None

    @property
    def driver(self) -> Any:
        """The object that owns the optimizer state, None if nobody does."""
        return self._driver() if self._driven else None

    @property
    def swapped(self) -> bool:
        """Whether averaged weights lie where the live ones belong."""
        return bool(self._swapped)

    def toggle(self, span: Range) -> None:
        """Note that live and averaged weights of a range were exchanged."""
        self._swapped ^= {span}

    def take(
        self, arena: Any, driver: Any, options: Mapping[str, Any], resume: bool | None
    ) -> None:
        """Make ``driver`` the owner, whose state begins anew or goes on.

        Raises:
            PlanError: another one owns it, or a loaded state waits to be resumed.
            RuntimeError: averaged weights are swapped in.

        """
        if self.driver is not None:
            gc.collect()  # one that nobody holds any more may wait in a cycle
        if self.driver is not None:
            raise PlanError(
                f"OptimizerStep: the arena is driven by {self.driver!r}, expected one driver at a "
                "time; close() that one first, or use it"
            )
        self.check_live("OptimizerStep")
        if resume is None and self.waiting:
            raise PlanError(
                f"OptimizerStep: the arena holds a loaded state of step {arena.scalars.step}, "
                "expected resume=True to go on from it or resume=False to begin anew; say which"
            )
        if resume and self._loaded is not None:
            self.check_options(self._loaded, options)
        if not resume:
            begin_anew(arena)
        self.waiting, self._loaded, self.options = False, None, dict(options)
        self._driver, self._driven = weakref.ref(driver), True

    def facts(self) -> dict[str, Any]:
        """Return what a copy of the arena has to know."""
        driven = self.driver is not None or self.waiting
        return {
            "swapped": set(self._swapped),
            "options": self.options,
            "waiting": driven,
            "loaded": self._loaded,
        }

    def adopt(self, facts: Mapping[str, Any]) -> None:
        """Take over what ``facts`` gave; the state waits for a driver to resume it."""
        self._swapped, self.options = set(facts["swapped"]), dict(facts["options"])
        self.waiting, self._loaded = facts["waiting"], facts["loaded"]

    def leave(self, driver: Any) -> None:
        """Let the driver go, if it is this one."""
        if self.driver is driver:
            self._driven = False

    def resumable(self, options: Mapping[str, Any] | None) -> None:
        """Note that a checkpoint was loaded, with the options that a driver has to have, if any."""
        if self.driver is None:
            self.waiting, self._loaded = True, options

    @staticmethod
    def check_options(loaded: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Refuse a driver that would go on otherwise than the one that saved.

        Raises:
            PlanError: an option differs.

        """
        for name in sorted(loaded):
            if loaded[name] != options.get(name):
                raise PlanError(
                    f"resume: the checkpoint was made with {name}={loaded[name]}, got "
                    f"{name}={options.get(name)}, expected the same; give it, or load with "
                    "strict=False"
                )

    def check_live(self, what: str) -> None:
        """Refuse ``what`` while averaged weights lie where the live ones belong.

        Raises:
            RuntimeError: they do.

        """
        if self._swapped:
            raise RuntimeError(
                f"{what}: the averaged weights are swapped in, expected the live ones; leave "
                "averaged(), or swap again, first"
            )


def begin_anew(arena: Any) -> None:
    """Zero moments and steps, and let the average be the weights, on the current stream."""
    plan = arena.planned("begin_anew")
    fresh: dict[str, Any] = {**FP32_SCALARS, **INT32_SCALARS}
    arena.scalars.set(**{name: fresh[name] for name in PROGRESS})
    for letter in plan.config.kind.series:
        arena.clear(plan.series_range(letter))
    restart_average(arena)


def restart_average(arena: Any) -> None:
    """Let the average of an arena that keeps one be the weights, on the current stream."""
    plan = arena.planned("restart_average")
    if not plan.config.ema:
        return
    live, averaged = plan.series_range("W"), plan.series_range("E")
    away = averaged.base_offset - live.base_offset
    for part in outside(arena.holes, averaged):
        weights = Range(part.base_offset - away, part.size)
        for kept in outside(arena.holes, weights):
            arena.copy_bytes(kept.base_offset + away, kept)

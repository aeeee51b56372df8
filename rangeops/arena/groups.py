"""Groups: per-tensor multipliers of lr and weight decay, frozen tensors, tensors without gradient.

Every tensor belongs to a group; a group is one row of multipliers in the arena, so changing a
group's lr is one upload of eight bytes, never a new binding.  Two groups exist from the start:
"decay" (weights) and "no_decay" (biases and norms: weight decay times 0, no trust ratio).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from plan import DTensor, PlanError
from plan.scratch import GROUP_FLOATS, MAX_GROUPS
from rangeops.arena.scalars import check
from rangeops.arena.tables import GROUP_OF, GROUPS

if TYPE_CHECKING:
    from rangeops.arena.arena import Arena

Match = str | Iterable[str] | Callable[[DTensor], bool]
"""Tensors: a shell pattern over names ("layer4.*"), several, or a predicate of the DTensor."""


class Groups:
    """The parameter groups of a planned arena.

    >>> from plan.models import mlp, plan_model
    >>> from rangeops import Arena
    >>> arena = Arena(plan_model(mlp((4, 3))), device="cpu")
    >>> groups = Groups(arena)
    >>> groups.add("head", "layers.0.weight", lr=10.0)
    >>> groups.freeze("*.bias")
    >>> groups.of("layers.0.weight"), groups.skipped
    ('head', ('layers.0.bias',))
    """

    def __init__(self, arena: Arena) -> None:
        if arena.plan is None or not arena.plan.weights():
            raise PlanError(
                "groups: got an arena without planned parameters, expected a plan with some; "
                "announce them with plan.parameter(...)"
            )
        self._arena = arena
        self._tensors = arena.plan.weights()
        self._names = ["decay", "no_decay"]
        self._table = arena.plan.tensors[GROUPS].offset
        self._group_of = arena.download(GROUP_OF)

    def __repr__(self) -> str:
        """Return how many tensors each group has, and how many are frozen."""
        index = np.maximum(self._group_of, -1 - self._group_of)
        counts = [f"{name} {(index == k).sum()}" for k, name in enumerate(self._names)]
        frozen = len(self.skipped)
        return f"<Groups on {self._arena.device}: {', '.join(counts)} tensors, {frozen} frozen>"

    def add(
        self,
        name: str,
        match: Match,
        lr: float | None = None,
        weight_decay: float | None = None,
        adapt: bool = True,
    ) -> None:
        """Make a group of the matching tensors with multipliers (default 1).

        ``adapt=False`` keeps LARS's and LAMB's ratio of these tensors at 1.

        Raises:
            ValueError: name taken, no tensor matches, multiplier negative or not finite, or more
                than 64 groups.

        """
        rows = self._rows(match)
        if name in self._names or len(self._names) == MAX_GROUPS:
            raise ValueError(
                f"groups: got {name!r}, expected a new name and at most {MAX_GROUPS} groups"
            )
        self._check(lr, weight_decay)
        self._names.append(name)
        self.set(
            name, 1.0 if lr is None else lr, 1.0 if weight_decay is None else weight_decay, adapt
        )
        index = len(self._names) - 1
        skipped = self._group_of[rows] < 0
        self._group_of[rows] = np.where(skipped, -1 - index, index)
        self._upload()

    def set(
        self,
        name: str,
        lr: float | None = None,
        weight_decay: float | None = None,
        adapt: bool | None = None,
    ) -> None:
        """Change a group's multipliers, in order of the current stream, from the next step on."""
        if name not in self._names:
            raise ValueError(f"groups: got {name!r}, expected one of {', '.join(self._names)}")
        self._check(lr, weight_decay)
        for slot, value in enumerate((lr, weight_decay, adapt)):
            if value is not None:
                self._write(name, float(value), slot)

    def freeze(self, match: Match) -> None:
        """Leave p, m, v, EMA and half copy of the matching tensors alone from the next step on.

        Serves frozen tensors and tensors without a gradient this step alike.
        """
        rows = self._rows(match)
        self._group_of[rows] = np.minimum(self._group_of[rows], -1 - self._group_of[rows])
        self._upload()

    def unfreeze(self, match: Match) -> None:
        """Update the matching tensors again."""
        rows = self._rows(match)
        self._group_of[rows] = np.maximum(self._group_of[rows], -1 - self._group_of[rows])
        self._upload()

    def of(self, tensor: str) -> str:
        """Return the name of a tensor's group."""
        (row,) = self._rows([tensor])
        index = int(self._group_of[row])
        return self._names[max(index, -1 - index)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups in order of their rows."""
        return tuple(self._names)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the frozen tensors."""
        return tuple(t.name for t, g in zip(self._tensors, self._group_of, strict=True) if g < 0)

    def _rows(self, match: Match) -> list[int]:
        if callable(match):
            rows = [k for k, t in enumerate(self._tensors) if match(t)]
        else:
            patterns = [match] if isinstance(match, str) else list(match)
            rows = [
                k
                for k, t in enumerate(self._tensors)
                if any(fnmatch.fnmatchcase(t.name, p) for p in patterns)
            ]
        if not rows:
            raise ValueError(
                f"groups: got {match!r}, which matches no parameter, expected at least one"
            )
        return rows

    @staticmethod
    def _check(lr: float | None, weight_decay: float | None) -> None:
        check("lr", lr or 0.0)
        check("weight_decay", weight_decay or 0.0)

    def _write(self, name: str, value: float, slot: int) -> None:
        row = self._names.index(name)
        self._arena.write(
            self._table + 4 * (GROUP_FLOATS * row + slot), np.array([value], np.float32)
        )

    def _upload(self) -> None:
        offset = self._arena.tensor(GROUP_OF).offset
        self._arena.write(offset, self._group_of)

"""Groups: the settings of every tensor, which of them are frozen, and which rest this step.

Every tensor belongs to a group.  A group is one row of settings in the arena: a multiplier of
``scalars.lr`` and of ``scalars.weight_decay``, and any other hyper-parameter of the optimizer where
the group has its own; so changing one is one upload of a few bytes, never a new binding, and groups
that differ run in the same launch.  Two groups exist from the start: "decay" (weights) and
"no_decay" (biases and norms: weight decay times 0, no trust ratio).

Whether a tensor moves this step is its live word.  A tensor that is frozen, or rests because it has
no gradient of this step, keeps its bytes and its step, and its old gradient counts nowhere: not in
checks, norms, clips, ratios or reports.  Its average moves on, to converge to what it averages.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from plan import MemoryPlan, PlanError
from plan.scratch import FIXED, GROUP_FLOATS, RESTS, TRAINED
from rangeops.arena.match import Match, matching
from rangeops.arena.settings import check_read, spelled, stored
from rangeops.arena.tables import (
    FOLLOWS,
    GROUP_OF,
    GROUPS,
    LIVE,
    STEPS,
    UNDECAYED,
    group_of,
    group_row,
)

OWN = {"decay": FOLLOWS, "no_decay": UNDECAYED}
"""The groups of every plan, in the order of their rows, with their settings."""


class Groups:
    """The parameter groups of a planned arena: ``arena.groups``, one object for each arena.

    >>> from plan.models import mlp, plan_model
    >>> from rangeops import Arena
    >>> arena = Arena(plan_model(mlp((4, 3))), device="cpu")
    >>> arena.groups.add("head", "layers.0.weight", lr=10.0, beta2=0.95)
    >>> arena.groups.freeze("*.bias")
    >>> arena.groups.of("layers.0.weight"), arena.groups.frozen
    ('head', ('layers.0.bias',))
    >>> arena.groups.settings("head")
    {'lr': 10.0, 'beta2': 0.95}

    Settings of a group, by keyword:

    lr, weight_decay: what multiplies ``scalars.lr`` and ``scalars.weight_decay``; default 1.
    adapt: False keeps LARS's and LAMB's ratio of these tensors at 1.
    trust_coefficient, beta1, beta2, eps, momentum, dampening: a value of the group's own in place
        of the arena's scalar; None follows the scalar again.
    nesterov, maximize, bias_correction, grad_averaging: the group's own choice in place of the
        step's option; None follows the option again.
    decay: "l2" or "decoupled", in place of the optimizer's kind; None follows that again.
    """

    def __init__(self, arena: Any, plan: MemoryPlan) -> None:
        self._arena, self._plan = arena, plan
        self._tensors = plan.weights()
        if not self._tensors:
            raise PlanError(
                "arena.groups: the plan has no parameters, expected some; announce them with "
                "plan.parameter(...)"
            )
        self._rows = {tensor.name: k for k, tensor in enumerate(self._tensors)}
        self._fixed = np.array([plan.is_frozen(t.name) for t in self._tensors])
        self.version = 0
        self.reset(upload=False)

    def __repr__(self) -> str:
        """Return how many tensors each group has, and how many are frozen."""
        counts = [f"{name} {(self._group_of == row).sum()}" for name, row in self._names.items()]
        frozen = len(self.frozen)
        return f"<Groups on {self._arena.device}: {', '.join(counts)} tensors, {frozen} frozen>"

    def __reduce__(self) -> Any:
        """Refuse to be copied or pickled without the arena."""
        raise TypeError("Groups: got a copy or a pickle, expected neither; copy the arena instead")

    def reset(self, upload: bool = True) -> None:
        """Begin anew: the plan's two groups, nothing frozen by hand, nothing at rest."""
        self._names = {name: row for row, name in enumerate(OWN)}
        self._settings = {name: dict(settings) for name, settings in OWN.items()}
        self._group_of = group_of(self._tensors)
        self._frozen = self._fixed.copy()
        self._resting = np.zeros(len(self._tensors), np.bool_)
        if upload:
            self._upload_all()

    def add(self, name: str, match: Match, **settings: Any) -> None:
        """Make a group of the matching tensors.

        Groups but the plan's two go with their last tensor.

        Raises:
            ValueError: name taken, no tensor matches, a setting that cannot be, or one that the
                plan's optimizer would not act by.
            TypeError: an unknown setting.

        """
        rows = matching(match, self._tensors, self._rows)
        if name in self._names:
            raise ValueError(f"groups: got {name!r}, which exists, expected a new name; use set()")
        check_read(self._plan.config.kind.label, settings)
        own = FOLLOWS | stored(settings)
        self._group_of[rows] = -1
        self._drop_empty()
        taken = set(self._names.values())
        row = next(row for row in itertools.count() if row not in taken)
        self._group_of[rows] = row
        self._names[name], self._settings[name] = row, own
        self._upload_row(name)
        self._upload_tensors()

    def set(self, name: str, **settings: Any) -> None:
        """Change settings of a group, in order of the current stream, from the next step on.

        Raises:
            ValueError, TypeError: no such group or setting, or a value that cannot be; nothing is
                written then.

        """
        self._check_name(name)
        check_read(self._plan.config.kind.label, settings)
        changed = stored(settings)
        self._settings[name].update(changed)
        self._upload_row(name)

    def settings(self, name: str) -> dict[str, Any]:
        """Return what a group sets for itself, as last given."""
        self._check_name(name)
        return spelled(self._settings[name], FOLLOWS)

    def freeze(self, match: Match) -> None:
        """Train the matching tensors no more from the next step on; only their average moves."""
        self._frozen[matching(match, self._tensors, self._rows)] = True
        self._upload_tensors()

    def unfreeze(self, match: Match) -> None:
        """Train the matching tensors again.

        Raises:
            ValueError: a tensor that was planned as frozen has no gradient and no moments.

        """
        rows = matching(match, self._tensors, self._rows)
        fixed = [self._tensors[row].name for row in rows if self._fixed[row]]
        if fixed and not (match == "*"):
            raise ValueError(
                f"groups: got {fixed[0]}, which was planned with trainable=False and has no "
                "gradient, expected a trained tensor; plan it as trainable"
            )
        self._frozen[rows] = self._fixed[rows]
        self._upload_tensors()

    def rest(self, names: Iterable[str]) -> None:
        """Let exactly these tensors rest from the next step on: they have no gradient of it."""
        resting = np.zeros(len(self._tensors), np.bool_)
        resting[[self._row(name) for name in names]] = True
        if (resting != self._resting).any():
            self._resting = resting
            self._upload_tensors()

    def of(self, tensor: str) -> str:
        """Return the name of a tensor's group."""
        row = int(self._group_of[self._row(tensor)])
        return next(name for name, its in self._names.items() if its == row)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups, the plan's own first, then as they were added."""
        return tuple(self._names)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the frozen tensors, those that were planned so included."""
        return self._named(self._frozen)

    @property
    def resting(self) -> tuple[str, ...]:
        """Names of the tensors that have no gradient of this step."""
        return self._named(self._resting)

    @property
    def words(self) -> np.ndarray[Any, Any]:
        """The live word of every tensor, int32: see ``plan.scratch``."""
        still = self._frozen | self._resting
        return np.where(self._fixed, FIXED, np.where(still, RESTS, TRAINED)).astype(np.int32)

    def fingerprint(self) -> bytes:
        """Return bytes that are equal where groups, frozen and resting tensors are."""
        table = np.tile(group_row(FOLLOWS), (1 + max(self._names.values()), 1))
        for name, row in self._names.items():
            table[row] = group_row(self._settings[name])
        return table[self._group_of].tobytes() + self.words.tobytes()

    def steps(self) -> dict[str, int]:
        """Return the steps that moved each tensor, by name; waits for the device."""
        steps = self._arena.download(STEPS).tolist()
        return dict(zip(self._rows, steps, strict=True))

    def set_steps(self, steps: Mapping[str, int]) -> None:
        """Write the steps of some tensors, by name, in order of the current stream."""
        table = self._arena.download(STEPS)
        for name, step in steps.items():
            if not 0 <= operator.index(step) < 2**31:
                raise ValueError(f"groups: step of {name} got {step}, expected 0 .. 2**31-1")
            table[self._row(name)] = step
        self._arena.write(self._arena.tensor(STEPS).offset, table)

    # As plain data, for checkpoints and copies

    def state(self) -> dict[str, Any]:
        """Return groups, members and frozen tensors as plain data, by name."""
        members: dict[str, list[str]] = {name: [] for name in self._names}
        name_of = {row: name for name, row in self._names.items()}
        for tensor, row in zip(self._tensors, self._group_of.tolist(), strict=True):
            members[name_of[row]].append(tensor.name)
        groups = {n: {"settings": self.settings(n), "of": members[n]} for n in self._names}
        return {"groups": groups, "frozen": list(self.frozen)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` gave; names that are not here are left out.

        Raises:
            ValueError, TypeError: a setting that cannot be; nothing is written then.

        """
        own = {name: FOLLOWS | stored(g["settings"]) for name, g in state["groups"].items()}
        self._names = {name: row for row, name in enumerate(OWN)}
        self._settings = {name: dict(settings) for name, settings in OWN.items()}
        self._group_of = group_of(self._tensors)
        for name, group in state["groups"].items():
            rows = [self._rows[tensor] for tensor in group["of"] if tensor in self._rows]
            if name not in self._names and not rows:
                continue
            self._settings[name] = own[name]
            self._group_of[rows] = self._names.setdefault(name, len(self._names))
        self._frozen = self._fixed.copy()
        self._frozen[[self._rows[n] for n in state["frozen"] if n in self._rows]] = True
        self._upload_all()

    def _named(self, mask: np.ndarray[Any, Any]) -> tuple[str, ...]:
        return tuple(t.name for t, on in zip(self._tensors, mask, strict=True) if on)

    def _row(self, tensor: str) -> int:
        if tensor not in self._rows:
            raise ValueError(f"groups: got {tensor!r}, expected the name of a parameter")
        return self._rows[tensor]

    def _check_name(self, name: str) -> None:
        if name not in self._names:
            raise ValueError(f"groups: got {name!r}, expected one of {', '.join(self._names)}")

    def _drop_empty(self) -> None:
        used = set(self._group_of.tolist())
        gone = [n for n, row in self._names.items() if n not in OWN and row not in used]
        for name in gone:
            del self._names[name], self._settings[name]

    def _upload_row(self, name: str) -> None:
        self.version += 1
        table = self._arena.tensor(GROUPS).offset
        row = group_row(self._settings[name])
        self._arena.write(table + 4 * GROUP_FLOATS * self._names[name], row)

    def _upload_all(self) -> None:
        table = np.tile(group_row(FOLLOWS), (len(self._names), 1))
        for name, row in self._names.items():
            table[row] = group_row(self._settings[name])
        self._arena.write(self._arena.tensor(GROUPS).offset, table)
        self._upload_tensors()

    def _upload_tensors(self) -> None:
        self.version += 1
        self._arena.write(self._arena.tensor(GROUP_OF).offset, self._group_of)
        self._arena.write(self._arena.tensor(LIVE).offset, self.words)

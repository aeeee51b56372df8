"""ParamGroups: torch's param groups as groups of the arena.

Every setting goes by group, so groups may differ in all of them.  A param group is up to two groups
of the arena: one of weights, and one of biases and norms, whose ratio LARS and LAMB keep at 1.

torch's groups are plain dicts and lists that anybody may edit.  They are compared with what was
sent, in C loops, before every step; what changed is sent again, parameters that were taken out
rest, new ones move.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from plan import PlanError
from plan.series import BIAS_KINDS
from rangeops.torch.adopt import Adopted, adopter_of
from rangeops.torch.settings import Settings
from rangeops.torch.slot import Slot

_params = operator.itemgetter("params")

PLAIN = (float, int, bool, str, type(None))
"""Types of values that nobody can change in place."""

FEW = 8
"""Groups that are sent one by one; more of them are sent as one table."""


class ParamGroups:
    """The param groups of the optimizer ``name`` over an adopted module.

    Attributes:
        slots: the parameters in the order of the groups, as sent.
        without: the adopted parameters of no group, by name, as sent; they rest.
        missing: those without a gradient, as last told.

    """

    def __init__(
        self, adopted: Adopted, name: str, settings: tuple[str, ...], defaults: dict[str, Any]
    ) -> None:
        self._adopted, self._arena, self._name = adopted, adopted.arena, name
        self._rows = adopted.arena.groups
        kind = self._arena.planned(name).config.kind.label
        self._settings, self._defaults = Settings(kind, name, settings), defaults
        self._by_id = {id(slot.param): slot for slot in adopted.slots}
        self.slots: list[Slot] = []
        self.without = frozenset[str]()
        self.missing = frozenset[str]()
        self._parts: list[tuple[str, int, bool, list[str]]] = []
        self._wanted: list[dict[str, Any]] = []
        self._shared: dict[str, float] = {}
        self._version = -1
        self._note([])

    def slots_of(self, groups: list[dict[str, Any]]) -> list[Slot]:
        """Return the parameters in the order of the groups.

        Raises:
            PlanError: a parameter that is not adopted, or in another arena. ValueError: one twice.

        """
        params = list(itertools.chain.from_iterable(map(_params, groups)))
        if params and adopter_of(params) is not self._adopted:
            raise PlanError(
                f"{self._name}: got parameters of another adopted module, expected those of one; "
                "make an optimizer for each"
            )
        if len(set(map(id, params))) != len(params):
            raise ValueError(
                f"{self._name}: got a parameter twice in its param groups, expected it once; take "
                "it out of one"
            )
        return [self._by_id[id(p)] for p in params]

    def check(self, groups: list[dict[str, Any]]) -> None:
        """Refuse groups that ``make`` would refuse, and send nothing.

        Raises:
            ValueError: a setting that cannot be or has no effect, or a parameter twice.
            PlanError: a parameter that is not adopted, or in another arena.

        """
        self.slots_of(groups)
        for index, group in enumerate(groups):
            self._settings.of(index, group)
        self._arena.scalars.check(**self._settings.shared_by(groups))

    def make(self, groups: list[dict[str, Any]]) -> None:
        """Make the arena's groups anew of torch's, whose missing settings become the defaults.

        Raises:
            ValueError, PlanError: see ``check``; nothing is sent then.

        """
        for group in groups:
            for name, value in self._defaults.items():
                group.setdefault(name, value)
        self.check(groups)
        before, self.slots = self._momenta(), self.slots_of(groups)
        self.without = self.outside(groups)
        self._parts = list(_parts(self.slots, map(len, map(_params, groups))))
        self._version = -1
        self._send([self._settings.of(*pair) for pair in enumerate(groups)], groups, before)

    def sync(self, groups: list[dict[str, Any]]) -> None:
        """Send what changed in torch's groups, or in the arena's past this object.

        Raises:
            ValueError, PlanError: see ``check``; nothing is sent then.
            RuntimeError: something changed while the stream is being captured.

        """
        known = self._same_members(groups)
        if known and self._rows.version == self._version and _equal(groups, self._noted):
            return
        if not known:
            self.make(groups)
            return
        rows = enumerate(zip(groups, self._noted, self._wanted, strict=True))
        self._send([self._now(k, *row) for k, row in rows], groups, self._momenta())

    def outside(self, groups: list[dict[str, Any]]) -> frozenset[str]:
        """Return the adopted parameters that are in no group, as the groups are now."""
        if self._same_members(groups):
            return self.without
        inside = set(map(id, itertools.chain.from_iterable(map(_params, groups))))
        return frozenset(s.name for s in self._adopted.slots if id(s.param) not in inside)

    def rest(self, missing: frozenset[str]) -> None:
        """Let parameters without a gradient rest from the next step on, and those of no group.

        Raises:
            RuntimeError: they are others than before, while the stream is being captured.

        """
        if missing != self.missing or self._rows.version != self._version:
            if self._arena.capturing():
                raise RuntimeError(
                    f"{self._name}: parameters without a gradient changed during a capture, "
                    "expected the same as in the step before; run a warm-up step first"
                )
            self._rows.rest(missing | self.without)
            self._version = self._rows.version
        self.missing = missing

    def freeze(self, names: list[str]) -> None:
        """Freeze exactly these of the arena's parameters, from the next step on."""
        self._rows.unfreeze("*")
        if names:
            self._rows.freeze(names)

    # What torch's groups are now, and what was noted of them

    def _same_members(self, groups: list[dict[str, Any]]) -> bool:
        """Return whether the groups have the parameters that they had."""
        held = itertools.chain.from_iterable(map(_params, groups))
        same = list(map(len, map(_params, groups))) == self._sizes
        return same and all(map(operator.is_, held, self._held))

    def _now(self, index: int, group: Any, noted: Any, sent: dict[str, Any]) -> dict[str, Any]:
        """Return a group's settings; what a scheduler moves, lr alone, is looked at alone."""
        if _equal(group, noted):
            return sent
        if _equal(group | {"lr": noted["lr"]}, noted):
            return sent | self._settings.lr(index, group)
        return self._settings.of(index, group)

    def _note(self, groups: list[dict[str, Any]]) -> None:
        """Note what the groups are; a value that can be changed in place is copied."""
        names = self._settings.names
        self._held = list(itertools.chain.from_iterable(map(_params, groups)))
        self._sizes = list(map(len, map(_params, groups)))
        self._noted = [
            group | {n: _copied(group[n]) for n in names if type(group.get(n)) not in PLAIN}
            for group in groups
        ]

    def _momenta(self) -> dict[str, float]:
        """Return the momentum of every parameter that has one, as last sent."""
        if not any("momentum" in own for own in self._wanted):
            return {}
        moving = [own.get("momentum", 0.0) for own in self._wanted]
        return {name: moving[index] for _, index, _, names in self._parts for name in names}

    # Sending

    def _send(
        self, wanted: list[dict[str, Any]], groups: list[dict[str, Any]], before: dict[str, float]
    ) -> None:
        """Send settings that are not what was sent; all of them, if others wrote the arena's."""
        own, shared = self._rows, self._settings.shared_by(groups)
        self._arena.scalars.check(**shared)
        olds = self._wanted if own.version == self._version else [{} for _ in wanted]
        changed = [k for k, pair in enumerate(zip(wanted, olds, strict=True)) if pair[0] != pair[1]]
        if shared != self._shared:
            self._arena.scalars.set(**shared)
        if len(changed) > FEW or any(wanted[k].keys() != olds[k].keys() for k in changed):
            own.restore({"groups": dict(self._table(wanted)), "frozen": list(own.frozen)})
            own.rest(self.missing | self.without)
        else:
            for label, index, _, _ in self._parts:
                if index in changed:
                    own.set(label, **wanted[index])
        self._wanted, self._shared = wanted, shared
        self._start_momenta(before)
        self._version = own.version
        self._note(groups)

    def _table(self, wanted: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the arena's groups by name, as ``Groups.restore`` takes them."""
        for label, index, flat, names in self._parts:
            fixed = {"adapt": False} if flat else {}
            yield label, {"settings": fixed | wanted[index], "of": names}

    def _start_momenta(self, before: dict[str, float]) -> None:
        """Let parameters whose momentum was 0 begin it as torch does, with their next gradient."""
        begun = [n for n, now in self._momenta().items() if now and before.get(n) == 0.0]
        if begun:
            self._rows.set_steps(dict.fromkeys(begun, 0))


def _parts(slots: list[Slot], sizes: Iterable[int]) -> Iterator[tuple[str, int, bool, list[str]]]:
    """Yield the arena's groups: name, index of the param group, whether flat, parameters.

    Flat are biases and norms, which LARS and LAMB leave at ratio 1.
    """
    every = iter(slots)
    for index, size in enumerate(sizes):
        own = list(itertools.islice(every, size))
        for flat in (False, True):
            names = [s.name for s in own if (s.planned.kind in BIAS_KINDS) == flat]
            if names:
                yield f"{index}{'.flat' if flat else ''}", index, flat, names


def _equal(one: Any, other: Any) -> bool:
    """Return whether two are equal; what cannot be compared is not."""
    try:
        return bool(one == other)
    except (RuntimeError, ValueError, TypeError):
        return False


def _copied(value: Any) -> Any:
    """Return a copy of what can be changed in place."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        parts = [part if type(part) in PLAIN else _copied(part) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return copy.copy(value)

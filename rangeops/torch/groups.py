"""ParamGroups: torch's param groups as rows of multipliers in the arena.

``lr`` and ``weight_decay`` go by group, so every group has two rows: one for weights, one for
biases and norms, whose ratio LARS and LAMB keep at 1.  All other hyper-parameters are scalars of
the arena, which have one value for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from plan.series import BIAS_KINDS
from rangeops.optim.step import OptimizerStep
from rangeops.torch.adopt import Adopted, Slot


class ParamGroups:
    """The param groups of the optimizer ``name``, whose hyper-parameters ``shared`` are scalars.

    Attributes:
        slots: the parameters in the order of the groups.

    """

    def __init__(
        self, step: OptimizerStep, adopted: Adopted, name: str, shared: tuple[str, ...]
    ) -> None:
        self._groups, self._scalars = step.groups, step.arena.scalars
        self._adopted, self._name, self._shared_names = adopted, name, shared
        self.slots: list[Slot] = []
        self._made = 0
        self._without = frozenset[str]()
        self._sent: tuple[list[tuple[float, float]], list[dict[str, float]]] = ([], [])

    def make(self, groups: list[dict[str, Any]]) -> None:
        """Make the rows of groups that have none yet."""
        by_id = {id(slot.param): slot for slot in self._adopted.slots}
        in_groups = [[by_id[id(p)] for p in group["params"]] for group in groups]
        self.slots = [slot for slots in in_groups for slot in slots]
        names = {slot.name for slot in self.slots}
        self._without = frozenset(s.name for s in by_id.values() if s.name not in names)
        for index, slots in list(enumerate(in_groups))[self._made :]:
            for flat in (False, True):
                names = {s.name for s in slots if _is_flat(s) == flat}
                if names:
                    label = f"{index}{'.flat' if flat else ''}"
                    self._groups.add(label, _named(names), lr=0.0, adapt=not flat)
        self._made = len(groups)

    def freeze(self, names: Set[str]) -> None:
        """Leave these parameters alone from the next step on, and those of no group."""
        held = names | self._without
        self._groups.unfreeze("*")
        if held:
            self._groups.freeze(_named(held))

    def sync(self, groups: list[dict[str, Any]], anew: bool = False) -> None:
        """Upload what changed since the last call, or everything ``anew``.

        Raises:
            ValueError: groups that differ where one value serves the whole model.

        """
        wanted = [(float(g["lr"]), float(g.get("weight_decay", 0.0))) for g in groups]
        shared = [self._shared(group) for group in groups]
        if not anew and (wanted, shared) == self._sent:
            return
        if any(other != shared[0] for other in shared):
            raise ValueError(
                f"{self._name}: param groups differ in {', '.join(self._shared_names)}, "
                "expected one value for the model; only lr and weight_decay go by group"
            )
        before, shared_before = ([], []) if anew else self._sent
        if shared[:1] != shared_before[:1]:
            self._scalars.set(**shared[0])
        for index, (lr, decay) in enumerate(wanted):
            if before[index : index + 1] != [(lr, decay)]:
                for name in (str(index), f"{index}.flat"):
                    if name in self._groups.names:
                        self._groups.set(name, lr=lr, weight_decay=decay)
        self._sent = wanted, shared

    def _shared(self, group: dict[str, Any]) -> dict[str, float]:
        """Return the scalars that one group sets for all."""
        scalars = {name: group[name] for name in self._shared_names if name != "betas"}
        if "betas" in self._shared_names:
            scalars["beta1"], scalars["beta2"] = group["betas"]
        return scalars


def _named(names: Set[str]) -> Callable[[Any], bool]:
    """Return the predicate of tensors with one of these names."""
    return lambda tensor: tensor.name in names


def _is_flat(slot: Slot) -> bool:
    """Whether a parameter is a bias or a norm's, which LARS and LAMB leave at ratio 1."""
    return slot.planned.kind in BIAS_KINDS

"""Stages: the rules of an elementwise op by name, and what follows from them for a variant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plan.scalars import FP32_SCALARS, fp32_index, int32_index
from plan.scratch import BLOCK, BLOCK_FLOATS, GRANULE, ROW, ROW_FLOATS, row_index
from rangeops.kernels.spec import Operand, Stage


@dataclass(frozen=True)
class Elementwise:
    """What ``elementwise`` was given; see there."""

    name: str
    operands: tuple[Operand, ...]
    stages: tuple[Stage, ...]
    gated: bool = False
    scaled: str = ""
    clears: str = ""
    scalars: tuple[str, ...] = ()
    per_thread: int = 4
    reads: tuple[str, ...] = ()

    def running(self, flags: Mapping[str, Any], resting: bool = False) -> list[Stage]:
        """Return the stages of a variant, or those of them that run for resting tensors."""
        return [s for s in self.stages if s.runs(flags) and (s.resting or not resting)]

    def active(self, flags: Mapping[str, Any]) -> dict[str, Operand]:
        """Return the operands of a variant by name."""
        return {o.name: o for o in self.operands if not o.flag or flags.get(o.flag)}

    def half_of(self, name: str, flags: Mapping[str, Any]) -> Operand | None:
        """Return the half operand that stands for an FP32 one from ``half_start`` on."""
        return next((o for o in self.active(flags).values() if o.instead_of == name), None)

    @property
    def split(self) -> bool:
        """Whether some operand begins at ``half_start``."""
        return any(o.from_half_start for o in self.operands)

    def loaded(self, flags: Mapping[str, Any]) -> list[Operand]:
        """Return the operands whose elements are read before a stage gives them."""
        active, known, out = self.active(flags), set[str](), []
        # What a stage gives under a condition may have to be read all the same.
        steps = [(s.arguments, () if s.when else s.targets) for s in self.running(flags)]
        for arguments, targets in (*steps, (self.reads, ())):
            for name in arguments:
                if name in active and name not in known:
                    out.append(name)
                    known.add(name)
            known.update(targets)
        return [o for o in active.values() if o.name in out]

    def coefficients(self, stages: list[Stage], flags: Mapping[str, Any]) -> list[str]:
        """Return the names of stages' arguments that are neither operands nor temporaries."""
        known = {o.name for o in self.operands}.union(*(s.targets for s in self.stages))
        names = dict.fromkeys(
            n for s in stages for n in (*s.arguments, *filter(None, (s.when,))) if n not in known
        )
        for name in names:
            place(name, self.scalars)
        return list(names)

    def state(self) -> tuple[str, ...]:
        """Return the parts of the plan's state that the kernel takes."""
        texts = [place(n, self.scalars) for n in self.coefficients(list(self.stages), {})]
        scalars = ("s",) if any(t.startswith("s[") for t in texts) else ()
        if self.gated:
            return ("segments", "live", "c", "k", *scalars)
        if any("row" in t for t in texts):
            raise ValueError(
                f"{self.name}: a coefficient by tensor in an op that is not gated; gate it"
            )
        return scalars


def place(name: str, scalars: tuple[str, ...] = ()) -> str:
    """Return the expression that reads a coefficient: block, row, scalar, or one of the op's own.

    Raises:
        ValueError: no coefficient and no scalar is named so.

    """
    if name in scalars:
        return f"{name}_scalar[0]"
    if name in BLOCK:
        return f"c[{BLOCK.index(name)}]"
    if name in ROW:
        return f"c[row + {ROW.index(name)}]"
    if name in FP32_SCALARS:
        return f"s[{fp32_index(name)}]"
    raise ValueError(
        f"rule: argument {name!r} is no operand, temporary, coefficient or scalar; expected one of "
        f"{', '.join((*BLOCK, *ROW))}, a scalar of plan.scalars, or one in scalars={{...}}"
    )


TEXT_NAMES = frozenset((
    "i", "j", "k", "n", "c", "s", "z", "c0", "c1", "c2", "c3", "left", "raw", "zero", "tensor",
    "word", "row", "grad", "first", "count", "start", "stop", "scaled", "segments", "live", "shift",
    "half_start",
))  # fmt: skip
"""What generated texts name for themselves."""


def check_names(d: Elementwise) -> None:
    """Refuse a scalar of the op's own whose name its text gives to something else.

    Raises:
        ValueError: such a name; the rule would be given another value without a word.

    """
    lanes = {f"{operand.name}{lane}" for operand in d.operands for lane in ("", *range(8))}
    taken = [name for name in d.scalars if name in TEXT_NAMES | lanes]
    if taken:
        raise ValueError(
            f"{d.name}: a scalar is named {taken[0]}, expected a name that generated texts do not "
            "use; give it another one, and the rule's argument with it"
        )


def parameters(d: Elementwise) -> list[str]:
    """Return the names of a kernel's arguments as its text has them."""
    own = [f"{name}_scalar" for name in d.scalars]
    return [*(o.name for o in d.operands), *d.state(), *own, *integers(d)]


def integers(d: Elementwise) -> tuple[str, ...]:
    """Return the names of the int64 arguments."""
    return (*(("half_start",) if d.split else ()), *(("shift",) if d.gated else ()), "n")


def constants() -> dict[str, Any]:
    """Return the constants by which generated text names places."""
    return {
        "GRANULE": GRANULE,
        "BLOCK_FLOATS": BLOCK_FLOATS,
        "ROW_FLOATS": ROW_FLOATS,
        "GRAD": row_index("grad"),
        "SKIP_STEP": int32_index("skip_step"),
        "FOUND_INF": int32_index("found_inf"),
    }


def scope(
    x: Any, rules: Mapping[str, Callable[..., Any]], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a generated text names: the words of vocabulary ``x`` and the compiled rules."""
    words = {word: getattr(x, word) for word in x.WORDS}
    words["widen"], words["narrow"] = x.half(flags.get("half"))
    return words | {name: x.device(rule) for name, rule in rules.items()}


RUNS = "(k[SKIP_STEP] | k[FOUND_INF]) == 0"
"""Whether anything moves this step: nothing was found that is not finite."""

MOVES = f"({RUNS}) & (word > 0)"
"""Whether the tensor is trained this step; ``word`` is its live word."""

RESTS = f"({RUNS}) & (word == 0)"
"""Whether of the tensor only what runs for resting ones moves."""

CLEARS = "word >= 0"
"""Whether the tensor has a gradient to clear; one that was planned as frozen has none."""


def tensor_lines(granule: str) -> tuple[str, ...]:
    """Return the lines that find a granule's tensor: its live word and its row."""
    return (
        f"tensor = int64(segments[{granule}])",
        "word = live[tensor]",
        "row = int64(BLOCK_FLOATS) + int64(ROW_FLOATS) * tensor",
    )


def last_writers(stages: Iterable[Stage]) -> dict[str, Stage]:
    """Return the stage behind which each target is stored: the last one that gives it."""
    return {name: stage for stage in stages for name in stage.targets}


def call(stage: Stage, values: Callable[[str], str]) -> str:
    """Return the assignment that runs a stage, ``values`` naming each argument and target."""
    targets = ", ".join(map(values, stage.targets))
    return f"{targets} = {stage.rule.__name__}({', '.join(map(values, stage.arguments))})"


def rules_of(name: str, stages: Iterable[Stage]) -> dict[str, Callable[..., Any]]:
    """Return the rules by the names under which a text calls them.

    Raises:
        ValueError: two rules of one name, or a rule without one (a lambda).

    """
    rules: dict[str, Callable[..., Any]] = {}
    for stage in stages:
        if not stage.rule.__name__.isidentifier():
            raise ValueError(
                f"{name}: a rule is named {stage.rule.__name__}, expected a name that a text can "
                "call; write it as a function with def"
            )
        if rules.setdefault(stage.rule.__name__, stage.rule) is not stage.rule:
            raise ValueError(
                f"{name}: two rules are named {stage.rule.__name__}, expected a name for each; "
                "rename one of the functions"
            )
    return rules

"""fields: every scalar of a plan as an attribute, typed by ``fields.pyi``.

A type checker reads the ``.pyi``, which this file makes of the plan's table of scalars:

    python -c "from rangeops.arena.fields import stub; print(stub(), end='')" > FILE.pyi
"""

from __future__ import annotations

from plan.scalars import FP32_SCALARS, INT32_SCALARS

COMPLEMENTS = {
    "beta1": "one_minus_beta1",
    "beta2": "one_minus_beta2",
    "dampening": "one_minus_dampening",
    "ema_decay": "one_minus_ema_decay",
}
"""Names by which the host gives what the device keeps as one minus it."""

NAMES = frozenset(FP32_SCALARS) | frozenset(INT32_SCALARS) | frozenset(COMPLEMENTS)
"""Every name of a scalar."""


class ScalarFields:
    """Attributes that are read by ``get`` and written by ``set``."""

    def __getattr__(self, name: str) -> float:
        """Return the value of scalar ``name``."""
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.get(name)
        except KeyError:
            raise AttributeError(f"scalars: no scalar is named {name!r}") from None

    def __setattr__(self, name: str, value: float) -> None:
        """Write scalar ``name`` in stream order."""
        self.set(**{name: value})

    def __dir__(self) -> list[str]:
        """Return the scalars too."""
        return [*super().__dir__(), *NAMES]


def stub() -> str:
    """Return the text of ``fields.pyi``."""
    types = dict.fromkeys((*FP32_SCALARS, *COMPLEMENTS), "float")
    types |= dict.fromkeys(INT32_SCALARS, "int")
    lines = [
        '"""Types of the scalars; made by ``rangeops.arena.fields.stub``, not by hand."""',
        "",
        "COMPLEMENTS: dict[str, str]",
        "NAMES: frozenset[str]",
        "",
        "class ScalarFields:",
        *(f"    {name}: {kind}" for name, kind in types.items()),
        "",
        "def stub() -> str: ...",
        "",
    ]
    return "\n".join(lines)

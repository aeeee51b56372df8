"""RangeOp: a declared op that can be bound and called, and the registry of all ops.

The registry drives the tests, the bench rows and the README's table: an op that is declared here
is compared with its reference, guarded, built for every GPU, documented and timed with no further
line.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from rangeops.kernels.spec import OpSpec
from rangeops.launch import launch, reference


@dataclass(frozen=True, eq=False, repr=False)
class RangeOp(OpSpec):
    """One range operation: what it reads and writes, and its kernel.

    ``op.bind(arena, ...)`` checks everything once and returns a launch; ``op(arena, ...)`` binds,
    keeps the binding, and launches.  ``help(ops.adamw)`` says what an op takes; the arguments are
    of five kinds:

    ranges: bytes of the arena, in order or by name: ``Range(base_offset, size)`` in bytes, a
        region, two regions (first and last), a tensor or its name.  By default they are the plan's
        own, of which ``part`` takes "all", "bias" or "weight".
    flags: choices at compile time.  Every combination of flags is a kernel of its own, so what is
        off costs nothing; the first use of a combination compiles it.
    options: choices at run time, each a bit of one integer.  On a planned arena ``begin_step``
        takes them and writes coefficients by them, which the update then reads; a launch without a
        plan takes them itself.  ``decay="l2"`` or ``"decoupled"`` is the option ``decoupled``.
    hyper-parameters: scalars in the device's memory.  A planned arena has one set of them,
        ``arena.scalars``; a launch that is given any has a set of its own, ``launch.set(...)``
        changes it, and ``state=other.state`` shares that of another launch.
    half, step: "fp16" or "bf16", the format of half ranges where the plan has none; the step that
        the given hyper-parameters are for, counted from 1.
    """

    def __post_init__(self) -> None:
        """Write the reference: name, signature and documentation."""
        module = _declared_in()
        object.__setattr__(self, "__module__", module)
        object.__setattr__(self, "__name__", self.name)
        object.__setattr__(self, "__signature__", reference.call_signature_of(self))
        object.__setattr__(self, "__doc__", reference.documentation(self, module))

    def __repr__(self) -> str:
        """Return name, ranges and formula in one line."""
        return reference.line(self)

    def bind(self, arena: Any, *spans: Any, **arguments: Any) -> launch.BoundLaunch:
        """Check the arguments, compile, and return the launch.

        Args:
            arena: an Arena, or a CuPy array, torch tensor or NumPy array to work on raw.
            spans: ranges of the operands in order; by keyword they may be given by name.
            arguments: ranges, flags, hyper-parameters and options by name.

        Raises:
            ValueError, TypeError, PlanError: see ``rangeops.launch``; nothing has run then.

        """
        return launch.bind(self, arena, spans, arguments)

    def __call__(self, arena: Any, *spans: Any, **arguments: Any) -> None:
        """Bind (the first time), then launch on ``stream``."""
        launch.run(self, arena, spans, arguments, arguments.pop("stream", None))


REGISTRY: dict[str, RangeOp] = {}
"""Every declared op by name."""


def range_op(name: str, **fields: Any) -> RangeOp:
    """Declare an op and enter it in the registry.

    Raises:
        ValueError: the name is taken.

    """
    if name in REGISTRY:
        raise ValueError(f"range_op: got name {name!r} twice, expected a new one")
    op = RangeOp(name, **fields)
    REGISTRY[name] = op
    return op


def _declared_in() -> str:
    """Return the module whose text declares the op that is being made, through any helpers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))

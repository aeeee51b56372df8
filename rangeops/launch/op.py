"""RangeOp: a declared op that can be bound and called, and the registry of all ops.

The registry drives the tests, the bench rows and the README's table: an op that is declared here
is compared with its reference, guarded, built for every GPU and timed with no further line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rangeops.kernels.spec import OpSpec
from rangeops.launch import launch


@dataclass(frozen=True, eq=False)
class RangeOp(OpSpec):
    """One range operation: what it reads and writes, and its kernel.

    ``op.bind(arena, ...)`` checks everything once and returns a launch; ``op(arena, ...)`` binds,
    keeps the binding, and launches.
    """

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

    def __call__(self, arena: Any, *spans: Any, stream: Any = None, **arguments: Any) -> None:
        """Bind (the first time), then launch on ``stream``."""
        launch.run(self, arena, spans, arguments, stream)


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

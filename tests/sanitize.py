"""Every kernel once, for ``compute-sanitizer --tool memcheck python -m tests.sanitize``.

Runs all variants of all ops on small plans for every optimizer, and all ops on raw ranges of
awkward sizes, each against its reference; the exit status is the number of differences.
"""

from __future__ import annotations

import sys

import numpy as np

from plan import Range
from plan.models import ParameterSpec
from rangeops import REGISTRY
from rangeops.verify import check, verify_every_op
from tests.helpers import SHAPES, raw_arena
from tests.ops.test_every_op import on_ranges


def main() -> int:
    """Run everything; print how many launches there were and how many differed."""
    verdicts = []
    specs = [ParameterSpec(*shape) for shape in SHAPES]
    for half in ("fp16", "bf16"):
        verdicts += verify_every_op("cuda", specs, half)
    for op in REGISTRY.values():
        operands = [o for o in op.operands if not o.flag]
        for n in (1, 127, 129, 1021) if on_ranges(op) else ():
            size = {"u1": 1, "half": 2, "f4": 4}
            spans = {o.name: Range(8192 * k, n * size[o.element]) for k, o in enumerate(operands)}
            # The last range ends with the allocation, so that a read past it is seen.
            last = operands[-1]
            total = 8192 * (len(operands) - 1) + n * size[last.element]
            arena = raw_arena(total, "cuda")
            arena.write(0, np.random.default_rng(n).integers(0, 60, total, np.uint8))
            hyper = {"lr": 0.1} if "lr" in op.hyper else {}
            verdicts.append(check(op.bind(arena, **spans, **hyper)))
    wrong = [v for v in verdicts if v.difference]
    print(f"{len(verdicts)} launches, {len(wrong)} differ from their references")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())

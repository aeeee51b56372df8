"""shells: kernels and loops of ops on scalars (once) and on rows of tensors (per tensor).

The op gives one body for a vocabulary; the shell calls it from thread 0, or from a thread a tensor,
and from the CPU's loop.  A body takes the state's pointers and the integers by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plan.scalars import int32_index
from rangeops.kernels.source import function_of
from rangeops.kernels.spec import Kernel, arguments_of

Body = Callable[..., Any]
"""``body(x, **flags)`` returns a device function for vocabulary ``x``."""


def _function(name: str, text: str, x: Any, **functions: Any) -> Any:
    words = {word: getattr(x, word) for word in x.WORDS}
    return function_of(name, text, {"TICKET": int32_index("ticket")}, words | functions, {})


def once(name: str, state: tuple[str, ...], body: Body, reference: Callable[..., Any]) -> Kernel:
    """Return the kernel of an op on scalars: ``body(*state)``, run by one thread."""
    arguments = ", ".join(state)

    def gpu(x: Any, **flags: Any) -> Any:
        text = f"def {name}({arguments}):\n    if thread() == 0:\n        body({arguments})\n"
        return _function(name, text, x, body=body(x, **flags))

    def cpu(x: Any, **flags: Any) -> Any:
        text = f"def {name}({arguments}, start, stop):\n    body({arguments})\n"
        return _function(name, text, x, body=body(x, **flags))

    return Kernel(
        name, arguments_of((), *state), (), gpu, cpu, reference, per_thread=1, count="one"
    )


def per_tensor(
    name: str,
    state: tuple[str, ...],
    integers: tuple[str, ...],
    row: Body,
    reference: Callable[..., Any],
    own: Body | None = None,
    prepare: Body | None = None,
    finish: Body | None = None,
) -> Kernel:
    """Return the kernel of an op with a row a tensor: ``row(i, *state, *integers)`` for each.

    ``own(i, *state, *integers)`` loads what is the row's own, ahead of all else; ``prepare(*state,
    *integers)`` gives what all rows share.  ``row`` takes both, then the rest; ``finish`` the
    second.
    ``finish(shared, *state, *integers)`` runs once, when every row is done: on the GPU in the last
    block to end, which the scalar "ticket" tells.
    """
    names = ", ".join((*state, *(f"{name}_count" if name in state else name for name in integers)))
    given = names if prepare is None else f"shared, {names}"
    row_given = given if own is None else f"own(i, {names}), {given}"
    early = [] if own is None else [f"    mine = own(min(i, tensors - 1), {names})"]
    shared = [] if prepare is None else [f"    shared = prepare({names})"]
    tail = [
        "    syncthreads()",
        "    lane, _, blocks = block_index()",
        "    if lane == 0 and atomic_add(k, int64(TICKET), int32(1)) == blocks - 1:",
        "        k[TICKET] = int32(0)",
        f"        finish({given})",
    ]

    def build(x: Any, lines: list[str], last: list[str], flags: dict[str, Any]) -> Any:
        functions = {"row": row(x, **flags)}
        if own is not None:
            functions["own"] = own(x, **flags)
        if prepare is not None:
            functions["prepare"] = prepare(x, **flags)
        if finish is not None:
            functions["finish"] = finish(x, **flags)
            lines = [*lines, *last]
        return _function(name, "\n".join(lines) + "\n", x, **functions)

    def gpu(x: Any, **flags: Any) -> Any:
        lines = [
            f"def {name}({names}):",
            "    i = thread()",
            *early,
            *shared,
            "    if i < tensors:",
            f"        row(i, {given if own is None else f'mine, {given}'})",
        ]
        return build(x, lines, tail, flags)

    def cpu(x: Any, **flags: Any) -> Any:
        lines = [
            f"def {name}({names}, start, stop):",
            *shared,
            "    for i in range(start, stop):",
            f"        row(i, {row_given})",
        ]
        return build(x, lines, [f"    finish({given})"], flags)

    return Kernel(
        name, arguments_of((), *state), integers, gpu, cpu, reference, per_thread=1, count="tensors"
    )

"""show: one op's rules, kernel, CPU loop and reference, side by side, without a GPU or a compiler.

What is printed is the source that runs: generated text, or the function written by hand.
"""

from __future__ import annotations

import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rangeops.kernels.spec import OpSpec


class _Words:
    """A vocabulary of names alone: enough to write a kernel's text, not to run it."""

    WORDS: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        def word(*arguments: Any) -> Any:
            return arguments[0] if arguments else None

        word.__name__ = name
        return word

    @staticmethod
    def device(function: Any) -> Any:
        """Return the function as it is."""
        return function

    @staticmethod
    def half(form: str | None) -> tuple[Any, Any]:
        """Return stand-ins for the conversions."""
        return (lambda bits: bits), (lambda value: value)


def variant_of(op: OpSpec, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first variant of an op that has the wanted flags.

    Raises:
        ValueError: no variant has them.

    """
    for flags in op.variants():
        if all(flags.get(name) == value for name, value in wanted.items()):
            return flags
    choices = "; ".join(f"{name}: {', '.join(map(str, v))}" for name, v in op.flags.items())
    raise ValueError(
        f"show: {op.name} has no variant with {dict(wanted)}, expected flags among "
        f"{choices or 'none'}"
    )


def columns(blocks: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield titled texts as columns that together take ``width`` characters, long lines folded."""
    each = max(20, (width - 3 * (len(blocks) - 1)) // len(blocks))
    folded = []
    for title, text in blocks:
        lines = [title, "-" * min(each, len(title))]
        for line in text.splitlines():
            indent = " " * (len(line) - len(line.lstrip()) + 4)
            lines += textwrap.wrap(line, each, subsequent_indent=indent, tabsize=4) or [""]
        folded.append(lines)
    for row in itertools.zip_longest(*folded, fillvalue=""):
        yield " | ".join(cell.ljust(each) for cell in row).rstrip()


def source(function: Callable[..., Any]) -> str:
    """Return a function's text, dedented, without the module head of a generated file."""
    return textwrap.dedent(inspect.getsource(function)).rstrip()


def bodies(kernel: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return the functions of the op that a generated kernel calls: body, row, prepare, finish."""
    space = kernel.__globals__
    names = [name for name in kernel.__code__.co_names if inspect.isfunction(space.get(name))]
    return {n: space[n] for n in names if space[n].__module__.startswith("rangeops.ops")}


def show(op: OpSpec, wanted: Mapping[str, Any] | None = None, width: int = 200) -> str:
    """Return an op's kernel, CPU loop and reference side by side, its rules above them.

    Args:
        op: the op.
        wanted: flags of the variant; the first one that has them is shown.
        width: characters of a line.

    Raises:
        ValueError: no variant has these flags.

    """
    flags = variant_of(op, wanted or {})
    on = ", ".join(k if v is True else f"{k}={v}" for k, v in flags.items() if v)
    kernel, words = op.kernel, _Words()
    out = [f"{op.name}: {op.formula}", f"variant: {on or 'plain'}", ""]
    for stage in kernel.stages:
        if stage.runs(flags):
            pair = [("rule", source(stage.rule)), ("reference", source(stage.reference))]
            out += [*columns(pair[: 1 if stage.rule is stage.reference else 2], width), ""]
    gpu, cpu = kernel.gpu(words, **flags), kernel.cpu(words, **flags)
    if not kernel.stages:
        for name, function in bodies(gpu).items():
            out += [*columns([(name, source(function))], width), ""]
    blocks = [("kernel", source(gpu)), ("loop", source(cpu))]
    if not kernel.stages:
        blocks.append(("reference", source(kernel.reference(**flags))))
    return "\n".join([*out, *columns(blocks, width)])

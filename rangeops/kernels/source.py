"""source: generated text as a file that tracebacks, profilers and readers can open.

The file's name holds a hash of its text, so a file is written once and never changes.  Where the
cache directory cannot be written, the text is kept in ``linecache``, which tracebacks read too.
"""

from __future__ import annotations

import hashlib
import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rangeops.kernels.cache import cache_directory, store


class Text:
    """Lines of one generated function, with their indentation."""

    def __init__(self, name: str, parameters: Iterable[str]) -> None:
        self._depth = 1
        self._lines = [f"def {name}({', '.join(parameters)}):"]

    def add(self, *lines: str) -> None:
        """Add lines at the present depth."""
        self._lines += ["    " * self._depth + line for line in lines]

    def lines(self, lines: Iterable[str]) -> None:
        """Add many lines."""
        self.add(*lines)

    @contextmanager
    def indented(self, deeper: bool = True) -> Iterator[None]:
        """Indent the lines of the block one step more."""
        self._depth += deeper
        yield
        self._depth -= deeper

    def written(self) -> str:
        """Return the function's text."""
        return "\n".join(self._lines) + "\n"


def function_of(
    name: str,
    text: str,
    constants: Mapping[str, int],
    words: Mapping[str, Any],
    rules: Mapping[str, Callable[..., Any]],
) -> Any:
    """Return the function ``name`` of a generated text.

    Args:
        name: the function.
        text: its source.
        constants: numbers by the names that the text has for them; they stand above it.
        words: the vocabulary: what else the text names.
        rules: the plain functions that the text calls, for the line that says where they are.

    """
    used = set(re.findall(r"\w+", text))
    origins = ", ".join(f"{r.__module__}.{r.__qualname__}" for r in rules.values())
    head = [f'"""{name}: generated from {origins or "its op"}."""', ""]
    numbers = [f"{key} = {value}" for key, value in constants.items() if key in used]
    text = "\n".join([*head, *numbers, *([""] if numbers else []), "", text])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    file = cache_directory() / "generated" / f"{name}-{digest}.py"
    if not file.exists():
        store(file, text.encode())
    filename = str(file)
    if not file.exists():
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    space = dict(words)
    exec(compile(text, filename, "exec"), space)
    return space[name]

"""match: tensors by shell pattern, by several patterns, or by a predicate."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence

from plan import DTensor

Match = str | Iterable[str] | Callable[[DTensor], bool]
"""Tensors: a shell pattern over names ("layer4.*"), several, or a predicate of the DTensor."""


def matching(match: Match, tensors: Sequence[DTensor], rows: Mapping[str, int]) -> list[int]:
    """Return the rows of the matching tensors; a name among ``rows`` is that tensor alone.

    Raises:
        ValueError: there are none.

    """
    if callable(match):
        found = [k for k, tensor in enumerate(tensors) if match(tensor)]
    else:
        patterns = [match] if isinstance(match, str) else list(match)
        found = [rows[pattern] for pattern in patterns if pattern in rows]
        others = [pattern for pattern in patterns if pattern not in rows]
        found += [
            row
            for row, tensor in enumerate(tensors if others else ())
            if any(fnmatch.fnmatchcase(tensor.name, pattern) for pattern in others)
        ]
    if not found:
        raise ValueError(
            f"groups: got {match!r}, which matches no parameter, expected at least one"
        )
    return found

"""What a topic of the benchmark is: a name, its rows, the tables they fill, and what it needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rangeops.device.streams import gpu_count

Row = dict[str, Any]


@dataclass(frozen=True)
class Topic:
    """One subject that is measured.

    Attributes:
        name: what ``python -m bench --only`` calls it.
        rows: ``rows(quick)`` yields its rows, smaller and fewer of them with ``quick``.
        tables: the "topic" of its rows -> title and columns (key -> heading) of their table.
        gpus: how many GPUs it needs; with 0 it runs on the CPU as well.
        packages: what has to be installed.
        in_quick: whether it is a part of a quick run.

    """

    name: str
    rows: Callable[[bool], Iterator[Row]]
    tables: Mapping[str, tuple[str, Mapping[str, str]]]
    gpus: int = 1
    packages: tuple[str, ...] = ()
    in_quick: bool = True

    def missing(self, quick: bool) -> str | None:
        """Return in words what it lacks to run here, None if nothing."""
        if gpu_count() < self.gpus:
            return f"needs GPUs: {self.gpus}, the driver offers {gpu_count()}"
        absent = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if absent:
            return f"needs {', '.join(absent)}, which is not installed"
        return None if self.in_quick or not quick else "is no part of a quick run"

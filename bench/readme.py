"""Write the README tables from registry and ``bench/results``: ``python -m bench.readme``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.rows import RESULTS, table
from bench.topics import TABLES
from rangeops import REGISTRY

README = Path(__file__).parent.parent / "README.md"


def latest(file: Path) -> list[dict[str, Any]]:
    """Return the newest row of every (topic, case, subject) of a results file, in its order."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        rows.pop((row["topic"], row["case"], row["subject"]), None)
        rows[row["topic"], row["case"], row["subject"]] = row
    return list(rows.values())


def ops_table() -> str:
    """Return the table of ops, a row each."""
    lines = []
    for op in REGISTRY.values():
        flags = next(op.variants())
        lines.append(
            {
                "op": f"`{op.name}`",
                "formula": f"`{op.formula}`".replace("|", "\\|"),
                "bytes": f"{op.bytes_per_element(flags):g}" if op.elementwise else "",
                "seed": f"`{op.origin}`",
            }
        )
    heads = {"op": "op", "formula": "formula", "bytes": "bytes an element", "seed": "origin's name"}
    return table(lines, heads)


def sections() -> dict[str, str]:
    """Return the generated text of every marked section."""
    out = {"ops": ops_table()}
    for name in ("nvidia-h200", "cpu-2-cores"):
        file = RESULTS / f"{name}.jsonl"
        rows = latest(file) if file.exists() else []
        for topic, (_, columns) in TABLES.items():
            some = [r for r in rows if r["topic"] == topic]
            if some:
                kept = {k: v for k, v in columns.items() if any(k in r for r in some)}
                versions = ", ".join(f"{k} {v}" for k, v in some[-1]["versions"].items())
                text = f"{some[-1]['device']}, {some[-1]['date']}; {versions}."
                out[f"{topic}:{name}"] = f"{table(some, kept)}\n\n{text}"
    return out


def render(text: str) -> str:
    """Return README text with every ``<!-- table NAME -->`` section replaced."""
    made = sections()

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        text = made.get(name, "Not measured yet.")
        return f"<!-- table {name} -->\n{text}\n<!-- end -->"

    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- end -->", replace, text, flags=re.DOTALL)


if __name__ == "__main__":
    README.write_text(render(README.read_text()))

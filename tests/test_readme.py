"""The README is true: its examples run, its tables are the generated ones."""

from __future__ import annotations

import re
from pathlib import Path

from bench import readme

TEXT = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_examples_run(capsys):
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, "README.md", "exec"), names)
    assert capsys.readouterr().out.rstrip().endswith(" 3")


def test_the_tables_are_the_generated_ones():
    assert readme.render(TEXT) == TEXT


def test_the_commands_are_one_line_each():
    commands = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    assert len(commands) == 2
    assert all(c.strip().count("\n") == 0 for c in commands)

"""The README is true: its examples run, its tables are the generated ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import readme

TEXT = (Path(__file__).parent.parent / "README.md").read_text()


BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_examples_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # they write a file
    names: dict[str, object] = {}
    for block in BLOCKS:
        if "import torch" not in block:
            exec(compile(block, "README.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(" 3") and lines[-1] == "{'epoch': 1}"


def test_the_torch_example_runs():
    pytest.importorskip("torch", reason="torch is not installed")
    (block,) = (block for block in BLOCKS if "import torch" in block)
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    status = names["optimizer"].status()  # type: ignore[attr-defined]
    assert status.step == 3 and status.grad_norm > 0


def test_the_tables_are_the_generated_ones():
    assert readme.render(TEXT) == TEXT


def test_the_commands_are_one_line_each():
    commands = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    assert len(commands) == 2
    assert all(c.strip().count("\n") == 0 for c in commands)

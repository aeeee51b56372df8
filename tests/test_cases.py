"""The cases that tests name are in tests/cases.md, and what is there has a test."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

TESTS = Path(__file__).parent


def named() -> set[str]:
    """Return the ids in names of tests, and of the scenarios that the ranks' worker runs."""
    found: set[str] = set()
    for file in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                words = node.name.removeprefix("test_").split("_")
                ids = itertools.takewhile(re.compile(r"s\d\d").fullmatch, words)
                found.update(word[1:] for word in ids)
    return found


def test_every_named_case_is_listed_and_every_listed_one_is_named():
    text = (TESTS / "cases.md").read_text()
    listed = re.findall(r"^## S(\d\d): ", text, re.MULTILINE)
    assert listed == sorted(set(listed)), "in order, each once"
    assert named() == set(listed)


def test_every_case_says_where_it_was_told():
    text = (TESTS / "cases.md").read_text()
    for case in text.split("\n## ")[1:]:
        assert re.search(r"\]\(https://github\.com/\S+/(issues|pull)/\d+\)", case), case[:3]


def test_docstrings_name_cases_that_are_listed():
    listed = set(re.findall(r"^## (S\d\d): ", (TESTS / "cases.md").read_text(), re.MULTILINE))
    for file in TESTS.rglob("*.py"):
        tree = ast.parse(file.read_text())
        text = ast.get_docstring(tree) or ""
        assert set(re.findall(r"\bS\d\d\b", text)) <= listed, file.name

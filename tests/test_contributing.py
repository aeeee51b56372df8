"""CONTRIBUTING says which files a change touches; the examples it names are held to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
LISTS = re.findall(r"^- \*\*(.*?)\*\*(.*?)(?=^- \*\*|^<!-- end)", TEXT, re.M | re.S)
NAMED = {
    title: set(re.findall(r"`((?:plan|rangeops)/[\w/.]+\.py)`", body)) for title, body in LISTS
}


def naming(word: str, *packages: str) -> set[str]:
    """Return the files of packages whose code, docstrings left out, has a word."""
    found = set()
    for package in packages:
        for file in (ROOT / package).rglob("*.py"):
            code = re.sub(r'"""(.|\n)*?"""|#.*', "", file.read_text())
            if re.search(rf"\b{word}\b", code, re.I):
                found.add(str(file.relative_to(ROOT)))
    return found


@pytest.mark.parametrize(
    ("title", "word", "count"),
    [
        ("A new optimizer", "lion", 3),
        ("A new hyper-parameter", "trust_coefficient", 3),
        ("A new half format", "bfloat16", 2),
    ],
)
def test_an_example_is_named_nowhere_else(title, word, count):
    found = naming(word, "plan", "rangeops")
    # An adapter spells it as its framework does, and what verifies gives it a value to differ in.
    others = {file for file in found if file.startswith(("rangeops/torch/", "rangeops/verify/"))}
    assert found - others <= NAMED[title]
    body = dict(LISTS)[title]
    assert f", {count} files" in body and f"`{word}`" in body


def test_the_files_that_it_names_are_there():
    for files in NAMED.values():
        for file in files:
            assert (ROOT / file).exists(), file


def test_a_region_is_named_by_its_row_alone():
    text = (ROOT / "plan" / "region.py").read_text()
    rows = re.findall(r"^    [A-Z]\w+ = (.*)$", text, re.M)
    assert len(rows) >= 68
    assert not [row for row in rows if re.match(r"\(?\d+,", row)], "a place is counted, not written"

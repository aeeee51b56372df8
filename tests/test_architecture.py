"""The tree is the architecture: who may import whom, and how long a file may be."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FLOORS = {
    "halves": 0, "cuda": 1, "cpu": 1, "coefficients": 0, "scalars": 0, "stream": 1, "reserve": 1,
    "buffer": 2, "pool": 3, "arena": 3, "h2d": 4, "build": 2, "ranges": 4, "status": 4,
    "binding": 5, "arguments": 6, "launch": 7, "op": 8, "ops": 9, "graph": 10, "groups": 10,
    "verify": 10, "report": 10, "step": 11, "torch": 12, "ranks": 12,
}  # fmt: skip
"""Imports go to a lower floor, or stay inside one package."""

ONLY_IMPORTER = {
    "numba.cuda": "rangeops/cuda/",
    "torch": "rangeops/torch/",
    "nccl": "rangeops/ranks/nccl.py",
}


def imports(file: Path) -> list[str]:
    """Return the modules that a file imports when it runs (not under TYPE_CHECKING)."""
    found = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text()))
    return found


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("file", sources("plan"), ids=lambda f: f.stem)
def test_plan_imports_only_itself_the_standard_library_and_numpy(file):
    roots = {name.partition(".")[0] for name in imports(file)}
    assert roots <= {"plan", "numpy", *sys.stdlib_module_names}


@pytest.mark.parametrize("file", sources("rangeops"), ids=lambda f: f.stem)
def test_rangeops_imports_go_down(file):
    parts = file.relative_to(ROOT / "rangeops").with_suffix("").parts
    mine = parts[0]
    for name in imports(file):
        assert name.partition(".")[0] not in ("tests", "bench", "examples")
        if mine not in FLOORS or not name.startswith("rangeops."):
            continue
        theirs = name.split(".")[1]
        if theirs in FLOORS and theirs != mine:
            assert FLOORS[theirs] < FLOORS[mine], f"{file.name} imports {name}"


@pytest.mark.parametrize(("module", "owner"), ONLY_IMPORTER.items())
def test_one_file_imports_each_framework(module, owner):
    for package in ("plan", "rangeops"):
        for file in sources(package):
            if not str(file.relative_to(ROOT)).startswith(owner):
                names = imports(file)
                assert not [n for n in names if n == module or n.startswith(f"{module}.")], file


@pytest.mark.parametrize("file", sources("plan") + sources("rangeops"), ids=lambda f: f.stem)
def test_files_and_functions_stay_short(file):
    text = file.read_text()
    assert text.count("\n") <= 320, "a file that grows has found a second subject"
    assert ast.get_docstring(ast.parse(text)), "a file says what its one subject is"


def test_every_public_name_has_a_docstring():
    missing = []
    for file in sources("plan") + sources("rangeops"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    missing.append(f"{file.name}:{node.name}")
                for inner in node.body:
                    public = isinstance(inner, ast.FunctionDef) and inner.name[0] != "_"
                    if public and not ast.get_docstring(inner):
                        missing.append(f"{file.name}:{node.name}.{inner.name}")
    assert not missing


def test_importing_the_library_imports_no_framework():
    import subprocess

    code = "import sys, rangeops; print([m for m in ('numba', 'cupy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"

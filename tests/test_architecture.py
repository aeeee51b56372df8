"""The tree is the architecture: who may import whom, and how long files and functions may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FLOORS = {
    "plan": 0,
    "device": 1,
    "arena": 2, "pool": 2,
    "kernels": 3, "h2d": 3,
    "launch": 4,
    "ops": 5,
    "optim": 6, "checkpoint": 6, "verify": 6, "show": 6,
    "torch": 7, "ranks": 7,
}  # fmt: skip
"""A package imports from lower floors and from itself; device, arena, kernels, launch, ops,
optim is also the order in which to read."""

ONLY_IMPORTER = {
    "numba.cuda": ("rangeops/kernels/cuda/", "rangeops/pool/adapters/numba.py"),
    "cupy": ("rangeops/device/", "rangeops/pool/adapters/cupy.py"),
    "cuda": ("rangeops/device/", "rangeops/pool/adapters/cuda_core.py"),
    "torch": ("rangeops/torch/",),
    "nccl": ("rangeops/ranks/communicators/nccl.py",),
}
"""Who alone imports a framework: what is built on it, and the adapter that serves it."""

FUNCTION_LINES, KERNEL_LINES, FILE_LINES = 40, 30, 300


def sources(*packages: str) -> list[Path]:
    """Return the files of packages."""
    return [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]


def module_of(file: Path) -> str:
    """Return a file's module name."""
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_of(file): file for file in sources("plan", "rangeops")}


def imports(file: Path) -> set[str]:
    """Return what a file imports anywhere in it, under TYPE_CHECKING and in functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def own_imports(file: Path) -> set[str]:
    """Return the modules of this library that a file imports."""
    found = set()
    for name in imports(file):
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name and name != module_of(file):
            found.add(name)
    return found


def floor(module: str) -> int | None:
    """Return a module's floor; the package itself and its command line stand above all."""
    parts = module.split(".")
    if parts[0] == "plan":
        return FLOORS["plan"]
    return FLOORS[parts[1]] if len(parts) > 1 and parts[1] in FLOORS else None


@pytest.mark.parametrize("file", sources("plan"), ids=module_of)
def test_plan_imports_only_itself_the_standard_library_and_numpy(file):
    roots = {name.partition(".")[0] for name in imports(file)}
    assert roots <= {"plan", "numpy", *sys.stdlib_module_names}


@pytest.mark.parametrize("file", sources("rangeops"), ids=module_of)
def test_rangeops_imports_go_down(file):
    mine = floor(module_of(file))
    for name in own_imports(file):
        theirs = floor(name)
        same = name.split(".")[:2] == module_of(file).split(".")[:2]
        if mine is not None and not same:
            assert theirs is not None and theirs < mine, f"{module_of(file)} imports {name}"
    assert not {"tests", "bench", "examples"} & {name.partition(".")[0] for name in imports(file)}


def test_every_package_has_a_floor():
    top = {name.split(".")[1] for name in MODULES if name.count(".") and name.startswith("range")}
    assert top - {"__main__"} == set(FLOORS) - {"plan"}


def test_no_circle_of_imports():
    """A package's front (``__init__``) only gathers, so a file below it is no circle with it."""
    graph = {
        name: {other for other in own_imports(file) if not name.startswith(f"{other}.")}
        for name, file in MODULES.items()
    }
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*path, name))
            done.add(name)

    for name in graph:
        walk(name, ())


@pytest.mark.parametrize(("module", "owners"), ONLY_IMPORTER.items())
def test_one_place_imports_each_framework(module, owners):
    for file in sources("plan", "rangeops"):
        if not str(file.relative_to(ROOT)).startswith(owners):
            names = {n for n in imports(file) if n == module or n.startswith(f"{module}.")}
            assert not names, f"{module_of(file)} imports {names}"


@pytest.mark.parametrize("package", ["arena", "h2d", "kernels", "launch", "ops", "optim"])
def test_only_a_device_knows_where_it_is(package):
    """What differs between GPU and host is a device's method; nobody else branches."""
    for file in sources(f"rangeops/{package}"):
        asked = [
            node.lineno
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Attribute) and node.attr in ("on_gpu", "simulated")
        ]
        assert not asked, f"{module_of(file)} asks in line {asked}; ask arena.backend to do it"


def lengths(file: Path) -> list[tuple[int, str, bool]]:
    """Return (lines, name, is a kernel) of every function that is not a container of functions.

    A function's docstring does not count, nor does a factory that only holds other functions.
    """
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.FunctionDef):
            continue
        lines = node.end_lineno - node.lineno + 1
        if ast.get_docstring(node):
            lines -= node.body[0].end_lineno - node.body[0].lineno + 1
        inner = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        lines -= sum(n.end_lineno - n.lineno + 1 for n in inner)
        found.append((lines, node.name, "thread()" in ast.unparse(node) and not inner))
    return found


@pytest.mark.parametrize("file", sources("plan", "rangeops"), ids=module_of)
def test_files_and_functions_stay_short(file):
    text = file.read_text()
    assert text.count("\n") <= FILE_LINES, "a file that grows has found a second subject"
    assert ast.get_docstring(ast.parse(text)), "a file says what its one subject is"
    long = [
        (name, lines)
        for lines, name, kernel in lengths(file)
        if lines > (KERNEL_LINES if kernel else FUNCTION_LINES)
    ]
    assert not long


def test_every_public_name_has_a_docstring():
    missing = []
    for file in sources("plan", "rangeops"):
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
    frameworks = ("numba", "llvmlite", "cupy", "cuda", "torch", "nccl")
    code = f"import sys, rangeops; print([m for m in {frameworks} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"

"""cache: built code on disk, found again by the content that it was made of.

A key is a hash of all sources of ``plan`` and ``rangeops``, of every function, module and constant
that the kernel's factories refer to (an op may be declared in a user's file), of the flags, the
target and the versions of the tools: whatever could change the code changes the key, so nothing
stale is ever loaded.  A file begins with a checksum of the rest and is written in one move.

cuda.core has a store of its own (FileStreamProgramCache); this one serves cubins and loops of the
CPU alike, also where no CUDA package is installed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import plan

_TOOLS = ("numba", "numba-cuda", "llvmlite", "numpy", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12")

_PACKAGES = (Path(plan.__file__).parent, Path(__file__).parents[1])


def cache_directory() -> Path:
    """Return where built code is kept: RANGEOPS_CACHE_DIR, else the user's cache directory."""
    own = os.environ.get("RANGEOPS_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "rangeops"


def cached(suffix: str, key: str, make: Callable[[], bytes]) -> bytes:
    """Return what is kept under ``key``, or else make it and keep it.

    Args:
        suffix: the file's ending, "cubin" or "o".
        key: of ``key_of``.
        make: builds the content; called where the file is missing or damaged.

    """
    file = cache_directory() / f"{key}.{suffix}"
    try:
        stored = file.read_bytes()
    except OSError:
        stored = b""
    if stored[:32] == hashlib.sha256(stored[32:]).digest():
        return stored[32:]
    content = make()
    store(file, hashlib.sha256(content).digest() + content)
    return content


def store(file: Path, content: bytes) -> None:
    """Write a file in one move, so that a reader sees all of it or none."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as out:
            out.write(content)
        os.replace(out.name, file)
    except OSError:
        return  # a read-only cache directory costs the next process time, nothing else


def key_of(factory: Callable[..., Any], *facts: Any) -> str:
    """Return the content key of what ``factory`` makes: 64 hexadecimal digits.

    Args:
        factory: the function that spells the kernel; what it refers to is followed.
        facts: whatever else decides the code: name, flags, target, options.

    """
    digest = hashlib.sha256(package_sources())
    digest.update(repr((facts, versions())).encode())
    for text in sorted(set(_referred(factory, set()))):
        digest.update(text)
    return digest.hexdigest()


@functools.cache
def versions() -> str:
    """Return the versions of Python and of the tools that take part in a build."""
    tools = [f"python {platform.python_version()}"]
    for tool in _TOOLS:
        try:
            tools.append(f"{tool} {metadata.version(tool)}")
        except metadata.PackageNotFoundError:
            continue
    return "; ".join(tools)


@functools.cache
def package_sources() -> bytes:
    """Return a hash of every source file of ``plan`` and ``rangeops``."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for file in sorted(package.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.digest()


def _is_own(file: str) -> bool:
    return any(package in Path(file).parents for package in _PACKAGES)


@functools.cache
def _file(name: str) -> bytes:
    """Return the hash of a source file, nothing where there is none to read."""
    try:
        return hashlib.sha256(Path(name).read_bytes()).digest() if name.endswith(".py") else b""
    except OSError:
        return b""


def _referred(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Yield the sources and constants behind a value that a factory refers to.

    A function of this library is followed through its closure alone: what it names is hashed with
    the packages.
    """
    if isinstance(value, FunctionType):
        if id(value) not in seen:
            seen.add(id(value))
            yield from _referred_by(value, seen)
    elif isinstance(value, ModuleType):
        yield _file(getattr(value, "__file__", None) or "")
    elif isinstance(value, functools.partial):
        yield from _referred((value.func, value.args, value.keywords), seen)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _referred((name, item), seen)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _referred(item, seen)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _referred(vars(value), seen)
    elif isinstance(value, int | float | str | bytes):
        yield repr(value).encode()


def _referred_by(function: FunctionType, seen: set[int]) -> Iterator[bytes]:
    code, known = function.__code__, function.__globals__
    yield repr(_text(code)).encode()
    for cell in function.__closure__ or ():
        yield from _referred(cell.cell_contents, seen)
    if not _is_own(code.co_filename):
        yield _file(code.co_filename)
        for name in sorted(_names(code) & known.keys()):
            yield from _referred((name, known[name]), seen)


def _text(code: CodeType) -> tuple[Any, ...]:
    """Return what a function does, whatever file and line it stands in."""

    def constant(value: Any) -> Any:
        if isinstance(value, frozenset):  # its order is another one in every process
            return sorted(map(repr, value))
        return _text(value) if isinstance(value, CodeType) else repr(value)

    return code.co_code, code.co_names, code.co_varnames, [*map(constant, code.co_consts)]


def _names(code: CodeType) -> set[str]:
    """Return the names that a function and those inside it look up."""
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)

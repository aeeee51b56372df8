"""archive: named tensors and facts in safetensors files, written whole or not at all.

A file goes to a temporary name beside it, is synced, and is then renamed, so that a reader sees the
old one or the new one.  Its tensors are read by offset, straight into the memory that wants them;
``safetensors`` itself has checked the header by then: every offset lies inside the file, and no two
tensors overlap.
"""

from __future__ import annotations

import json
import math
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plan import PlanError

FORMAT = "rangeops"
VERSION = 1

INDEX = ".json"
"""What the name of an index of several files ends with."""


@dataclass(frozen=True)
class Piece:
    """Elements ``first`` .. ``last`` of a named tensor, in one file at byte ``at``."""

    file: Path
    at: int
    first: int
    last: int

    def read_into(self, buffer: np.ndarray[Any, Any], skip: int = 0) -> None:
        """Fill a uint8 buffer from the piece's byte ``skip`` on.

        Raises:
            OSError: the file ends early.

        """
        with open(self.file, "rb", buffering=0) as file:
            file.seek(self.at + skip)
            view, got = buffer.data, 0
            while got < buffer.nbytes:
                count = file.readinto(view[got:])
                if not count:
                    raise OSError(f"load: {self.file} ends early; it changed while it was read")
                got += count


@dataclass(frozen=True)
class Entry:
    """A named tensor: its shape, its type as safetensors has it, and where its pieces are."""

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Archive:
    """What a checkpoint holds: facts, and tensors by name."""

    facts: dict[str, Any]
    entries: dict[str, Entry]


def write(
    file: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray[Any, Any]],
    facts: Mapping[str, Any],
) -> None:
    """Write tensors and facts to ``file`` in one move; a file of that name is replaced.

    Raises:
        OSError: no room or no right to write; the old file is as it was.
        TypeError: facts that JSON cannot hold.

    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    text = json.dumps(facts, allow_nan=False)
    metadata = {"format": FORMAT, "version": str(VERSION), "facts": text}
    with _replacing(Path(file)) as name:
        try:
            save_file(dict(tensors), name, metadata)
        except SafetensorError as error:  # as it calls a full disk
            raise OSError(f"save: {file} cannot be written ({error}); make room") from None


def write_text(file: str | os.PathLike[str], text: str) -> None:
    """Write a text file in one move.

    Raises:
        OSError: as of ``write``.

    """
    with _replacing(Path(file)) as name:
        Path(name).write_text(text)


@contextmanager
def _replacing(target: Path) -> Iterator[str]:
    """Give a temporary name, whose file takes the place of ``target`` once it is written."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    try:
        yield name
        _sync(name)
        _same_mode(name, target)
        os.replace(name, target)
        _sync(target.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(file: str | os.PathLike[str]) -> Archive:
    """Return what a checkpoint holds, its tensors not read yet; of an index, of all its files.

    Raises:
        OSError: no such file. PlanError: damaged, or no checkpoint of this library.

    """
    path = Path(file)
    files = _files(path) if path.suffix == INDEX else [path]
    facts: dict[str, Any] = {}
    found: dict[str, list[Entry]] = {}
    for part in files:
        said, entries = _one(part)
        if facts and _count(said) != _count(facts):
            raise PlanError(
                f"load: {part.name} is of step {_count(said)}, {files[0].name} of step "
                f"{_count(facts)}, expected files of one save; give their own index"
            )
        facts = facts or said
        for name, entry in entries:
            found.setdefault(name, []).append(entry)
    return Archive(facts, {name: _joined(name, parts) for name, parts in found.items()})


def _files(index: Path) -> list[Path]:
    """Return the files of an index, which lie beside it."""
    try:
        names = json.loads(index.read_text())["files"]
        if not (names and isinstance(names, list) and all(n and Path(n).name == n for n in names)):
            raise ValueError(f"files got {names!r}, expected the names of files beside it")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PlanError(f"load: {index} is no index of a checkpoint ({error}); give one") from None
    return [index.with_name(name) for name in names]


def _count(facts: Mapping[str, Any]) -> Any:
    """Return the step that facts are of."""
    scalars = facts.get("scalars")
    return scalars.get("step") if isinstance(scalars, dict) else None


def _one(path: Path) -> tuple[dict[str, Any], list[tuple[str, Entry]]]:
    """Return facts and tensors of one file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as checked:
            metadata = checked.metadata() or {}
    except SafetensorError as error:
        raise PlanError(f"load: {path} is damaged ({error}); give a whole checkpoint") from None
    if metadata.get("format") != FORMAT or metadata.get("version") != str(VERSION):
        raise PlanError(
            f"load: {path} says format {metadata.get('format')!r}, version "
            f"{metadata.get('version')!r}, expected {FORMAT!r}, {VERSION}; give a file of save()"
        )
    with open(path, "rb") as raw:
        (size,) = struct.unpack("<Q", raw.read(8))
        header = json.loads(raw.read(size))
    try:
        facts = json.loads(metadata["facts"])
        entries = list(_entries(path, 8 + size, header, facts.get("pieces", {})))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PlanError(f"load: {path} has damaged facts ({error!r}); give another file") from None
    return facts, entries


def _entries(
    path: Path, start: int, header: Mapping[str, Any], pieces: Mapping[str, Any]
) -> Iterator[tuple[str, Entry]]:
    for name, row in header.items():
        if name == "__metadata__":
            continue
        held = math.prod(row["shape"])
        first, last, shape = pieces.get(name, (0, held, row["shape"]))
        numbers = (first, last, *shape)
        if any(type(n) is not int or n < 0 for n in numbers) or last > math.prod(shape):
            raise ValueError(f"{name} is piece {first} .. {last} of {shape}")
        if last - first != held:
            raise ValueError(f"{name} holds {held} elements, its piece is {first} .. {last}")
        piece = Piece(path, start + row["data_offsets"][0], first, last)
        yield name, Entry(tuple(shape), row["dtype"], (piece,))


def _joined(name: str, parts: list[Entry]) -> Entry:
    """Return a tensor of all files' pieces, which have to be all of it."""
    kinds = {(entry.shape, entry.dtype) for entry in parts}
    if len(kinds) > 1:
        raise PlanError(
            f"load: {name} is {' and '.join(f'{d} {s}' for s, d in sorted(kinds))}, expected one "
            "shape and type in all files; give files of one save"
        )
    pieces = sorted((p for entry in parts for p in entry.pieces), key=lambda piece: piece.first)
    entry, at = Entry(parts[0].shape, parts[0].dtype, tuple(pieces)), 0
    for piece in entry.pieces:
        if piece.first > at:
            break
        at = max(at, piece.last)
    if at != entry.numel:
        raise PlanError(
            f"load: the first {at} of the {entry.numel} elements of {name} are there, expected "
            "all; give the index of the files of all ranks"
        )
    return entry


def _sync(path: str | Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _same_mode(name: str, target: Path) -> None:
    """Give a temporary file the mode that its target has, or would be made with."""
    try:
        mode = target.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    os.chmod(name, mode)

"""archive: named tensors and facts in safetensors files, written whole or not at all.

A file goes to a temporary name beside it, is synced, and is then renamed, so that a reader sees the
old one or the new one.  Its tensors are read by offset, straight into the memory that wants them;
``safetensors`` itself has checked the header by then: every offset lies inside the file, and no two
tensors overlap.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plan import PlanError

FORMAT = "rangeops"
VERSION = 1


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
        return int(np.prod(self.shape, dtype=np.int64))


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
    from safetensors.numpy import save_file

    target = Path(file)
    text = json.dumps(facts, allow_nan=False)
    metadata = {"format": FORMAT, "version": str(VERSION), "facts": text}
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    try:
        save_file(dict(tensors), name, metadata)
        _sync(name)
        _same_mode(name, target)
        os.replace(name, target)
        _sync(target.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(file: str | os.PathLike[str], text: str) -> None:
    """Write a text file in one move."""
    target = Path(file)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    with os.fdopen(handle, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    _same_mode(name, target)
    os.replace(name, target)


def read(file: str | os.PathLike[str]) -> Archive:
    """Return what a checkpoint holds, its tensors not read yet; of an index, of all its files.

    Raises:
        OSError: no such file. PlanError: damaged, or no checkpoint of this library.

    """
    path = Path(file)
    if path.suffix != ".json":
        return Archive(*_one(path))
    try:
        index = json.loads(path.read_text())
        names = [str(name) for name in index["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError(f"load: {path} is no index of a checkpoint ({error}); give one") from None
    facts: dict[str, Any] = {}
    pieces: dict[str, list[Piece]] = {}
    kinds: dict[str, tuple[tuple[int, ...], str]] = {}
    for name in names:
        facts, entries = _one(path.parent / name)
        for key, entry in entries.items():
            kinds[key] = entry.shape, entry.dtype
            pieces.setdefault(key, []).extend(entry.pieces)
    return Archive(facts, {key: _joined(key, *kinds[key], pieces[key]) for key in pieces})


def _one(path: Path) -> tuple[dict[str, Any], dict[str, Entry]]:
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
        entries = dict(_entries(path, 8 + size, header, facts.get("pieces", {})))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"load: {path} has damaged facts ({error!r}); give another file") from None
    return facts, entries


def _entries(
    path: Path, start: int, header: Mapping[str, Any], pieces: Mapping[str, Any]
) -> Iterator[tuple[str, Entry]]:
    for name, row in header.items():
        if name == "__metadata__":
            continue
        at = start + row["data_offsets"][0]
        if name in pieces:
            first, last, shape = pieces[name]
        else:
            shape = row["shape"]
            first, last = 0, int(np.prod(shape, dtype=np.int64))
        piece = Piece(path, at, int(first), int(last))
        yield name, Entry(tuple(map(int, shape)), row["dtype"], (piece,))


def _joined(name: str, shape: tuple[int, ...], dtype: str, pieces: list[Piece]) -> Entry:
    """Return a tensor of several files' pieces, which have to be all of it."""
    entry = Entry(shape, dtype, tuple(sorted(pieces, key=lambda piece: piece.first)))
    at = 0
    for piece in entry.pieces:
        if piece.first > at:
            break
        at = max(at, piece.last)
    if at != entry.numel:
        raise PlanError(
            f"load: the files of the index hold {at} of the {entry.numel} elements of {name}; "
            "give the files of all ranks"
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

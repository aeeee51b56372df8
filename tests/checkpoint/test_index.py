"""A checkpoint in several files with an index: whole, or refused."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from plan import Range
from rangeops import load, save
from rangeops.checkpoint.archive import write_text
from rangeops.checkpoint.saving import save_part
from tests.checkpoint.filled import (
    changed,
    everything,
    filled,
    parts,
    planned,
    refused,
    rewritten,
    same,
    setter,
    values_of,
)


def halves(folder, name="run.json"):
    """Write an arena in two files, cut in the midst of fc.weight's row, and their index."""
    arena = filled(ema=True)
    cut = arena.plan.tensors["fc.weight"].offset + 4 * 77
    spans = [Range(0, cut), Range(cut, arena.nbytes - cut)]
    files = [f"part{k}.safetensors" for k in range(2)]
    for span, file in zip(spans, files, strict=True):
        save_part(arena, folder / file, [span], extra=5)
    write_text(folder / name, json.dumps({"files": files}))
    return folder / name, folder / files[0], folder / files[1]


def test_an_index_gives_what_its_files_have_together(target, tmp_path):
    index, first, second = halves(tmp_path)
    assert parts(first)[1]["pieces"]["fc.weight"] == [0, 77, [3, 100]]
    assert parts(second)[1]["pieces"]["fc.weight"] == [77, 300, [3, 100]]
    found = load(target, index)
    same(values_of(target), values_of(filled(ema=True)))
    assert (found.extra, found.missing, found.unexpected) == (5, (), ())


@pytest.mark.parametrize("which", [0, 1])
def test_a_part_alone_is_refused(which, target, tmp_path):
    index, *files = halves(tmp_path)
    refused(target, files[which])
    write_text(index, json.dumps({"files": [files[which].name]}))
    refused(target, index, "of the 300 elements of fc.weight are there", strict=[False])
    refused(target, index, strict=[True])


def test_an_index_that_lacks_a_file_is_an_oserror(target, tmp_path):
    index, _, second = halves(tmp_path)
    second.unlink()
    before = everything(target)
    with pytest.raises(OSError):
        load(target, index)
    assert everything(target) == before


@pytest.mark.parametrize("piece", [
    [78, 301, [3, 100]], [78, 300, [3, 100]], [77, 300, [300]], [0, 223, [3, 100]],
])  # fmt: skip
def test_pieces_that_do_not_meet_are_refused(piece, target, tmp_path):
    index, _, second = halves(tmp_path)
    rewritten(second, tmp_path / "new", facts=setter("pieces", "fc.weight")(piece))
    os.replace(tmp_path / "new", second)
    refused(target, index)


def test_pieces_of_two_types_or_two_steps_are_refused(target, tmp_path):
    index, _, second = halves(tmp_path)
    whole = second.read_bytes()
    narrow = changed("fc.weight", lambda a: a.astype(np.float16))
    rewritten(second, tmp_path / "new", tensors=narrow)
    os.replace(tmp_path / "new", second)
    refused(target, index, "fc.weight is F16 .* and F32 .*, expected one shape and type")
    second.write_bytes(whole)
    rewritten(second, tmp_path / "new", facts=setter("scalars", "step")(12))
    os.replace(tmp_path / "new", second)
    refused(target, index, "is of step 12, part0.safetensors of step 11")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "5", "null", '{"files": 5}', '{"files": []}', '{"files": "part0.safetensors"}',
     '{"files": [5]}', '{"files": [""]}', '{"files": ["../part0.safetensors"]}', "[" * 100_000,
     '{"files": ["/etc/passwd"]}', '{"files": {"part0.safetensors": 1}}'],
)  # fmt: skip
def test_what_is_no_index_is_refused(text, target, tmp_path):
    index, *_ = halves(tmp_path)
    index.write_text(text)
    refused(target, index, "is no index of a checkpoint")


def test_a_checkpoint_is_not_saved_by_the_name_of_an_index(tmp_path):
    with pytest.raises(ValueError, match="which load would read as an index"):
        save(planned(), tmp_path / "run.json")
    assert not os.listdir(tmp_path)


def test_a_piece_that_holds_less_than_it_says_is_refused(target, tmp_path):
    """What lies behind it in the file would be read as its end."""
    index, _, second = halves(tmp_path)
    rewritten(second, tmp_path / "new", tensors=changed("fc.weight", lambda a: a[:100].copy()))
    os.replace(tmp_path / "new", second)
    refused(target, index, "fc.weight holds 100 elements, its piece is 77 .. 300")

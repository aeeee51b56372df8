"""Built code is kept by content: what changes the code changes the key, and nothing else does."""

from __future__ import annotations

import functools
import importlib.util

import pytest

from rangeops.kernels import cache

OP = """
from helper import SHIFT
from helper import double

FACTOR = {factor}

def rule(p):
    return double(p) * FACTOR + SHIFT

def factory(x, **flags):
    return rule
"""

HELPER = """
SHIFT = {shift}

def double(p):
    return p {operator} p
"""


def key(folder, monkeypatch, factor=2, shift=1, operator="+", wrap=lambda f: f):
    """Return the key of a user's factory, declared in one file with a helper in another."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(__import__("sys").modules, "helper", raising=False)
    (folder / "helper.py").write_text(HELPER.format(shift=shift, operator=operator))
    (folder / "op.py").write_text(OP.format(factor=factor))
    spec = importlib.util.spec_from_file_location("op", folder / "op.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    spec.loader.exec_module(module)
    cache._file.cache_clear()
    return cache.key_of(wrap(module.factory), "op", ())


@pytest.mark.parametrize(
    "changed",
    [
        {"factor": 3},
        {"shift": 5},
        {"operator": "-"},
        {"wrap": lambda f: lambda x: (f, 1)},
        {"wrap": lambda f: functools.partial(f, half="fp16")},
    ],
    ids=["op", "constant", "helper", "closure", "partial"],
)
def test_a_change_in_what_a_users_factory_refers_to_changes_the_key(tmp_path, monkeypatch, changed):
    before = key(tmp_path, monkeypatch)
    assert key(tmp_path, monkeypatch) == before
    assert key(tmp_path, monkeypatch, **changed) != before


def test_two_functions_of_one_file_have_two_keys():
    def one(x):
        return lambda p: p + p

    def two(x):
        return lambda p: p - p

    assert cache.key_of(one, "op") != cache.key_of(two, "op")
    assert cache.key_of(lambda x: one, "op") != cache.key_of(lambda x: two, "op")


def test_flags_and_targets_are_part_of_the_key():
    assert cache.key_of(key, "op", "sm_80") != cache.key_of(key, "op", "sm_90")


def test_content_is_made_once_and_again_where_it_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("RANGEOPS_CACHE_DIR", str(tmp_path))
    made = []

    def make():
        made.append(1)
        return b"code"

    assert cache.cached("o", "name", make) == cache.cached("o", "name", make) == b"code"
    assert len(made) == 1
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert cache.cached("o", "name", make) == b"code"
    assert len(made) == 2

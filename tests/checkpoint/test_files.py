"""What a file has, by name and to the bit, and that it is written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from plan import MemoryPlan, PlanConfig, PlanError
from rangeops import Arena, OptimizerStep, averaged, load, ops, save
from tests.checkpoint.filled import GROUPS, SCALARS, SHAPES, filled, parts, planned, same, values_of
from tests.helpers import host_bytes


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.safetensors"


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw", "lamb"])
@pytest.mark.parametrize("half", [None, "bf16"])
def test_a_file_has_every_tensor_by_name_and_to_the_bit(optimizer, half, file):
    arena = filled(optimizer, half=half, ema=True)
    save(arena, file)
    want = values_of(arena)
    assert {"fc.weight", "ema.fc.weight", "stats.bn.mean"} <= want.keys()
    assert ("m.fc.weight" in want, "v.fc.weight" in want) == {
        "sgd": (False, False), "momentum": (True, False),
    }.get(optimizer, (True, True))  # fmt: skip
    same(load_file(file), want)
    assert load_file(file)["conv1.weight"].shape == SHAPES["conv1.weight"][1]


def test_a_loaded_arena_has_everything_that_was_saved(file, device):
    arena = filled(half="fp16", ema=True, device=device)
    save(arena, file, extra={"epoch": 3, "seeds": [1, None, "x"]})
    other = planned(half="fp16", ema=True, device=device)
    found = load(other, file)
    same(values_of(other), values_of(arena))
    assert (found.extra, found.step) == ({"epoch": 3, "seeds": [1, None, "x"]}, 11)
    assert (found.missing, found.unexpected) == ((), ())
    assert other.groups.state() == arena.groups.state()
    assert set(other.groups.names) == GROUPS and other.groups.frozen == ("conv1.weight",)
    assert other.groups.steps() == arena.groups.steps()
    for name in SCALARS:
        assert other.scalars.get(name) == arena.scalars.get(name) != planned().scalars.get(name)


def test_scalars_keep_their_bits_where_one_minus_them_rounds(file):
    arena = filled()
    arena.scalars.set(beta1=0.1, beta2=0.9995)
    save(arena, file)
    other = planned()
    load(other, file)
    for name in ("beta1", "one_minus_beta1", "beta2", "one_minus_beta2"):
        assert other.scalars.get(name) == arena.scalars.get(name), name


def test_resting_tensors_rest_on(file):
    arena = filled()
    arena.groups.rest(["fc.weight"])
    save(arena, file)
    other = planned()
    other.groups.rest(["conv2.weight"])
    load(other, file)
    assert other.groups.resting == ("fc.weight",)
    np.testing.assert_array_equal(other.groups.words, arena.groups.words)


def test_own_scalars_are_saved(file):
    arena = planned(scalars={"gamma": 0.5})
    arena.scalars.set(gamma=0.75)
    save(arena, file)
    other = planned(scalars={"gamma": 0.5})
    load(other, file)
    assert other.scalars.get("gamma") == 0.75


def test_a_file_says_its_format_config_and_kinds(file):
    save(filled(half="fp16", ema=True), file)
    _, facts, metadata = parts(file)
    assert metadata == {"format": "rangeops", "version": "1"}
    assert facts["config"] == {"optimizer": "adamw", "half": "fp16", "ema": True}
    assert facts["kinds"] == {name: kind for name, (kind, _) in SHAPES.items()}
    assert facts["swapped"] is False


@pytest.mark.parametrize("other", ["m.fc", "v.fc", "ema.fc"])
def test_names_that_would_clash_are_refused(other, file):
    plan = MemoryPlan(PlanConfig("adamw", ema=True))
    for name in ("fc", other):
        plan.parameter(name, "fc_weight", (3,))
    arena = Arena(plan.finalize(), device="cpu")
    file.write_bytes(b"old")
    with pytest.raises(PlanError, match=f"would both be named {other}"):
        save(arena, file)
    left_alone(file, b"old")


# Whole or not at all


def left_alone(file, before):
    """Hold that nothing but the old file is there, as it was."""
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_a_write_that_fails_leaves_the_old_file(file, monkeypatch):
    arena = filled()
    save(arena, file)
    before = file.read_bytes()

    def failing(tensors, name, metadata):
        with open(name, "wb") as out:
            out.write(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr("safetensors.numpy.save_file", failing)
    with pytest.raises(OSError, match="no space left"):
        save(arena, file)
    left_alone(file, before)


@pytest.mark.parametrize("function", ["replace", "fsync", "chmod"])
def test_a_failing_system_call_leaves_the_old_file(function, file, monkeypatch):
    arena = filled()
    save(arena, file)
    before = file.read_bytes()

    def failing(*_):
        raise OSError(f"{function} failed")

    monkeypatch.setattr(os, function, failing)
    arena["fc.weight"] = 7.0
    with pytest.raises(OSError, match=f"{function} failed"):
        save(arena, file)
    left_alone(file, before)


LIMITED = """
import resource, sys
from tests.checkpoint.filled import filled
from rangeops import save
from rangeops.checkpoint.archive import write_text
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
file, arena = sys.argv[1], filled(seed=2)
for write in (lambda: save(arena, file), lambda: write_text(file, "x" * 9999)):
    try:
        write()
    except OSError as error:
        sys.stdout.write("refused ")
"""


def test_a_full_disk_is_an_oserror_and_leaves_the_old_file(file):
    save(filled(), file)
    before = file.read_bytes()
    run = [sys.executable, "-c", LIMITED, str(file)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused refused "), done.stderr
    left_alone(file, before)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_replaced_file_keeps_its_permissions(mode, file):
    arena = filled()
    save(arena, file)
    file.chmod(mode)
    save(arena, file)
    assert file.stat().st_mode & 0o777 == mode


def test_a_new_file_has_the_permissions_of_any_new_file(file):
    old = os.umask(0o027)
    try:
        save(planned(), file)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(old)
    assert file.stat().st_mode & 0o777 == 0o640


def circular():
    out = []
    out.append(out)
    return out


@pytest.mark.parametrize(
    "extra", [object(), {"x": {1, 2}}, np.zeros(2), float("nan"), {"a": [1e999]}, circular(), b"x"],
    ids=["object", "set", "array", "nan", "inf", "circular", "bytes"],
)  # fmt: skip
def test_extra_that_is_no_plain_data_is_refused(extra, file):
    save(planned(), file)
    before = file.read_bytes()
    with pytest.raises(TypeError, match=r"save: extra"):
        save(planned(), file, extra=extra)
    left_alone(file, before)


@pytest.mark.parametrize("extra", [None, 0, "é\ud800", [1, 2.5, None], {"a": {"b": [True]}}])
def test_extra_comes_back_as_it_was(extra, file):
    save(planned(), file, extra=extra)
    assert load(planned(), file).extra == extra


# Averages


def stepped(half=None, steps=2):
    """Return an arena whose averages are not its weights, and its driver."""
    arena = planned("adamw", half=half, ema=True)
    step = OptimizerStep(arena, lr=0.1, ema_decay=0.5, clear_grad=False)
    for name in SHAPES:
        parameter = arena.plan.parameters[name]
        arena[name] = 2.0
        arena[parameter.half_gradient or parameter.gradient] = 1.0 if half != "bf16" else 0x3F80
    for _ in range(steps):
        step()
    return arena, step


@pytest.mark.parametrize("half", [None, "fp16", "bf16"])
def test_s41_a_file_saved_inside_averaged_says_what_is_what(half, tmp_path):
    arena, _step = stepped(half)
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    save(arena, outside)
    live = values_of(arena)
    with averaged(arena):
        save(arena, inside)
        assert not np.array_equal(arena.download("fc.weight"), live["fc.weight"])
    same(load_file(inside), load_file(outside))
    same(load_file(inside), live)
    assert not np.array_equal(live["fc.weight"], live["ema.fc.weight"])
    assert parts(inside)[1]["swapped"] is True
    other = planned("adamw", half=half, ema=True)
    load(other, inside)
    same(values_of(other), live)
    assert not other.owner.swapped


def test_s41_a_load_inside_averaged_is_refused(file):
    arena, _step = stepped()
    save(arena, file)
    with averaged(arena):
        before = host_bytes(arena)
        with pytest.raises(RuntimeError, match="load: the averaged weights are swapped in"):
            load(arena, file)
        np.testing.assert_array_equal(host_bytes(arena), before)
    load(arena, file)


def test_where_only_some_weights_are_exchanged_each_is_named_by_what_it_is(file):
    arena, _step = stepped()
    live, plan = values_of(arena), arena.plan
    span = plan.tensors["fc.weight"].span
    ops.sema_switch(arena, span, plan.tensors["fc.weight#E"].span, swap=True)
    save(arena, file)
    same(load_file(file), live)


@pytest.mark.parametrize("exchanged", [False, True])
def test_before_the_first_step_the_saved_average_is_the_weights(exchanged, file):
    arena = planned("adamw", ema=True)
    arena["fc.weight"] = np.arange(300, dtype=np.float32).reshape(3, 100)
    live = arena.download("fc.weight")
    if exchanged:
        ops.sema_switch(arena, swap=True)
    save(arena, file)
    found = load_file(file)
    for name in ("fc.weight", "ema.fc.weight"):
        np.testing.assert_array_equal(found[name], live)

"""A file fits any layout of the same parameters, and a driver goes on as the one that saved."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from plan import PlanError
from rangeops import load, save
from rangeops.kernels.half import to_half
from tests.checkpoint.filled import SHAPES, filled, planned, rewritten, same, values_of

HALVES = (None, "fp16", "bf16")
WEIGHTS = ("fc.weight", "square.weight", "empty.weight", "conv1.weight", "conv2.weight")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.safetensors"


def bits(arena, tensor):
    """Return a tensor's values as their bits, for halves of either kind."""
    return np.array(arena.download(tensor)).view("u2")


def halves_are_rounded(arena):
    """Hold half copies, and half averages, to their masters."""
    half, compared = arena.plan.config.half, 0
    for parameter in arena.plan.parameters.values():
        for copy, master in (
            (parameter.half_copy, parameter.weight),
            (parameter.half_ema, parameter.ema),
        ):
            if copy is not None:
                want = np.asarray(to_half(arena.download(master), half)).view("u2")
                np.testing.assert_array_equal(bits(arena, copy), want.reshape(copy.shape))
                compared += copy.numel
    assert compared


@pytest.mark.parametrize("here", HALVES)
@pytest.mark.parametrize("there", HALVES)
def test_a_file_fits_every_half_format_and_its_copies_are_rounded(here, there, file, device):
    arena = filled(half=here, ema=True)
    arena["fc.weight"] = np.geomspace(1e-9, 60000, 300).reshape(3, 100).astype(np.float32)
    save(arena, file)
    other = planned(half=there, ema=True, device=device)
    load(other, file)
    same(values_of(other), values_of(arena))
    if there:
        halves_are_rounded(other)
    back = planned(half=here, ema=True)
    save(other, file)
    load(back, file)
    same(values_of(back), values_of(arena))
    assert back.groups.steps() == arena.groups.steps()


@pytest.mark.parametrize("order", [slice(None, None, -1), np.s_[3, 2, 5, 0, 6, 4, 1]], ids=str)
def test_a_file_fits_any_order_of_parameters(order, file):
    arena = filled("lamb", half="bf16", ema=True)
    save(arena, file)
    names = np.array(list(SHAPES))[order if isinstance(order, slice) else list(order)].tolist()
    other = planned("lamb", names=names, half="fp16", ema=True)
    assert [t.name for t in other.plan.weights()] != [t.name for t in arena.plan.weights()]
    load(other, file)
    same(values_of(other), values_of(arena))
    halves_are_rounded(other)
    assert other.groups.steps() == arena.groups.steps()
    assert {n: other.groups.of(n) for n in SHAPES} == {n: arena.groups.of(n) for n in SHAPES}
    assert other.groups.settings("head") == {"lr": 10.0, "weight_decay": 0.5}


@pytest.mark.parametrize("accumulate", [True, False])
def test_a_file_fits_plans_that_accumulate_and_not(accumulate, file):
    arena = filled(half="fp16", accumulate=accumulate)
    save(arena, file)
    other = planned(half="fp16", accumulate=not accumulate)
    load(other, file)
    same(values_of(other), values_of(arena))


def test_a_file_without_averages_starts_them_as_the_weights(file):
    arena = filled("adamw")
    save(arena, file)
    other = filled("adamw", seed=2, half="fp16", ema=True)
    with pytest.raises(PlanError, match=r"the plan has ema\.\S+, the file has none"):
        load(other, file)
    found = load(other, file, strict=False)
    assert set(found.missing) == {f"ema.{name}" for name in SHAPES} and not found.unexpected
    for name in SHAPES:
        np.testing.assert_array_equal(other.download(f"{name}#E"), arena.download(name))
    halves_are_rounded(other)


def test_a_file_with_averages_fits_a_plan_without(file):
    arena = filled("adamw", ema=True)
    save(arena, file)
    other = planned("adamw")
    found = load(other, file, strict=False)
    assert set(found.unexpected) == {f"ema.{name}" for name in SHAPES} and not found.missing
    same(values_of(other), {n: v for n, v in values_of(arena).items() if n[:4] != "ema."})


def test_only_the_average_that_is_missing_starts_as_its_weights(file):
    arena = filled(ema=True)
    save(arena, file)
    rewritten(file, file, tensors=lambda a: {n: v for n, v in a.items() if n != "ema.fc.weight"})
    other = filled(seed=2, ema=True)
    assert load(other, file, strict=False).missing == ("ema.fc.weight",)
    want = values_of(arena)
    same(values_of(other), want | {"ema.fc.weight": want["fc.weight"]})


# Parameters that one of the two does not train, or does not have


def test_a_file_of_a_frozen_parameter_lets_another_plan_train_it(file):
    arena = filled(fixed=["conv2.weight"], ema=True)
    save(arena, file)
    assert "m.conv2.weight" not in load_file(file) and "ema.conv2.weight" not in load_file(file)
    other = filled(seed=2, ema=True)
    found = load(other, file, strict=False)
    assert set(found.missing) == {f"{s}.conv2.weight" for s in ("m", "v", "ema")}
    assert other.groups.frozen == ("conv1.weight",)  # by hand, of the run; conv2 by its plan alone
    got = values_of(other)
    for moment in ("m", "v"):
        assert not got[f"{moment}.conv2.weight"].any()
    np.testing.assert_array_equal(got["ema.conv2.weight"], arena.download("conv2.weight"))
    same({n: got[n] for n in values_of(arena)}, values_of(arena))


def test_a_file_of_a_trained_parameter_fits_a_plan_that_froze_it(file):
    arena = filled(ema=True, half="fp16")
    save(arena, file)
    other = planned(fixed=["conv2.weight"], ema=True, half="bf16")
    found = load(other, file, strict=False)
    assert set(found.unexpected) == {f"{s}.conv2.weight" for s in ("m", "v", "ema")}
    want = values_of(arena)
    same(values_of(other), {n: v for n, v in want.items() if n not in found.unexpected})
    assert not found.missing and set(other.groups.frozen) == {"conv1.weight", "conv2.weight"}
    np.testing.assert_array_equal(
        bits(other, "conv2.weight#A16"), np.asarray(to_half(want["conv2.weight"], "bf16"))
    )


def test_what_a_file_lacks_keeps_its_weights_and_begins_anew(file):
    arena = filled()
    save(arena, file)
    lacks = {"fc.weight", "m.fc.weight", "v.fc.weight", "stats.bn.var"}
    rewritten(file, file, tensors=lambda a: {n: v for n, v in a.items() if n not in lacks})
    other = filled(seed=2)
    kept = values_of(other)
    found = load(other, file, strict=False)
    assert set(found.missing) == lacks
    want = values_of(arena) | {n: kept[n] for n in ("fc.weight", "stats.bn.var")}
    zeros = dict.fromkeys(("m.fc.weight", "v.fc.weight"), np.zeros((3, 100), np.float32))
    same(values_of(other), want | zeros)
    assert other.groups.steps() == arena.groups.steps() | {"fc.weight": 0}


@pytest.mark.parametrize("lacks", ["m", "v"])
def test_half_of_a_tensors_moments_are_none(lacks, file):
    """A second moment of zero at step 100 would be a correction of nothing."""
    arena = filled()
    save(arena, file)
    name = f"{lacks}.fc.weight"
    rewritten(file, file, tensors=lambda a: {n: v for n, v in a.items() if n != name})
    other = filled(seed=2)
    found = load(other, file, strict=False)
    assert set(found.missing) == {"m.fc.weight", "v.fc.weight"}
    got = values_of(other)
    assert not got["m.fc.weight"].any() and not got["v.fc.weight"].any()
    assert other.groups.steps() == arena.groups.steps() | {"fc.weight": 0}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "lamb", "lars"])
def test_moments_of_another_optimizer_begin_anew(optimizer, file):
    arena = filled(optimizer, ema=True)
    save(arena, file)
    other = filled("adamw", seed=2, ema=True)
    found = load(other, file, strict=False)
    moments = {f"{letter}.{name}" for letter in "mv" for name in SHAPES}
    assert set(found.missing) == moments
    assert set(found.unexpected) == values_of(arena).keys() & moments
    got, want = values_of(other), values_of(arena)
    for name, values in got.items():
        zeros = np.zeros_like(values)
        np.testing.assert_array_equal(values, zeros if name in moments else want[name], name)
    assert set(other.groups.steps().values()) == {0}
    assert other.scalars.step == arena.scalars.step

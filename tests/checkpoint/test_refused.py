"""Files that are damaged, hostile or of something else: refused, and nothing is written."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from plan import PlanError
from rangeops import OptimizerStep, load, save
from tests.checkpoint.filled import (
    changed,
    everything,
    filled,
    planned,
    refused,
    rewritten,
    same,
    setter,
    values_of,
)

MUTATIONS = 3000


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return a file that is all right, of one that has trained."""
    file = tmp_path_factory.mktemp("good") / "run.safetensors"
    save(filled(ema=True), file, extra={"epoch": 1})
    return file


# Bytes


def test_the_good_file_is_not_refused(good, target):
    before = everything(target)
    load(target, good)
    assert everything(target) != before
    same(values_of(target), values_of(filled(ema=True)))


def test_a_file_of_any_other_length_is_refused(good, target, tmp_path):
    data, file = good.read_bytes(), tmp_path / "short.safetensors"
    (header,) = struct.unpack("<Q", data[:8])
    lengths = {*range(12), header, header + 7, header + 8, header + 9, len(data) - 1}
    lengths |= {*np.random.default_rng(3).integers(12, len(data), 60).tolist()}
    for length in sorted(lengths):
        file.write_bytes(data[:length])
        refused(target, file)
    file.write_bytes(data + b"\0")
    refused(target, file)


def test_no_file_is_an_oserror(target, tmp_path):
    before = everything(target)
    for file in (tmp_path / "none.safetensors", tmp_path / "none.json", tmp_path):
        with pytest.raises(OSError):
            load(target, file)
    assert everything(target) == before


def mutated(data, header, rng):
    """Return the bytes with a few of the header changed, removed, doubled or exchanged."""
    out = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at, other = (int(n) for n in rng.integers(0, header, 2))
        how = rng.integers(5)
        if how == 0:
            out[at] ^= 1 << int(rng.integers(8))
        elif how == 1:
            out[at] = b'0123456789-.eE"[]{},:\\ntfN'[int(rng.integers(26))]
        elif how == 2:
            out[at], out[other] = out[other], out[at]
        else:  # the length is set right again, so that what follows is read
            piece = out[at : at + int(rng.integers(1, 30))] if how == 3 else b""
            out[at : at + (0 if how == 3 else int(rng.integers(1, 30)))] = piece
            if at >= 8:
                size = header + len(out) - len(data)
                out[:8] = struct.pack("<Q", size)
    return bytes(out)


def test_no_mutation_of_a_header_is_half_loaded(good, target, tmp_path):
    """What still is a file of this plan may load; all else is refused and changes nothing."""
    data, file, rng = good.read_bytes(), tmp_path / "mutated.safetensors", np.random.default_rng(4)
    header = 8 + struct.unpack("<Q", data[:8])[0]
    start, before = target.memory.copy(), everything(target)
    state, counts = target.groups.state(), {True: 0, False: 0}
    for count in range(MUTATIONS):
        file.write_bytes(mutated(data, header, rng))
        try:
            load(target, file, strict=bool(count % 2))
        except (PlanError, OSError):
            counts[False] += 1
            assert everything(target) == before, count
        else:
            counts[True] += 1
            assert all(np.isfinite(v).all() for v in target.scalars.host_values().values())
            target.memory[:] = start
            target.groups.restore(state)
            target.groups.rest([])
            target.owner.waiting, target.owner.options = False, {}
    assert min(counts.values()) > MUTATIONS // 50


# Tensors


WRONG_TENSORS = {
    "shape": changed("fc.weight", lambda a: a[:2].copy()),
    "flat": changed("fc.weight", lambda a: a.reshape(-1)),
    "transposed": changed("square.weight", lambda a: a.T.copy()),
    "f16": changed("fc.weight", lambda a: a.astype(np.float16)),
    "f64": changed("m.fc.weight", lambda a: a.astype(np.float64)),
    "i32": changed("stats.bn.mean", lambda a: a.view(np.int32)),
    "empty": changed("ema.empty.weight", lambda a: np.zeros(1, np.float32)),
}


@pytest.mark.parametrize("wrong", WRONG_TENSORS)
def test_a_tensor_of_another_shape_or_type_is_refused(wrong, good, target, tmp_path):
    file = rewritten(good, tmp_path / "wrong.safetensors", tensors=WRONG_TENSORS[wrong])
    refused(target, file, r"load: \S+ got [FI]\d+ .*, the plan has F32")


@pytest.mark.parametrize("name", ["fc.weight", "v.conv1.weight", "ema.fc.bias", "stats.bn.var"])
def test_a_missing_tensor_and_one_too_many_are_refused_strictly(name, good, target, tmp_path):
    def without(arrays):
        del arrays[name]

    file = rewritten(good, tmp_path / "less.safetensors", tensors=without)
    refused(target, file, f"the plan has {name}, the file has none", strict=[True])
    extra = rewritten(
        good, tmp_path / "more.safetensors", lambda arrays: arrays | {f"{name}.x": arrays[name]}
    )
    refused(target, extra, f"the file has {name}.x, the plan has none", strict=[True])


def test_a_file_of_another_optimizer_is_refused_strictly(target, tmp_path):
    for optimizer in ("sgd", "lion", "adam", "lamb"):
        save(filled(optimizer, ema=True), tmp_path / "other.safetensors")
        message = f"the file is of {optimizer}, the plan for adamw"
        refused(target, tmp_path / "other.safetensors", message, strict=[True])


# Facts


NUMBERS = (float("nan"), float("inf"), -1, "x", None, [], {}, True, "0.5", 10**60, 10**400)
LR, STEP, TENSOR_STEP = (
    setter("scalars", "lr"),
    setter("scalars", "step"),
    setter("steps", "fc.bias"),
)
HEAD = setter("groups", "groups", "head", "settings")
OF, FROZEN = setter("groups", "groups", "head", "of"), setter("groups", "frozen")

WRONG_FACTS = {
    **{f"lr-{k}": LR(value) for k, value in enumerate(NUMBERS)},
    **{f"step-{k}": STEP(value) for k, value in enumerate((*NUMBERS, 2**31, 0.5, 3.0))},
    **{f"tensor-{k}": TENSOR_STEP(value) for k, value in enumerate((*NUMBERS, 2**31, 0.5, 3.0))},
    "loss-scale-0": setter("scalars", "loss_scale")(0),
    "beta1-1": setter("scalars", "beta1")(1.0),
    "interval-0": setter("scalars", "growth_interval")(0),
    "group-unknown": HEAD({"speed": 1.0}),
    "group-beta-2": HEAD({"beta1": 2.0}),
    "group-betas": HEAD({"betas": [0.9, 2]}),
    **{f"group-lr-{k}": HEAD({"lr": value}) for k, value in enumerate(NUMBERS[:4])},
    "group-nan": HEAD({"beta2": float("nan")}),
    "group-decay": HEAD({"decay": ["l2"]}),
    "group-choice": HEAD({"maximize": 1}),
    "group-none": HEAD(None),
    "group-list": setter("groups", "groups")([]),
    "of-string": OF("fc.bias"),
    "of-number": OF([1]),
    "of-list": OF([["fc.bias"]]),
    "of-two-groups": OF(["fc.weight"]),
    "frozen-dict": FROZEN([{}]),
    "frozen-none": FROZEN(None),
    "resting-list": setter("groups", "resting")([["fc.bias"]]),
    **{f"{k}-list": setter(k)([]) for k in ("scalars", "steps", "groups", "options", "config")},
    **{f"{k}-none": setter(k)(None) for k in ("scalars", "steps", "groups", "options", "config")},
    **{f"no-{k}": (lambda facts, k=k: facts.pop(k) and None) for k in (
        "scalars", "steps", "groups", "options", "config", "extra",
    )},
    "no-step": lambda facts: facts["scalars"].pop("step") and None,
    "not-json": lambda facts: '{"scalars": {',
    "a-list": lambda facts: [facts],
    "a-number": lambda facts: 5,
    "null": lambda facts: "null",
    "deep": lambda facts: "[" * 100_000 + "]" * 100_000,
    "long-number": lambda facts: '{"scalars": ' + "9" * 5000 + "}",
    "pieces-number": setter("pieces")(7),
    "pieces-short": setter("pieces")({"fc.weight": [0, 300]}),
    "pieces-before": setter("pieces")({"fc.weight": [-5, 295, [3, 100]]}),
    "pieces-behind": setter("pieces")({"fc.weight": [5, 305, [3, 100]]}),
    "pieces-longer": setter("pieces")({"fc.bias": [0, 300, [300]]}),
    "pieces-fraction": setter("pieces")({"fc.weight": [0.5, 300, [3, 100]]}),
    "pieces-hole": setter("pieces")({"fc.bias": [5, 10, [10]]}),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_FACTS)
def test_facts_that_cannot_be_are_refused(wrong, good, target, tmp_path):
    refused(target, rewritten(good, tmp_path / "wrong.safetensors", facts=WRONG_FACTS[wrong]))


STRICTLY = {
    "unknown-step": (setter("steps", "nobody")(3), "the file has the step of nobody"),
    "no-step": (lambda f: f["steps"].pop("fc.bias") and None, "the plan has the step of fc.bias"),
    "unknown-scalar": (setter("scalars", "nobody")(3.0), "the file has scalar nobody"),
    "poisoned": (setter("scalars", "poisoned")(1), "the file has scalar poisoned"),
    "no-scalar": (lambda f: f["scalars"].pop("loss_scale") and None, "plan has scalar loss_scale"),
    "unknown-member": (OF(["square.weight", "nobody"]), "the file has the group of nobody"),
    "no-member": (OF([]), "the plan has the group of square.weight"),
    "unknown-frozen": (FROZEN(["nobody"]), "the file has frozen tensor nobody"),
    "unknown-resting": (setter("groups", "resting")(["nobody"]), "file has resting tensor nobody"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", STRICTLY)
def test_facts_about_others_are_refused_strictly_and_left_out_else(wrong, good, target, tmp_path):
    change, match = STRICTLY[wrong]
    file = rewritten(good, tmp_path / "wrong.safetensors", facts=change)
    refused(target, file, match, strict=[True])
    load(target, file, strict=False)
    assert "nobody" not in json.dumps(target.groups.state())
    assert target.scalars.poisoned == 0


def test_own_scalars_are_checked_like_all_others(tmp_path):
    own = {"scalars": {"gamma": 0.5}}
    save(planned(**own), tmp_path / "run.safetensors")
    for value in (float("nan"), "0.5", None, 1e39, [0.5]):
        change = setter("scalars", "gamma")(value)
        file = rewritten(tmp_path / "run.safetensors", tmp_path / "wrong.safetensors", facts=change)
        refused(filled(**own), file)
    refused(filled(), tmp_path / "run.safetensors", "the file has scalar gamma", strict=[True])
    load(filled(), tmp_path / "run.safetensors", strict=False)


@pytest.mark.parametrize("wrong", [{"format": "pt"}, {"version": "2"}, {"version": "1.0"}])
def test_another_format_or_version_is_refused(wrong, good, target, tmp_path):
    file = rewritten(good, tmp_path / "wrong.safetensors", **wrong)
    refused(target, file, "says format '.*', version '.*', expected 'rangeops', 1")


def test_a_refused_file_leaves_a_driver_going(good, tmp_path):
    arena = filled(ema=True)
    step = OptimizerStep(arena, lr=0.1, ema_warmup=True)
    options = setter("options")({"ema_warmup": False})
    other = rewritten(good, tmp_path / "other.safetensors", facts=options)
    refused(arena, other, "ema_warmup", strict=[True])
    step()
    assert arena.scalars.step == 1

"""Who drives an adopted module: new optimizers, parts of it, copies (S43, S44, S48, S51)."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from plan import PlanError  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.torch.models import WHERE, copies, far, run, two_layers, two_layers_loss  # noqa: E402


def test_s43_a_second_optimizer_over_other_parameters_is_refused():
    """https://github.com/NVIDIA/apex/issues/163"""
    one, two = two_layers(), two_layers()
    ranged.adopt(two, "adamw")
    first = ranged.AdamW(two[0].parameters(), lr=0.1, weight_decay=0.0)
    with pytest.raises(PlanError, match="drives, expected one for a module; adopt its parts apart"):
        ranged.AdamW(two[2].parameters(), lr=0.01, weight_decay=0.0)
    mine = torch.optim.AdamW(one[0].parameters(), lr=0.1, weight_decay=0.0)
    for model, optimizer in ((one, mine), (two, first)):
        run(model, optimizer, 3)
    assert far(one, two) < tolerance.APART


def test_s43_parts_that_are_adopted_apart_have_an_optimizer_each():
    """https://github.com/horovod/horovod/issues/1417"""
    one, two = two_layers(), two_layers()
    for part in (two[0], two[2]):
        ranged.adopt(part, "adamw")
    for model, lib in ((one, torch.optim), (two, ranged)):
        pair = [lib.AdamW(model[k].parameters(), lr=0.1 / (1 + k)) for k in (0, 2)]
        for _ in range(3):
            for optimizer in pair:
                optimizer.zero_grad()
            two_layers_loss(model).backward()
            for optimizer in pair:
                optimizer.step()
    assert far(one, two) < tolerance.APART
    assert [o.status().step for o in pair] == [3, 3]


def test_s43_an_optimizer_that_nobody_holds_is_in_nobodys_way():
    """https://github.com/horovod/horovod/issues/2559"""
    model = two_layers()
    ranged.adopt(model, "adamw")
    first = ranged.AdamW(model[0].parameters(), lr=0.1)
    torch.optim.lr_scheduler.ConstantLR(first)  # holds it in a cycle
    run(model, first, 2)
    del first
    second = ranged.AdamW(model[2].parameters(), lr=0.1)
    gc.collect()
    run(model, second, 2)
    assert second.status().step == 2


def test_a_closed_optimizer_gives_the_module_free():
    model = two_layers()
    ranged.adopt(model, "adamw")
    first = ranged.AdamW(model[0].parameters(), lr=0.1)
    first.close()
    run(model, ranged.AdamW(model[2].parameters(), lr=0.1), 1)
    with pytest.raises(RuntimeError, match=r"AdamW: got step\(\), but it was closed"):
        first.step()


def test_s44_a_new_optimizer_begins_anew_and_takes_over():
    """https://github.com/FluxML/Optimisers.jl/issues/163"""
    one, two = two_layers(), two_layers()
    holder = ranged.adopt(two, "adamw", ema=True)
    made = []
    for model, lib in ((one, torch.optim), (two, ranged)):
        for _ in range(2):
            made.append(lib.AdamW(model.parameters(), lr=0.1))
            run(model, made[-1], 3)
    assert far(one, two) < tolerance.APART
    assert made[-1].status().step == 3 == holder.arena.scalars.step
    before = copies(two)
    for act in (made[2].step, made[2].state_dict, made[2].sync):
        with pytest.raises(RuntimeError, match="but a new AdamW was made over its parameters"):
            act()
    assert all(torch.equal(p, before[n]) for n, p in two.named_parameters())
    run(two, made[-1], 1)
    run(one, made[1], 1)
    assert far(one, two) < tolerance.APART


def test_s44_a_new_optimizers_average_begins_as_the_weights():
    """https://github.com/keras-team/keras/issues/454"""
    model = two_layers()
    holder = ranged.adopt(model, "sgd", ema=True)
    run(model, ranged.SGD(model.parameters(), lr=0.5, ema_decay=0.99), 3)
    optimizer = ranged.SGD(model.parameters(), lr=0.0)
    with optimizer.averaged():
        assert torch.equal(model[0].weight, holder.slots[0].weight)
        inside = copies(model)
    assert all(torch.equal(p, inside[n]) for n, p in model.named_parameters())


def test_s44_the_old_optimizer_goes_on_if_the_new_one_cannot_be():
    """https://github.com/FluxML/Optimisers.jl/issues/163"""
    one, two = two_layers(), two_layers()
    ranged.adopt(two, "adamw")
    mine = torch.optim.AdamW(one.parameters(), lr=0.1)
    theirs = ranged.AdamW(two.parameters(), lr=0.1)
    for _ in range(2):
        run(one, mine, 2)
        run(two, theirs, 2)
        for options in ({"clip_norm": -1.0}, {"no_such_option": 1}, {"eps": 0.0}, {"beta1": 0.5}):
            with pytest.raises((ValueError, TypeError)):
                ranged.AdamW(two.parameters(), **options)
    assert far(one, two) < tolerance.APART


def test_s44_what_the_old_optimizer_was_given_goes_with_it():
    """https://github.com/keras-team/keras/issues/454"""
    model = two_layers()
    scalars = ranged.adopt(model, "sgd").arena.scalars
    ranged.SGD(model.parameters(), loss_scale=8.0, growth_interval=4, clip_norm=0.5)
    ranged.SGD(model.parameters(), norms=True)
    assert (scalars.growth_interval, scalars.clip_norm, scalars.loss_scale) == (2000, 0.0, 1.0)


def test_s44_moments_are_kept_where_it_is_asked_for():
    """https://github.com/FluxML/Optimisers.jl/issues/163"""
    one, two = two_layers(), two_layers()
    ranged.adopt(two, "adamw")
    mine = torch.optim.AdamW(one.parameters(), lr=0.1)
    run(one, mine, 6)
    run(two, ranged.AdamW(two.parameters(), lr=0.1), 3)
    run(two, ranged.AdamW(two.parameters(), lr=0.1, resume=True), 3)
    assert far(one, two) < tolerance.APART


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_s48_the_loss_is_scaled_in_float32(dtype):
    """https://github.com/tensorflow/tensorflow/issues/33484"""
    model = two_layers()
    ranged.adopt(model, "sgd")
    optimizer = ranged.SGD(model.parameters(), loss_scale=65536.0)
    loss = torch.tensor([0.5, 2.0**-14], dtype=dtype, device=WHERE, requires_grad=True)
    scaled = optimizer.scale(loss)
    assert scaled.tolist() == [32768.0, 4.0]
    assert scaled.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    scaled.sum().backward()
    if dtype not in (torch.float16,):
        assert loss.grad.tolist() == [65536.0, 65536.0]


def test_what_nobody_holds_is_collected():
    def train():
        model = two_layers()
        holder = ranged.adopt(model, "adamw", ema=True)
        optimizer = ranged.AdamW(model.parameters())
        run(model, optimizer, 2)
        return [weakref.ref(it) for it in (model, holder, optimizer, model[0].weight)]

    held = train()
    gc.collect()
    assert [ref() for ref in held] == [None] * 4


# Copies and pickles


def trained(ema=True, size=64):
    torch.manual_seed(1)
    model = nn.Linear(size, size).to(WHERE)
    ranged.adopt(model, "adamw", ema=ema)
    optimizer = ranged.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, size, device=WHERE)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, pickle.dumps,
                                 lambda o: torch.save(o, io.BytesIO())])  # fmt: skip
def test_s51_a_copy_of_an_optimizer_says_what_to_do(way):
    """https://github.com/HorizonRobotics/alf/pull/1678"""
    _, optimizer = trained()
    with pytest.raises(TypeError, match=r"AdamW: got a copy or a pickle .* load_state_dict\(\)"):
        way(optimizer)
    optimizer.step()


def storages(module):
    """Return the bytes of every storage that a module's objects hold, hooks included."""
    seen, todo, nbytes = set(), [module], {}
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            nbytes[storage.data_ptr()] = storage.nbytes()
            todo.append(thing.grad)
        elif isinstance(thing, dict):
            todo.extend(thing.values())
        elif isinstance(thing, list | tuple | set):
            todo.extend(thing)
        else:
            todo.extend(vars(thing).values() if hasattr(thing, "__dict__") else ())
            todo.append(getattr(thing, "__self__", None))
    return sum(nbytes.values())


@pytest.mark.parametrize("part", ["module", "parent", "child"])
def test_s51_a_copied_module_is_plain_and_of_the_weights_size(part):
    """https://github.com/huggingface/accelerate/issues/805"""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()).to(WHERE)
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    ranged.adopt(model, "adamw", ema=True)
    optimizer = ranged.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 1024, device=WHERE)).sum().backward()
    optimizer.step()
    source = {"module": model, "parent": nn.ModuleList([model]), "child": model[0]}[part]
    made = copy.deepcopy(source)
    assert storages(made) == 4 * (1024 * 1024 + 1024)
    assert far(source, made) == 0.0
    assert all(p.grad is None and not p._post_accumulate_grad_hooks for p in made.parameters())
    for module in made.modules():
        assert not module._state_dict_hooks and not module._load_state_dict_post_hooks
        assert not module._load_state_dict_pre_hooks
    before = copies(model)
    made.load_state_dict({k: torch.zeros_like(v) for k, v in made.state_dict().items()})
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    ranged.adopt(made, "sgd")
    assert len(model[0]._forward_hooks) == 1


def test_s51_a_copied_module_trains_as_any():
    """https://github.com/Bluefog-Lib/bluefog/issues/103"""
    model, optimizer = trained()
    made, plain = copy.deepcopy(model), nn.Linear(64, 64).to(WHERE)
    plain.load_state_dict(model.state_dict())
    for net in (made, plain):
        other = torch.optim.AdamW(net.parameters(), lr=0.1)
        net(torch.ones(1, 64, device=WHERE)).square().sum().backward()
        other.step()
    assert far(made, plain) == 0.0
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    optimizer.step()


@pytest.mark.parametrize("way", [pickle.dumps, lambda m: torch.save(m, io.BytesIO())])
def test_s51_a_pickled_module_says_what_to_do(way):
    """https://github.com/mosaicml/composer/pull/1941"""
    model, _ = trained()
    with pytest.raises(TypeError, match=r"save module.state_dict\(\), or a copy.deepcopy\(\)"):
        way(model)
    buffer = io.BytesIO()
    torch.save(copy.deepcopy(model), buffer)
    assert buffer.tell() < 20_000
    buffer.seek(0)
    assert far(model, torch.load(buffer, weights_only=False)) == 0.0


def test_what_adopt_returned_cannot_be_copied():
    holder = ranged.adopt(two_layers())
    with pytest.raises(TypeError, match="adopt: got a copy or a pickle"):
        copy.deepcopy(holder)

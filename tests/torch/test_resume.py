"""What a resumed run goes on from: scaler, averages, masters, steps (S39 to S42, S53)."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.torch.models import WHERE, copies, far, run, two_layers, two_layers_loss  # noqa: E402


def made(lr=0.05, ema_decay=0.9, ema=True, **options):
    """Return (module of two layers, what adopted it, its AdamW)."""
    model = two_layers()
    holder = ranged.adopt(model, "adamw", ema=ema, **options)
    return model, holder, ranged.AdamW(model.parameters(), lr=lr, ema_decay=ema_decay)


def train(model, optimizer, steps):
    """Train under autocast where weights are halves."""
    half = model[0].weight.dtype != torch.float32
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(WHERE, torch.bfloat16, enabled=half):
            loss = two_layers_loss(model)
        loss.backward()
        optimizer.step()


def through_a_file(*states):
    buffer = io.BytesIO()
    torch.save(states, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def load(model, optimizer, weights, state, order):
    """Load both, the module first or the optimizer first."""
    for which in order:
        if which == "model":
            model.load_state_dict(weights)
        else:
            optimizer.load_state_dict(state)


def averages(holder):
    return {s.name: holder.series(s, "ema").clone() for s in holder.slots}


def masters(holder):
    return {slot.name: slot.weight.clone() for slot in holder.slots}


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


ORDERS = [("model", "optimizer"), ("optimizer", "model")]


def scaled(bad, clean):
    """Return module, scalars and optimizer with its own scaler, after steps of either kind."""
    model = two_layers()
    holder = ranged.adopt(model, "adamw")
    options = {"loss_scale": 1024.0, "growth_interval": 4, "hysteresis": 3}
    optimizer = ranged.AdamW(model.parameters(), **options)
    for step in range(bad + clean):
        optimizer.zero_grad()
        optimizer.scale(two_layers_loss(model)).backward()
        if step < bad:
            model[0].weight.grad[0, 0] = float("nan")
        optimizer.step()
    return model, holder.arena.scalars, optimizer


@pytest.mark.parametrize("bad", [0, 2])
def test_s39_the_scaler_goes_on_where_it_was(bad):
    """https://github.com/facebookresearch/metaseq/issues/3"""
    first, scalars, optimizer = scaled(bad, 3)
    weights, state = through_a_file(first.state_dict(), optimizer.state_dict())
    second, again, resumed = scaled(0, 1)
    load(second, resumed, weights, state, ORDERS[0])
    names = ("growth_tracker", "hysteresis_tracker", "skipped_steps", "floor_hits", "loss_scale")
    assert [again.get(n) for n in names] == [scalars.get(n) for n in names]
    assert (again.growth_tracker, again.skipped_steps) == (3, bad)
    whole, want, _ = scaled(bad, 4)
    resumed.zero_grad()
    resumed.scale(two_layers_loss(second)).backward()
    resumed.step()
    assert [again.get(n) for n in names] == [want.get(n) for n in names]
    assert far(whole, second) == 0.0
    if not bad:
        assert again.loss_scale == 2048.0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("half", [None, "bf16", "fp16"])
def test_s40_averages_and_masters_do_not_depend_on_the_order_of_loading(half, order):
    """https://github.com/m2lines/Samudra/issues/282"""
    first, holder, optimizer = made(half=half)
    train(first, optimizer, 5)
    weights, state = through_a_file(first.state_dict(), optimizer.state_dict())
    second, again, resumed = made(half=half)
    train(second, resumed, 2)
    load(second, resumed, weights, state, order)
    assert equal(averages(again), averages(holder)) and equal(masters(again), masters(holder))
    assert far(first, second) == 0.0
    for model, its in ((first, optimizer), (second, resumed)):
        train(model, its, 3)
    assert equal(averages(again), averages(holder)) and equal(masters(again), masters(holder))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("half", [None, "bf16"])
def test_s40_weights_of_another_model_begin_their_averages(half, order):
    """https://github.com/m2lines/Samudra/pull/313"""
    first, _, optimizer = made(half=half)
    train(first, optimizer, 5)
    second, holder, resumed = made(half=half)
    load(second, resumed, first.state_dict(), optimizer.state_dict(), order)
    foreign = {name: torch.randn_like(p.float()) for name, p in first.state_dict().items()}
    second.load_state_dict(foreign)
    assert equal(masters(holder), {s.name: foreign[s.name] for s in holder.slots})
    assert equal(averages(holder), masters(holder))
    load(second, resumed, first.state_dict(), optimizer.state_dict(), order)
    train(second, resumed, 1)
    second[0].load_state_dict(first[0].state_dict())  # the same weights, a step later
    assert equal(
        {n: v for n, v in averages(holder).items() if n.startswith("0.")},
        {n: v for n, v in masters(holder).items() if n.startswith("0.")},
    )
    assert not torch.equal(averages(holder)["2.weight"], masters(holder)["2.weight"])


def test_a_partial_state_dict_begins_the_averages_of_what_it_has():
    model, holder, optimizer = made()
    train(model, optimizer, 4)
    kept = averages(holder)
    model.load_state_dict({"0.weight": torch.ones(4, 3)}, strict=False)
    now = averages(holder)
    assert torch.equal(now.pop("0.weight").cpu(), torch.ones(4, 3))
    del kept["0.weight"]
    assert equal(now, kept)


def test_a_state_dict_without_averages_begins_them():
    plain = two_layers()
    mine = torch.optim.AdamW(plain.parameters(), lr=0.05)
    run(plain, mine, 3)
    model, holder, optimizer = made()
    train(model, optimizer, 4)
    optimizer.load_state_dict(mine.state_dict())
    assert equal(averages(holder), masters(holder))


@pytest.mark.parametrize("halves", [(None, "bf16"), ("bf16", None), ("bf16", "fp16")])
def test_a_checkpoint_fits_another_half_format(halves):
    first, holder, optimizer = made(half=halves[0])
    train(first, optimizer, 5)
    second, again, resumed = made(half=halves[1])
    load(second, resumed, first.state_dict(), optimizer.state_dict(), ORDERS[0])
    assert equal(averages(again), averages(holder)) and equal(masters(again), masters(holder))
    for slot in again.slots:
        assert torch.equal(slot.data, slot.weight.to(slot.data.dtype))


@pytest.mark.parametrize("half", [None, "bf16"])
def test_s41_a_checkpoint_inside_averaged_has_true_names(half):
    """https://github.com/mir-group/nequip/pull/590"""
    first, holder, optimizer = made(half=half)
    train(first, optimizer, 5)
    live, average = masters(holder), averages(holder)
    with optimizer.averaged() as module:
        weights, state = through_a_file(module.state_dict(), optimizer.state_dict())
    assert equal(masters(holder), live) and equal(averages(holder), average)
    second, again, resumed = made(half=half)
    load(second, resumed, weights, state, ORDERS[0])
    assert equal(masters(again), live) and equal(averages(again), average)
    assert far(first, second) == 0.0
    for name, value in weights.items():
        assert torch.equal(value, average[name].to(value.dtype))


def test_s41_nothing_is_loaded_inside_averaged():
    """https://github.com/atomistic-machine-learning/schnetpack/pull/785"""
    model, holder, optimizer = made()
    train(model, optimizer, 3)
    live, average, state = masters(holder), averages(holder), optimizer.state_dict()
    with optimizer.averaged():
        with pytest.raises(RuntimeError, match="the averaged weights are swapped in"):
            optimizer.load_state_dict(state)
        with pytest.raises(RuntimeError, match="the averaged weights are swapped in"):
            model.load_state_dict(two_layers().state_dict())
    assert equal(masters(holder), live) and equal(averages(holder), average)


def test_s42_a_step_inside_averaged_is_an_error():
    """https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186"""
    model, holder, optimizer = made()
    train(model, optimizer, 3)
    live, average = masters(holder), averages(holder)
    with optimizer.averaged():
        optimizer.zero_grad()
        two_layers_loss(model).backward()
        with pytest.raises(RuntimeError, match="the averaged weights are swapped in"):
            optimizer.step()
    assert equal(masters(holder), live) and equal(averages(holder), average)
    assert holder.arena.scalars.step == 3


@pytest.mark.parametrize("half", [None, "bf16"])
def test_s42_averaged_inside_averaged_sees_the_averages(half):
    """https://github.com/harubaru/waifu-diffusion/pull/31"""
    model, holder, optimizer = made(half=half)
    train(model, optimizer, 3)
    live, average = copies(model), averages(holder)
    with optimizer.averaged(), holder.averaged() as inner:
        for name, param in inner.named_parameters():
            assert torch.equal(param, average[name].to(param.dtype))
    assert equal(copies(model), live)


def test_s53_the_checkpoints_betas_correct_the_bias():
    """https://github.com/tenstorrent/tt-metal/issues/53212"""
    one, two = two_layers(), two_layers()
    mine = torch.optim.AdamW(one.parameters(), lr=0.05, betas=(0.8, 0.95))
    run(one, mine, 3)
    ranged.adopt(two, "adamw")
    theirs = ranged.AdamW(two.parameters(), lr=0.5)
    two.load_state_dict(one.state_dict())
    theirs.load_state_dict(mine.state_dict())
    run(one, mine, 3)
    run(two, theirs, 3)
    assert far(one, two) < tolerance.APART


def test_s53_a_transposed_moment_is_refused():
    """https://github.com/tenstorrent/tt-metal/issues/53212"""
    model, holder, optimizer = made()
    train(model, optimizer, 3)
    state, before = optimizer.state_dict(), masters(holder)
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"].T
    kept = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"exp_avg of \(3, 4\) for 0.weight, expected \(4, 3\)"):
        optimizer.load_state_dict(state)
    assert equal(masters(holder), before)
    for index, entry in optimizer.state_dict()["state"].items():
        assert equal(entry, kept["state"][index])


def test_frozen_names_and_steps_by_name_are_resumed():
    first, holder, optimizer = made()
    train(first, optimizer, 2)
    holder.arena.groups.freeze("*.bias")
    train(first, optimizer, 3)
    second, again, resumed = made()
    load(second, resumed, *through_a_file(first.state_dict(), optimizer.state_dict()), ORDERS[0])
    assert again.arena.groups.frozen == ("0.bias", "2.bias")
    assert again.arena.groups.steps() == {"0.weight": 5, "0.bias": 2, "2.weight": 5, "2.bias": 2}
    assert again.arena.scalars.step == 5
    train(first, optimizer, 2)
    train(second, resumed, 2)
    assert far(first, second) == 0.0


def test_the_state_shows_steps_that_are_always_true():
    model, _, optimizer = made(ema=False)
    for count in range(3):
        assert [int(state["step"]) for state in optimizer.state.values()] == [count] * 4
        train(model, optimizer, 1)
    state = optimizer.state_dict()["state"]
    assert all(s["step"].dtype == torch.float32 and s["step"].dim() == 0 for s in state.values())
    other = torch.optim.AdamW(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).parameters())
    other.load_state_dict(optimizer.state_dict())

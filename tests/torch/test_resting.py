"""What has no gradient rests: norms, checks, steps, averages (S37, S38, S50)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rangeops.torch as ranged  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.torch.models import far, run, two_layers, two_layers_loss  # noqa: E402


def adopted(make, kind, **options):
    """Return (module of two layers, what adopted it, its optimizer over all parameters)."""
    model = two_layers()
    holder = ranged.adopt(model, kind, **options)
    return model, holder, make(model.parameters())


def give(param, value):
    param.grad = torch.full_like(param, value)


def test_s37_a_resting_tensor_counts_in_no_norm_and_no_clip():
    """https://github.com/ahrefs/ocannl/issues/673"""
    model, _, optimizer = adopted(lambda p: ranged.SGD(p, lr=0.1, clip_norm=1.0), "sgd")
    first, second = model[0].weight, model[2].weight
    model.zero_grad()
    give(first, 3.0)
    give(second, 40.0)
    optimizer.step()
    before = first.detach().clone()
    model.zero_grad()
    give(first, 3.0)
    optimizer.step()
    assert optimizer.status().grad_norm == pytest.approx(3 * 12**0.5, rel=tolerance.STEP)
    moved = (first.detach() - before).cpu()
    torch.testing.assert_close(
        moved, torch.full((4, 3), -0.028868), rtol=0, atol=tolerance.SIX_DIGITS
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_s37_old_gradients_that_are_not_finite_skip_one_step_only(frozen):
    """https://github.com/lcswillems/torch-ac/pull/5"""
    model, holder, optimizer = adopted(lambda p: ranged.SGD(p, lr=0.1, loss_scale=4.0), "sgd")
    first, second = model[0].weight, model[2].weight
    for step in range(4):
        model.zero_grad()
        give(first, 3.0)
        if step == 0:
            give(second, float("inf"))
            optimizer.step()
            second.requires_grad_(not frozen)
        else:
            optimizer.step()
    status = optimizer.status().read()
    assert (status.step, status.skipped_steps, status.loss_scale) == (3, 1, 2.0)
    assert holder.arena.groups.steps()["0.weight"] == 3


@pytest.mark.parametrize("count", [10, 100_000])
def test_s38_a_late_parameter_has_its_own_bias_correction(count):
    """https://github.com/deepspeedai/DeepSpeed/pull/8471"""
    model, _, optimizer = adopted(lambda p: ranged.Adam(p, lr=0.1), "adam")
    first, second = model[0].weight, model[2].weight
    for _ in range(10):
        optimizer.zero_grad()
        first.grad.fill_(0.5)
        optimizer.step()
    if count > 10:
        state = optimizer.state_dict()
        state["state"][0]["step"].fill_(float(count))
        optimizer.load_state_dict(state)
    assert optimizer.state[first]["step"].item() == count
    before = second.detach().clone()
    optimizer.zero_grad()
    second.grad.fill_(0.5)
    optimizer.step()
    assert optimizer.state[second]["step"].item() == 1
    torch.testing.assert_close(second.detach(), before - 0.1, rtol=0, atol=tolerance.SIX_DIGITS)


def test_s38_a_late_parameters_first_buffer_is_its_gradient():
    """https://github.com/deepspeedai/DeepSpeed/pull/8471"""
    model, _, optimizer = adopted(
        lambda p: ranged.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), "momentum"
    )
    first, second = model[0].weight, model[2].weight
    for step in range(4):
        before = second.detach().clone()
        optimizer.zero_grad()
        first.grad.fill_(0.5)
        if step == 3:
            second.grad.fill_(0.5)
        optimizer.step()
        moved = second.detach() - before
        want = torch.full_like(moved, -0.05 if step == 3 else 0.0)
        torch.testing.assert_close(moved, want, rtol=0, atol=tolerance.SIX_DIGITS)


def test_s38_a_group_that_is_added_later_begins_with_step_one():
    """https://github.com/deepspeedai/DeepSpeed/pull/8471"""
    one, two = two_layers(), two_layers()
    ranged.adopt(two, "adamw")
    for model, lib in ((one, torch.optim), (two, ranged)):
        optimizer = lib.AdamW(model[2].parameters(), lr=0.1)
        run(model, optimizer, 2)
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.05})
        run(model, optimizer, 2)
    assert far(one, two) < tolerance.APART


@pytest.mark.parametrize("kind", ["adamw", "momentum"])
def test_s38_a_checkpoint_whose_parameters_counted_apart_loads(kind):
    """https://github.com/deepspeedai/DeepSpeed/pull/8471"""

    def make(lib, params):
        options = {"momentum": 0.9, "dampening": 0.5} if kind == "momentum" else {}
        return (lib.SGD if kind == "momentum" else lib.AdamW)(params, lr=0.05, **options)

    one, two = two_layers(), two_layers()
    mine = make(torch.optim, one.parameters())
    for step in range(5):
        mine.zero_grad()
        two_layers_loss(one).backward()
        if step < 3:
            one[2].weight.grad = one[2].bias.grad = None
        if kind == "momentum":
            one[0].bias.grad = None  # has no buffer yet when it is saved
        mine.step()
    ranged.adopt(two, kind)
    theirs = make(ranged, two.parameters())
    two.load_state_dict(one.state_dict())
    theirs.load_state_dict(mine.state_dict())
    for model, optimizer in ((one, mine), (two, theirs)):
        run(model, optimizer, 3)
    assert far(one, two) < tolerance.APART
    saved = theirs.state_dict()["state"]
    if kind == "adamw":
        assert [int(state["step"]) for state in saved.values()] == [8, 8, 5, 5]


@pytest.mark.parametrize("frozen", [False, True])
def test_s50_the_average_of_what_rests_moves_on(frozen):
    """https://github.com/fadel/pytorch_ema/issues/9"""
    model, holder, optimizer = adopted(
        lambda p: ranged.SGD(p, lr=1.0, ema_decay=0.5), "sgd", ema=True
    )
    weight, slot = model[0].weight, holder.slots[0]
    weight.grad.fill_(1.0)
    optimizer.step()
    gap = holder.series(slot, "ema") - weight.detach()
    torch.testing.assert_close(gap, torch.full_like(gap, 0.5), rtol=0, atol=tolerance.SIX_DIGITS)
    weight.requires_grad_(not frozen)
    kept = weight.detach().clone()
    for _ in range(40):
        model.zero_grad()
        give(model[2].weight, 0.0)
        optimizer.step()
    assert torch.equal(weight.detach(), kept)
    assert (holder.series(slot, "ema") - kept).abs().max().item() < tolerance.SIX_DIGITS

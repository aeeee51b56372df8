"""Param groups: any number, each with settings of its own, edited by anybody (S45, S46, S47)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from plan import PlanError  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.torch.models import WHERE, copies, far, run, two_layers, two_layers_loss  # noqa: E402


def pair(kind, name, **options):
    """Return two (module, optimizer), torch's and ours, of the same start."""
    one, two = two_layers(), two_layers()
    ranged.adopt(two, kind)
    mine = getattr(torch.optim, name)(one.parameters(), **options)
    return (one, mine), (two, getattr(ranged, name)(two.parameters(), **options))


def both(pairs, steps):
    for model, optimizer in pairs:
        run(model, optimizer, steps)


@pytest.mark.parametrize("count", [31, 32, 233])
def test_s45_a_group_a_layer(count):
    """https://github.com/roboflow/rf-detr/pull/1409"""

    def build():
        torch.manual_seed(2)
        return nn.ModuleList(nn.Linear(2, 2) for _ in range(count)).to(WHERE)

    one, two = build(), build()
    ranged.adopt(two, "adamw")
    for model, lib in ((one, torch.optim), (two, ranged)):
        groups = [
            {"params": list(part.parameters()), "lr": 0.01 * 0.99**k}
            for k, part in enumerate(model)
        ]
        optimizer = lib.AdamW(groups)
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()
    assert far(one, two) < tolerance.ROUNDING


def test_s45_509_groups_of_28_settings_under_a_schedule():
    """https://github.com/roboflow/rf-detr/pull/1409"""

    def build():
        torch.manual_seed(2)
        return nn.ParameterList(torch.randn(3, 2) for _ in range(509)).to(WHERE)

    one, two = build(), build()
    ranged.adopt(two, "adamw")
    for model, lib in ((one, torch.optim), (two, ranged)):
        groups = [
            {
                "params": [param],
                "lr": 0.01 * 0.9 ** (k % 14),
                "weight_decay": 0.1 * (k % 2),
                "betas": (0.9, 0.95 + 0.001 * (k % 28)),
            }
            for k, param in enumerate(model)
        ]
        optimizer = lib.AdamW(groups)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)
        for step in range(5):
            for k, param in enumerate(model):
                param.grad = torch.full_like(param, 1.0 + k + step)
            optimizer.step()
            scheduler.step()
    assert far(one, two) < tolerance.APART
    assert len(two) == 509 == len(optimizer.param_groups)


def test_groups_may_differ_in_every_setting():
    one, two = two_layers(), two_layers()
    ranged.adopt(two, "momentum")
    for model, lib in ((one, torch.optim), (two, ranged)):
        groups = [
            {"params": [model[0].weight], "momentum": 0.9, "nesterov": True},
            {"params": [model[0].bias], "momentum": 0.5, "dampening": 0.3, "maximize": True},
            {"params": [model[2].weight], "weight_decay": 0.2},
            {"params": [model[2].bias], "lr": 0.2, "momentum": 0.8},
        ]
        run(model, lib.SGD(groups, lr=0.05), 5)
    assert far(one, two) < tolerance.APART


# What is edited later, or comes with a checkpoint

LATER = {
    "maximize": ("adamw", "AdamW", {"lr": 0.01}, {"maximize": True}),
    "betas": ("adam", "Adam", {"lr": 0.01}, {"betas": [0.5, 0.9], "eps": 1e-3}),
    "decoupled": ("adam", "Adam", {"lr": 0.01, "weight_decay": 0.5},
                  {"decoupled_weight_decay": True}),
    "nesterov": ("momentum", "SGD", {"lr": 0.01, "momentum": 0.9}, {"nesterov": True}),
    "momentum": ("momentum", "SGD", {"lr": 0.01, "dampening": 0.5}, {"momentum": 0.9}),
    "tensors": ("adamw", "AdamW", {"lr": 0.01}, {"lr": torch.tensor(0.02)}),
}  # fmt: skip


@pytest.mark.parametrize("name", LATER)
def test_s46_a_setting_that_is_edited_later_is_obeyed(name):
    """https://github.com/pytorch/pytorch/issues/109992"""
    kind, optimizer, options, edit = LATER[name]
    pairs = pair(kind, optimizer, **options)
    both(pairs, 3)
    for _, optimizer in pairs:
        optimizer.param_groups[0].update(edit)
    both(pairs, 3)
    assert far(pairs[0][0], pairs[1][0]) < tolerance.APART


@pytest.mark.parametrize("name", ["maximize", "nesterov", "betas", "decoupled", "momentum"])
def test_s46_a_setting_of_a_checkpoint_is_obeyed(name):
    """https://github.com/pytorch/pytorch/pull/68733"""
    kind, optimizer, options, edit = LATER[name]
    (one, mine), pair_of_ours = pair(kind, optimizer, **options)
    mine.param_groups[0].update(edit)
    run(one, mine, 3)
    two, theirs = pair_of_ours
    two.load_state_dict(one.state_dict())
    theirs.load_state_dict(mine.state_dict())
    both([(one, mine), (two, theirs)], 3)
    assert far(one, two) < tolerance.APART


def test_s46_adamw_goes_on_from_adam_as_torchs_does():
    """https://github.com/pytorch/pytorch/issues/109992"""
    saved = two_layers()
    adam = torch.optim.Adam(saved.parameters(), lr=0.01, weight_decay=0.5)
    run(saved, adam, 2)
    pairs = pair("adamw", "AdamW", lr=0.1)
    for model, optimizer in pairs:
        model.load_state_dict(saved.state_dict())
        optimizer.load_state_dict(adam.state_dict())
        assert optimizer.param_groups[0]["decoupled_weight_decay"] is True
    both(pairs, 3)
    assert far(pairs[0][0], pairs[1][0]) < tolerance.APART


REFUSED = {
    "amsgrad": ("adamw", "AdamW", {}, {"amsgrad": True}),
    "differentiable": ("adamw", "AdamW", {}, {"differentiable": True}),
    "nesterov": ("momentum", "SGD", {}, {"nesterov": True}),
    "momentum": ("sgd", "SGD", {}, {"momentum": 0.9}),
    "decay": ("adamw", "AdamW", {}, {"decay": "none"}),
    "lr": ("adamw", "AdamW", {}, {"lr": float("nan")}),
    "lr-negative": ("adamw", "AdamW", {}, {"lr": -1.0}),
    "lr-text": ("adamw", "AdamW", {}, {"lr": "x"}),
    "beta1": ("adamw", "AdamW", {}, {"betas": (2, 3)}),
    "betas": ("adamw", "AdamW", {}, {"betas": 0.9}),
    "weight_decay": ("adamw", "AdamW", {}, {"weight_decay": float("inf")}),
    "maximize": ("adamw", "AdamW", {}, {"maximize": "yes"}),
    "trust_coefficient": ("adamw", "AdamW", {}, {"trust_coefficient": 0.1}),
}


@pytest.mark.parametrize("through", ["group", "checkpoint", "new group"])
@pytest.mark.parametrize("name", REFUSED)
def test_s46_a_setting_that_cannot_be_is_refused_by_name(name, through):
    """https://github.com/pytorch/pytorch/issues/109992"""
    kind, optimizer, options, edit = REFUSED[name]
    model = two_layers()
    ranged.adopt(model, kind)
    made = getattr(ranged, optimizer)(model[0].parameters(), lr=0.01, **options)
    run(model, made, 2)
    before, groups = copies(model), [dict(group) for group in made.param_groups]
    with pytest.raises(ValueError, match=name.split("-")[0]):
        if through == "checkpoint":
            state = made.state_dict()
            state["param_groups"][0].update(edit)
            made.load_state_dict(state)
        elif through == "new group":
            made.add_param_group({"params": list(model[2].parameters()), **edit})
        else:
            made.param_groups[0].update(edit)
            made.step()
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    if through != "group":
        assert [dict(group) for group in made.param_groups] == groups
    made.param_groups[0].update(groups[0])
    for extra in edit.keys() - groups[0].keys():
        made.param_groups[0].pop(extra, None)
    run(model, made, 1)
    assert not torch.equal(model[0].weight, before["0.weight"])


# Surgery on param_groups


def surgery(lib, act):
    """Return the module after a step, ``act(optimizer, model, weight)`` and another step."""
    model = two_layers()
    if lib is ranged:
        ranged.adopt(model, "sgd")
    optimizer = lib.SGD([model[0].weight, model[0].bias], lr=0.1)
    run(model, optimizer, 1)
    act(optimizer, model)
    run(model, optimizer, 2)
    return model, optimizer


def take_out(optimizer, model):
    del optimizer.param_groups[0]["params"][0]


def put_another_list(optimizer, model):
    optimizer.param_groups[0]["params"] = [model[2].bias, model[0].weight]


def append_a_group(optimizer, model):
    like = optimizer.param_groups[0]
    optimizer.param_groups.append({**like, "params": [model[2].weight], "lr": 0.3})


def move_between_groups(optimizer, model):
    append_a_group(optimizer, model)
    optimizer.param_groups[1]["params"].append(optimizer.param_groups[0]["params"].pop())


@pytest.mark.parametrize("act", [take_out, put_another_list, append_a_group, move_between_groups])
def test_s47_surgery_on_param_groups_is_followed(act):
    """https://github.com/mosaicml/composer/pull/249"""
    one, _ = surgery(torch.optim, act)
    two, optimizer = surgery(ranged, act)
    assert far(one, two) < tolerance.ROUNDING
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held <= {id(p) for p in optimizer.state}


def test_s47_an_appended_group_takes_the_defaults():
    """https://github.com/mosaicml/composer/issues/1002"""

    def act(optimizer, model):
        optimizer.param_groups.append({"params": [model[2].weight]})

    model, optimizer = surgery(ranged, act)
    assert optimizer.param_groups[1]["lr"] == 0.1
    assert not torch.equal(model[2].weight, two_layers()[2].weight)


@pytest.mark.parametrize("foreign", ["appended", "twice", "in place"])
def test_s47_a_foreign_parameter_is_an_error(foreign):
    """https://github.com/graphdeco-inria/gaussian-splatting/issues/897"""
    model, optimizer = surgery(ranged, lambda *_: None)
    before, params = copies(model), optimizer.param_groups[0]["params"]
    stranger = nn.Parameter(torch.zeros(4, 3, device=WHERE))
    if foreign == "in place":
        params[0] = stranger
    else:
        params.append(params[0] if foreign == "twice" else stranger)
    two_layers_loss(model).backward()
    with pytest.raises(ValueError, match="twice" if foreign == "twice" else "no one arena holds"):
        optimizer.step()
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_group_that_does_not_fit_is_not_added():
    model = two_layers()
    ranged.adopt(model, "adamw")
    optimizer = ranged.AdamW(model[0].parameters())
    with pytest.raises(PlanError, match="no one arena holds"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, device=WHERE))]})
    assert len(optimizer.param_groups) == 1
    run(model, optimizer, 1)


def test_groups_that_others_wrote_are_sent_again():
    model = two_layers()
    holder = ranged.adopt(model, "sgd")
    optimizer = ranged.SGD(model.parameters(), lr=0.1)
    holder.arena.groups.reset()
    holder.arena.groups.freeze("*.bias")
    before = copies(model)
    run(model, optimizer, 1)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {"0.weight", "2.weight"}
    grad = model[0].weight.grad
    want = before["0.weight"] - 0.1 * grad
    assert (model[0].weight.detach() - want).abs().max().item() < tolerance.STORED

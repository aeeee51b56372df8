"""An optimizer of one's own over an adopted module: what a subclass of RangeOptimizer says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rangeops.torch as ranged  # noqa: E402
from plan import PlanError  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.torch.models import far, loss_of, tied, train  # noqa: E402


class MyLion(ranged.RangeOptimizer):
    """Lion's op under other names, with each beta a setting of its own."""

    kinds = ("lion",)
    state_names = (("momentum", "m"),)
    settings = ("beta1", "beta2")

    def __init__(self, params, lr=1e-4, beta1=0.9, beta2=0.99, weight_decay=0.0, **own):
        defaults = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay}
        super().__init__(params, defaults, **own)


class NoDecay(ranged.RangeOptimizer):
    """The least that there may be: no moments shown, no hyper-parameter but lr."""

    kinds = ("lion", "sgd")

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})


def adopted(make, kind="lion", **options):
    model = tied()
    ranged.adopt(model, kind, **options)
    return model, make(model.parameters())


def test_a_subclass_moves_the_model_as_the_librarys_own_does():
    one, mine = adopted(lambda p: MyLion(p, lr=3e-3, beta1=0.8, weight_decay=0.1, clip_norm=0.5))
    two, theirs = adopted(
        lambda p: ranged.Lion(p, lr=3e-3, betas=(0.8, 0.99), weight_decay=0.1, clip_norm=0.5)
    )
    train(one, mine, 5)
    train(two, theirs, 5)
    assert far(one, two) == 0.0 != far(one, tied())


def test_its_state_and_checkpoint_have_its_names():
    one, mine = adopted(lambda p: MyLion(p, lr=3e-3))
    train(one, mine, 4)
    state = mine.state_dict()
    assert state["param_groups"][0]["beta2"] == 0.99
    assert all(list(moments) == ["momentum"] for moments in state["state"].values())
    two, again = adopted(lambda p: MyLion(p, lr=1.0))
    two.load_state_dict(one.state_dict())
    again.load_state_dict(state)
    train(one, mine, 3, 4)
    train(two, again, 3, 4)
    assert far(one, two) == 0.0
    assert list(again.state[two.first.weight]) == ["momentum"]


def test_a_group_has_its_own_settings():
    model = tied()
    ranged.adopt(model, "lion")
    rest = [p for p in model.parameters() if p is not model.scale]
    optimizer = MyLion([{"params": rest, "lr": 0.0}, {"params": [model.scale]}], lr=0.25)
    loss_of(model).backward()
    optimizer.step()
    assert abs(model.scale.item() - 1.5) == 0.25  # Lion moves by lr times a sign
    assert torch.equal(model.first.weight, tied().first.weight.to(model.first.weight))
    optimizer.param_groups[1]["beta1"] = 0.0
    before, moment = model.scale.item(), optimizer.state[model.scale]["momentum"].item()
    model.scale.grad.fill_(-10 * moment)  # against the moment, which beta1 of 0.9 would follow
    optimizer.step()
    assert model.scale.item() - before == 0.25 * (1 if moment > 0 else -1)


def test_a_setting_that_nobody_reads_is_refused_by_name():
    _, optimizer = adopted(lambda p: MyLion(p, lr=3e-3))
    optimizer.param_groups[0]["eps"] = 1e-8
    with pytest.raises(ValueError, match="MyLion: param group 0: eps got 1e-08, which is"):
        optimizer.step()


def test_hyper_parameters_may_be_few():
    model, optimizer = adopted(lambda p: NoDecay(p, 0.1), "sgd")
    start = model.scale.item()
    loss_of(model).backward()
    want = start - 0.1 * model.scale.grad.item()
    optimizer.step()
    assert model.scale.item() == pytest.approx(want, rel=tolerance.STEP)
    assert optimizer.state_dict()["state"] == {}


def test_a_module_adopted_for_another_optimizer_is_refused():
    with pytest.raises(PlanError, match="NoDecay: the module was adopted for adam, expected lion "):
        adopted(lambda p: NoDecay(p, 0.1), "adam")


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "LARS", "LAMB", "Lion"])
def test_the_librarys_own_follow_the_same_contract(name):
    """A subclass says kinds, state_names and settings; it overrides nothing of the base."""
    kind = getattr(ranged, name)
    assert issubclass(kind, ranged.RangeOptimizer)
    contract = {"kinds", "state_names", "settings", "__init__", "__doc__", "__module__"}
    for part in kind.__mro__[: kind.__mro__.index(ranged.RangeOptimizer)]:
        hidden = {"__firstlineno__", "__static_attributes__"}  # of newer Pythons
        assert set(vars(part)) - hidden <= contract, part

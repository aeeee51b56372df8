"""State dicts that do not fit are refused by name; nothing is changed, no group's value either."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rangeops.torch as ranged  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.helpers import host_bytes  # noqa: E402
from tests.torch.models import far, run, two_layers  # noqa: E402

NAN, INF = float("nan"), float("inf")


def trained(kind="adamw", lib=ranged):
    """Return (module, its optimizer) after three steps."""
    model = two_layers()
    names = {"adamw": "AdamW", "momentum": "SGD", "lion": "Lion", "lamb": "LAMB"}
    if lib is ranged:
        ranged.adopt(model, kind, ema=True)
    options = {"momentum": 0.9} if kind == "momentum" else {}
    optimizer = getattr(lib, names[kind])(model.parameters(), lr=0.05, **options)
    run(model, optimizer, 3)
    return model, optimizer


def moment(key, make):
    """Return what changes one moment of the first parameter."""

    def change(state):
        state["state"][0][key] = make(state["state"][0][key])

    return change


def put(*path, value):
    """Return what puts a value at a place of the state dict."""

    def change(state):
        at = state
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def drop(*path):
    def change(state):
        at = state
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


def group(**values):
    return lambda state: state["param_groups"][0].update(values)


OWN = "rangeops"
MOMENTS = {
    "shape-broadcast": (lambda m: m[:1], r"of \(1, 3\) for 0.weight, expected \(4, 3\)"),
    "shape-one": (lambda m: m.new_zeros(1), r"of \(1,\) for 0.weight, expected \(4, 3\)"),
    "shape-none": (lambda m: m.new_zeros(()), r"of \(\) for 0.weight, expected \(4, 3\)"),
    "complex": (lambda m: m.to(torch.complex64), "of 0.weight: torch.complex64, expected floating"),
    "bool": (lambda m: m.bool(), "of 0.weight: torch.bool, expected floating"),
    "int": (lambda m: m.long(), "of 0.weight: torch.int64, expected floating"),
    "sparse": (lambda m: m.to_sparse(), "of 0.weight: a torch.sparse_coo tensor"),
    "meta": (lambda m: m.to("meta"), "of 0.weight: a torch.strided tensor on meta"),
    "numpy": (lambda m: m.cpu().numpy(), "of 0.weight: ndarray, expected a dense torch tensor"),
    "list": (lambda m: m.tolist(), "of 0.weight: list, expected a dense torch tensor"),
    "none": (lambda m: None, "of 0.weight: NoneType, expected a dense torch tensor"),
    "nan": (lambda m: m * NAN, "of 0.weight between nan and nan, expected finite values"),
    "infinite": (lambda m: m + INF, "of 0.weight between inf and inf, expected finite values"),
    "too-large": (lambda m: m.double() + 1e300, "of 0.weight between inf and inf"),
}
HOSTILE = {
    **{
        f"{key}-{name}": (moment(key, make), f"{key} {says}")
        for key in ("exp_avg", "exp_avg_sq")
        for name, (make, says) in MOMENTS.items()
    },
    "exp_avg_sq-negative": (moment("exp_avg_sq", lambda m: -m), "expected finite values >= 0"),
    "no-exp_avg_sq": (drop("state", 1, "exp_avg_sq"), "for 0.bias .* expected exp_avg, exp_avg_sq"),
    "no-step": (drop("state", 1, "step"), "for 0.bias .* expected exp_avg, exp_avg_sq, step"),
    "no-state-of-one": (drop("state", 2), r"got no state for 2.weight \(3 steps\)"),
    "an-empty-state": (put("state", value={}), r"got no state for 0.weight \(3 steps\)"),
    "no-state": (drop("state"), "got no 'state'"),
    "no-param_groups": (drop("param_groups"), "got no 'param_groups'"),
    "no-params": (drop("param_groups", 0, "params"), 'a dict with a list "params"'),
    "fewer-params": (put("param_groups", 0, "params", value=[0, 1]), "groups of"),
    "state-list": (put("state", value=[1]), "got state list, expected a dict"),
    "groups-dict": (put("param_groups", value={}), "got param_groups dict, expected a list"),
    "an-amsgrad-state": (
        put("state", 0, "max_exp_avg_sq", value=torch.zeros(4, 3)),
        "got .*max_exp_avg_sq for 0.weight",
    ),
    **{
        f"step-{value}": (put("state", 3, "step", value=value), "got step of 2.bias")
        for value in ("x", -1, None, 1.5, NAN, INF, 2**31, True, [1])
    },
    "step-two": (put("state", 3, "step", value=torch.ones(2)), "got step of 2.bias"),
    **{
        f"own-{name}-{value}": (put(OWN, name, value=value), f"got {name}")
        for name in ("step", "growth_tracker", "hysteresis_tracker", "floor_hits", "skipped_steps",
                     "loss_scale")
        for value in ("x", -1, None, NAN)
    },
    "own-scale-0": (put(OWN, "loss_scale", value=0), "got loss_scale 0"),
    "own": (put(OWN, value=3), "got rangeops 3, expected a dict"),
    "own-steps-x": (put(OWN, "steps", "2.bias", value="x"), "got step of 2.bias 'x'"),
    "own-steps-less": (drop(OWN, "steps", "2.bias"), "got steps without 2.bias"),
    "own-steps-more": (put(OWN, "steps", "3.bias", value=1), "got steps of '3.bias'"),
    "own-frozen": (put(OWN, "frozen", value=["none"]), "got frozen of 'none'"),
    "own-frozen-x": (put(OWN, "frozen", value=3), "got frozen 3, expected a list of names"),
    "own-weights": (put(OWN, "weights", "0.bias", value="x"), "got weights"),
    "ema-less": (drop(OWN, "ema", "0.bias"), "got ema without 0.bias"),
    "ema-more": (put(OWN, "ema", "x", value=torch.ones(1)), "got ema of 'x'"),
    "ema-shape": (put(OWN, "ema", "0.bias", value=torch.ones(1)), r"ema of \(1,\) for 0.bias"),
    "ema-complex": (put(OWN, "ema", "0.bias", value=torch.ones(4) + 0j), "0.bias: torch.complex"),
    "masters-shape": (put(OWN, "masters", value={"0.bias": torch.ones(1)}), "masters of .*0.bias"),
    "masters-x": (put(OWN, "masters", value={"0.bias": "x"}), "masters of 0.bias: str"),
    "lr-nan": (group(lr=NAN), "param group 0: lr: got nan"),
    "lr-x": (group(lr="x"), "param group 0: lr got 'x'"),
    "lr-negative": (group(lr=-1.0), "param group 0: lr: got -1.0"),
    "betas": (group(betas=(2, 3)), "param group 0: beta1: got 2.0"),
    "amsgrad": (group(amsgrad=True), "param group 0: amsgrad got True"),
    "momentum": (group(momentum=0.9), "param group 0: momentum got 0.9"),
}  # fmt: skip


def refuses(model, optimizer, state, says):
    """Assert that a state dict is refused with this sentence, and that nothing is changed."""
    arena = optimizer._adopted.arena
    optimizer.zero_grad()
    before, groups = (
        host_bytes(arena),
        copy.deepcopy([g | {"params": 0} for g in optimizer.param_groups]),
    )
    with pytest.raises(ValueError, match=says):
        optimizer.load_state_dict(state)
    assert (host_bytes(arena) == before).all()
    assert [g | {"params": 0} for g in optimizer.param_groups] == groups
    run(model, optimizer, 1)
    assert arena.scalars.step == 4


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_state_dict_is_refused_and_changes_nothing(name):
    change, says = HOSTILE[name]
    model, optimizer = trained()
    state = copy.deepcopy(optimizer.state_dict())
    change(state)
    refuses(model, optimizer, state, says)


@pytest.mark.parametrize("other", ["momentum", "lion"])
@pytest.mark.parametrize("lib", [ranged, torch.optim])
def test_the_state_of_another_optimizer_is_refused(other, lib):
    if lib is torch.optim and other == "lion":
        pytest.skip("torch has none")
    model, optimizer = trained()
    _, source = trained(other, lib)
    state = source.state_dict()
    refuses(model, optimizer, state, "load_state_dict got|param group 0: momentum got 0.9")
    state["param_groups"] = optimizer.state_dict()["param_groups"]
    with pytest.raises(ValueError, match="load the state of the same kind of optimizer"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("kind", ["momentum", "lion"])
def test_adamws_state_is_refused_by_others(kind):
    model, optimizer = trained(kind)
    _, source = trained()
    state = source.state_dict()
    state["param_groups"] = optimizer.state_dict()["param_groups"]
    refuses(model, optimizer, state, "got exp_avg, exp_avg_sq, step for 0.weight")


@pytest.mark.parametrize("value", [3, None, [], "x"])
def test_what_is_no_state_dict_is_refused(value):
    model, optimizer = trained()
    refuses(model, optimizer, value, "expected a state dict")


def test_a_fresh_optimizers_state_is_whole():
    """An empty ``state`` is what torch saves before the first step: moments and steps are zero."""
    model, optimizer = trained()
    fresh = torch.optim.AdamW(two_layers().parameters(), lr=0.05)
    optimizer.load_state_dict(fresh.state_dict())
    assert not any(value.any() for state in optimizer.state.values() for value in state.values())
    plain = two_layers()
    plain.load_state_dict(model.state_dict())
    mine = torch.optim.AdamW(plain.parameters(), lr=0.05)
    for net, its in ((model, optimizer), (plain, mine)):
        run(net, its, 2)
    assert far(plain, model) < tolerance.APART

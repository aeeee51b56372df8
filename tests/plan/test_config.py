"""PlanConfig and OptimizerKind: built-in kinds, kinds of one's own, scalars of one's own."""

import copy
import pickle

import pytest

from plan import MemoryPlan, OptimizerKind, PlanConfig, PlanError, Region, config

BUILT_IN = {
    "none": "", "sgd": "", "momentum": "M", "nesterov": "M", "adam": "MV", "adamw": "MV",
    "lars": "MN", "lamb": "MVN", "lion": "M",
}  # fmt: skip


@pytest.fixture
def registry(monkeypatch):
    """Forget afterwards what a test registers."""
    monkeypatch.setattr(config, "_KINDS", {k: config._KINDS[k] for k in BUILT_IN})


@pytest.mark.usefixtures("registry")
def test_the_built_in_kinds():
    assert {kind.label: kind.series for kind in OptimizerKind} == BUILT_IN
    for kind in OptimizerKind:
        assert kind is getattr(OptimizerKind, kind.label.upper())
        assert kind is OptimizerKind.named(kind.label) is OptimizerKind.named(kind)
        assert kind is PlanConfig(kind).kind is PlanConfig(kind.label).optimizer
    declared = {n.lower() for n in OptimizerKind.__annotations__ if n.isupper()}
    assert declared == set(BUILT_IN)


def test_a_copied_kind_is_the_same_object():
    for kind in OptimizerKind:
        assert pickle.loads(pickle.dumps(kind)) is copy.deepcopy(kind) is copy.copy(kind) is kind
    there = pickle.loads(pickle.dumps(PlanConfig("lars", half="fp16")))
    assert there == PlanConfig("lars", half="fp16") and there.kind is OptimizerKind.LARS


@pytest.mark.usefixtures("registry")
def test_an_own_kind_is_planned_for_like_any_other():
    tiger = OptimizerKind.register("tiger", series="M")
    assert OptimizerKind.register("tiger", series="M") is tiger
    assert list(OptimizerKind)[-1] is tiger is PlanConfig("tiger").kind
    p = MemoryPlan(PlanConfig("tiger", half="fp16")).parameter("w", "fc_weight", (3,))
    assert p.m is not None and p.v is None and p.half_gradient is not None and p.gradient is None


@pytest.mark.usefixtures("registry")
def test_letters_of_state_are_kept_in_the_order_of_the_table():
    assert OptimizerKind.register("adan", series="NVM").series == "MVN"
    assert OptimizerKind.register("adan", series="MVN").label == "adan"


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("label", "arguments", "message"),
    [
        ("adamw", {"series": "M"}, "'adamw'.*: got series 'M' and scalars {}, expected 'MV'"),
        ("lion", {"series": "M", "scalars": {"gamma": 1.0}}, "and scalars {'gamma': 1.0}, expect"),
        ("tiger", {"series": "X"}, "series got 'X', expected letters of MVN, each once"),
        ("tiger", {"series": "W"}, "series got 'W', expected letters of MVN"),
        ("tiger", {"series": "MM"}, "series got 'MM', expected letters of MVN, each once"),
        ("two words", {}, "'two words'.: label expected an identifier"),
        ("tiger", {"scalars": {"lr": 1.0}}, "'tiger'.: scalar 'lr' is one of every plan"),
    ],
)
def test_kinds_that_cannot_be_registered(label, arguments, message):
    before = list(OptimizerKind)
    with pytest.raises(PlanError, match=message):
        OptimizerKind.register(label, **arguments)
    assert list(OptimizerKind) == before


def test_a_kind_that_nobody_registered_is_refused():
    for unknown in ("adamax", None, 7, OptimizerKind("adamax", "M"), OptimizerKind("adamw", "M")):
        with pytest.raises(PlanError, match=r"optimizer got .*adam|optimizer got (None|7), expect"):
            PlanConfig(unknown)


def test_own_scalars_lie_behind_those_of_every_plan():
    plan = MemoryPlan(PlanConfig("sgd", scalars={"gamma": 0.9, "delta": 0.5}))
    mine = plan.alloc_scalar(config.DType.FP32, "mine")
    plan.finalize()
    names = [t.name for t in plan.tensors_in(Region.S_SCALAR_FP32)]
    assert names[-3:] == ["scalar.delta", "scalar.gamma", "mine"]
    assert plan.scalar("gamma") == (plan.tensors["scalar.gamma"].offset, "f4")
    assert mine.offset == plan.scalar("gamma")[0] + 512
    assert plan.config.own_scalars == {"delta": 0.5, "gamma": 0.9}


@pytest.mark.usefixtures("registry")
def test_a_kind_brings_scalars_and_the_config_may_set_others():
    OptimizerKind.register("tiger", series="M", scalars={"gamma": 0.9, "delta": 0.1})
    assert PlanConfig("tiger").own_scalars == {"delta": 0.1, "gamma": 0.9}
    mixed = PlanConfig("tiger", scalars={"gamma": 0.5, "rho": 1.0})
    assert mixed.own_scalars == {"delta": 0.1, "gamma": 0.5, "rho": 1.0}
    assert PlanConfig("tiger", scalars={"gamma": 0.9}) == PlanConfig("tiger")


def test_configs_with_scalars_are_values():
    one, two = (
        PlanConfig("sgd", scalars=dict(s)) for s in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])
    )
    assert one == two and hash(one) == hash(two) and one != PlanConfig("sgd")
    with pytest.raises(PlanError, match="PlanConfig: scalar 'eps' is one of every plan"):
        PlanConfig("sgd", scalars={"eps": 1.0})
    for wrong in (5, "gamma", [1.0]):
        with pytest.raises(PlanError, match="PlanConfig: scalars got .*, expected name -> value"):
            PlanConfig("sgd", scalars=wrong)


def test_a_config_without_own_scalars_plans_what_it_always_did():
    plain, empty = (MemoryPlan(c) for c in (PlanConfig("sgd"), PlanConfig("sgd", scalars={})))
    assert list(plain.tensors) == list(empty.tensors)

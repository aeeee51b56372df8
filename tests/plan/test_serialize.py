"""JSON and digest: a layout comes back byte for byte, or is refused by name."""

import json

import pytest
from hypothesis import given, settings

from plan import (
    MemoryPlan,
    OptimizerKind,
    PlanConfig,
    PlanError,
    config,
    digest,
    first_difference,
    from_json,
    to_json,
)
from tests.helpers import small_plan
from tests.plan.plans import configs, planned, specs


@given(configs, specs)
@settings(max_examples=60, deadline=None)
def test_json_round_trip_keeps_the_digest(config, wanted):
    plan = planned(config, wanted)
    again = from_json(to_json(plan))
    assert digest(again) == digest(plan)
    assert [(t.name, t.offset) for t in again] == [(t.name, t.offset) for t in plan]
    assert first_difference(plan, again) is None


def test_the_digest_sees_order_and_shape():
    def made(*names):
        plan = MemoryPlan()
        for name in names:
            plan.parameter(name, "fc_weight", (6,))
        return plan.finalize()

    assert digest(made("a", "b")) != digest(made("b", "a"))
    assert "tensor a" in first_difference(made("a", "b"), made("b", "a"))


def test_a_config_without_own_scalars_is_written_as_ever():
    """A digest says that two layouts are byte-compatible; an option must not change it unused."""
    text = to_json(small_plan("adamw", half="fp16", ema=True))
    assert text.startswith(
        '{"format":1,"config":{"optimizer":"adamw","half":"fp16","ema":true,"bn_folded":false},'
    )


def test_own_scalars_are_part_of_the_layout():
    def made(**scalars):
        return MemoryPlan(PlanConfig("sgd", scalars=scalars)).finalize()

    plan = made(gamma=0.9)
    again = from_json(to_json(plan))
    assert again.config == plan.config and digest(again) == digest(plan)
    assert again.scalar("gamma") == plan.scalar("gamma")
    assert len({digest(p) for p in (plan, made(), made(gamma=0.5), made(delta=0.9))}) == 4
    assert "'gamma': 0.9" in first_difference(plan, made(gamma=0.5))


def test_an_own_optimizer_comes_back_where_it_is_registered(monkeypatch):
    monkeypatch.setattr(config, "_KINDS", dict(config._KINDS))
    OptimizerKind.register("tiger", series="M", scalars={"gamma": 0.9})
    text = to_json(small_plan("tiger", half="fp16"))
    again = from_json(text)
    assert again.config.kind is OptimizerKind.named("tiger") and to_json(again) == text
    del config._KINDS["tiger"]
    with pytest.raises(PlanError, match="got 'tiger', expected one of none, .*; register an own"):
        from_json(text)
    for series, has in (("", "text"), ("MV", "plan")):
        OptimizerKind.register("tiger", series=series, scalars={"gamma": 0.9})
        with pytest.raises(
            PlanError, match=rf"from_json: the {has} has tensor conv1\.weight#[MV],"
        ):
            from_json(text)
        del config._KINDS["tiger"]


def test_a_layout_of_another_version_is_refused():
    document = json.loads(to_json(small_plan()))
    with pytest.raises(PlanError, match="format got 2, expected 1"):
        from_json(json.dumps(document | {"format": 2}))
    for name in ("norm.sums", "scalar.lr"):
        rows = [row for row in document["tensors"] if row[0] != name]
        with pytest.raises(PlanError, match=f"the plan has tensor {name}, the text has none"):
            from_json(json.dumps(document | {"tensors": rows}))
    moved = [[*row[:5], row[5] + 256 * (row[0] == "fc.weight")] for row in document["tensors"]]
    with pytest.raises(PlanError, match=r"fc\.weight would lie at byte \d+, expected \d+; the lay"):
        from_json(json.dumps(document | {"tensors": moved}))

"""Parameters planned as frozen: a weight and its half copy, and addresses that nobody uses."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan import (
    MemoryPlan,
    PlanConfig,
    PlanError,
    Range,
    digest,
    finalize_variants,
    first_difference,
    from_json,
    to_json,
)
from plan.series import PARAMETER_KINDS
from rangeops import Arena
from tests.plan.plans import configs

mixed = st.lists(
    st.tuples(st.sampled_from(PARAMETER_KINDS), st.integers(0, 5000), st.booleans()), max_size=12
)


def planned(config, wanted):
    plan = MemoryPlan(config)
    for k, (kind, n, trainable) in enumerate(wanted):
        plan.parameter(f"p{k}", kind, (n,), trainable=trainable)
    return plan.finalize()


def series_of(plan):
    """Return (series, half) for every series of parameters that the plan has."""
    kinds = ("fc_weight", "bn_bias")
    return dict.fromkeys(itertools.chain.from_iterable(map(plan.config.series_of, kinds)))


@pytest.mark.parametrize("kind", PARAMETER_KINDS)
@pytest.mark.parametrize("half", [None, "fp16", "bf16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb", "none"])
def test_a_frozen_parameter_has_its_weight_and_half_copy_alone(kind, half, optimizer):
    plan = MemoryPlan(PlanConfig(optimizer, half=half, ema=True, accumulate=half is not None))
    p = plan.parameter("w", kind, (10, 64), trainable=False)
    assert p.weight.shape == (10, 64)
    lacks = (p.gradient, p.half_gradient, p.m, p.v, p.ema, p.half_ema, p.norm)
    assert lacks == (None,) * len(lacks)
    assert (p.half_copy is not None) == (
        half is not None and not kind.endswith(("bias", "bn_weight"))
    )
    assert plan.is_frozen("w") and "half_copy" * (p.half_copy is not None) in repr(p)
    assert repr(p).startswith(f"<Parameter w: {kind} (10, 64); weight")


@given(configs, mixed)
@settings(max_examples=80, deadline=None)
def test_trained_tensors_lie_first_and_series_correspond(config, wanted):
    plan = planned(config, wanted)
    for region in {t.region for t in plan.weights()}:
        flags = [plan.is_frozen(t.name) for t in plan.tensors_in(region)]
        assert flags == sorted(flags), "trained ones first"
    for series, half in series_of(plan):
        if series == "N":
            continue
        of = plan.series_range(series, half=half).base_offset
        part = "weight" if half else "all"
        weights = plan.series_range("W", part).base_offset
        for name in plan.parameters:
            tensor = plan.tensors.get(f"{name}#{series}{'16' if half else ''}")
            if tensor is not None:
                weight = plan.tensors[name]
                assert (tensor.offset - of) * (2 if half else 1) == weight.offset - weights


@given(configs, mixed)
@settings(max_examples=80, deadline=None)
def test_idle_is_what_only_frozen_parameters_would_use(config, wanted):
    plan = planned(config, wanted)
    frozen = {n for n in plan.parameters if plan.is_frozen(n)}
    idle = {t.name for t in plan if "#" in t.name and t.name.partition("#")[0] in frozen}
    idle = {name for name in idle if not name.endswith(("#A16", "#N"))}  # ratios write norms
    assert sum(span.size for span in plan.idle) == sum(plan.tensors[n].slot_bytes for n in idle)
    for one, two in itertools.pairwise(plan.idle):
        assert one.end < two.base_offset, "as few and as long as can be"
    for tensor in plan:
        inside = [s for s in plan.idle if s.base_offset < tensor.span.end and tensor.offset < s.end]
        assert bool(inside) == (tensor.name in idle) or not tensor.slot_bytes
    for series, half in series_of(plan):
        for part in ("all", "bias", "weight"):
            whole, used = plan.series_range(series, part, half), plan.in_use(series, part, half)
            inside = [t for t in plan.tensors_at(whole) if t.name not in idle]
            assert sum(span.size for span in used) == sum(t.slot_bytes for t in inside)
            for span in used:
                assert whole.base_offset <= span.base_offset < span.end <= whole.end
            covered = {t.name for span in used for t in plan.tensors_at(span)}
            assert covered == {t.name for t in inside}


def test_a_hole_that_reaches_over_two_series_cuts_both():
    """Only the first linear layer trained: the end of M and the start of V are one hole."""
    wanted = [("bn_bias", 100, False), ("fc_weight", 300, True), ("deep_conv", 500, False)]
    plan = planned(PlanConfig("adamw", ema=True), wanted)
    assert any(s.base_offset < plan.series_range("V").base_offset < s.end for s in plan.idle)
    for series in "EGMV":
        assert plan.in_use(series) == (plan.tensors[f"p1#{series}"].span,)
        assert plan.in_use(series, "bias") == ()
    assert plan.in_use("W") == (plan.series_range("W"),)


def test_a_plan_without_frozen_parameters_has_nothing_idle():
    plan = planned(PlanConfig("adamw", half="fp16"), [("fc_weight", 300, True)])
    assert plan.idle == () and plan.in_use("G", half=True) == (plan.series_range("G", half=True),)
    with pytest.raises(PlanError, match="idle: the plan is not finalized"):
        MemoryPlan().idle  # noqa: B018


@given(configs, mixed)
@settings(max_examples=60, deadline=None)
def test_json_keeps_what_is_frozen(config, wanted):
    plan = planned(config, wanted)
    again = from_json(to_json(plan))
    assert digest(again) == digest(plan) and first_difference(plan, again) is None
    assert [(t.name, t.offset) for t in again] == [(t.name, t.offset) for t in plan]
    assert again.idle == plan.idle
    assert list(map(again.is_frozen, again.parameters)) == list(
        map(plan.is_frozen, plan.parameters)
    )


def test_digest_and_difference_see_what_is_frozen():
    one, two = (planned(PlanConfig("sgd"), [("fc_weight", 9, t)]) for t in (True, False))
    assert digest(one) != digest(two)
    assert first_difference(one, two) == (
        "parameter p0 (fc_weight, trainable=True) against p0 (fc_weight, trainable=False)"
    )
    assert "False" not in to_json(one)


def test_variants_with_a_frozen_parameter_have_equal_offsets():
    plans = [MemoryPlan(PlanConfig("adamw")) for _ in range(2)]
    for plan in plans:
        plan.parameter("a", "fc_weight", (300,), trainable=False)
        plan.parameter("b", "fc_weight", (300,))
    finalize_variants(plans)
    assert len({digest(plan) for plan in plans}) == 1
    plans = [MemoryPlan(PlanConfig("adamw")) for _ in range(2)]
    for plan, trainable in zip(plans, (True, False), strict=True):
        plan.parameter("a", "fc_weight", (300,), trainable=trainable)
        plan.parameter("b", "fc_weight", (300,))
    with pytest.raises(PlanError, match="variants: .*a.*trainable"):
        finalize_variants(plans)


def test_a_frozen_gradient_is_no_tensor_of_the_arena():
    plan = planned(PlanConfig("adamw", half="fp16", ema=True), [("fc_weight", 9, False)])
    arena = Arena(plan, device="cpu")
    for series in ("G16", "M", "V", "E", "E16"):
        with pytest.raises(PlanError, match=rf"arena\['p0#{series}'\] got .* trained"):
            arena[f"p0#{series}"]
        with pytest.raises(PlanError, match=rf"arena\['p0#{series}'\]"):
            arena[f"p0#{series}"] = 1.0
    arena["p0"] = 2.0
    arena["p0#A16"] = 2.0


BIG = 1 << 24


@pytest.mark.parametrize(
    ("options", "nbytes"),
    [
        ({}, 16),
        ({"half": "bf16"}, 16),
        ({"half": "fp16"}, 16),
        ({"half": "bf16", "accumulate": True}, 20),
        ({"half": "bf16", "ema": True}, 22),
        ({"ema": True}, 20),
    ],
)
def test_bytes_a_parameter(options, nbytes):
    """AdamW: with halves 4 weight, 2 half copy, 2 half gradient, 8 moments."""
    plan = planned(PlanConfig("adamw", **options), [("fc_weight", BIG, True)])
    assert nbytes == round(plan.total_bytes / BIG, 1)
    assert plan.total_bytes - nbytes * BIG < 0.2 * BIG, "the tables' share"
    frozen = planned(PlanConfig("adamw", **options), [("fc_weight", BIG, False)])
    used = frozen.total_bytes - sum(span.size for span in frozen.idle)
    assert round(used / BIG, 1) == (6 if "half" in options else 4)


def test_a_range_of_idle_bytes_is_as_it_was_given():
    plan = planned(PlanConfig("sgd"), [("fc_weight", 9, False)])
    (hole,) = plan.idle
    assert hole == Range(plan.tensors["p0#G"].offset, plan.tensors["p0#G"].slot_bytes)

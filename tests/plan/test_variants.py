"""Variants of one model: one tensor id, one offset, in all plans."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan import MemoryPlan, PlanConfig, PlanError, digest, finalize_variants, from_json, to_json


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_variants_have_equal_offsets(pairs):
    plans = []
    for which in (0, 1):
        plan = MemoryPlan()
        plan.parameter("w", "fc_weight", (10,))
        for k, pair in enumerate(pairs):
            plan.alloc_feature((pair[which], 4), f"feature{k}")
        plans.append(plan)
    finalize_variants(plans)
    for a, b in zip(*(p.tensors.values() for p in plans), strict=True):
        assert (a.name, a.offset) == (b.name, b.offset)
        assert b.slot_bytes == a.slot_bytes >= max(a.nbytes, b.nbytes) + 16
    assert digest(from_json(to_json(plans[1]))) == digest(plans[1])


def test_variants_that_differ_are_refused():
    a, b = MemoryPlan(), MemoryPlan()
    a.alloc_feature((1,), "x")
    b.alloc_feature((1,), "y")
    with pytest.raises(PlanError, match=r"is y in F_FEATURE_FP32, expected x"):
        finalize_variants([a, b])
    with pytest.raises(PlanError, match="expected PlanConfig"):
        finalize_variants([MemoryPlan(), MemoryPlan(PlanConfig(half="fp16"))])
    b.alloc_feature((1,), "z")
    with pytest.raises(PlanError, match="expected .* in all plans"):
        finalize_variants([a, b])


def test_a_descriptor_of_one_variant_names_the_bytes_of_all():
    plans = [MemoryPlan(), MemoryPlan()]
    tensors = [p.alloc_feature((n, 4), "x") for p, n in zip(plans, (8, 800), strict=True)]
    hashes = list(map(hash, tensors))
    finalize_variants(plans)
    assert list(map(hash, tensors)) == hashes
    assert plans[0].resolve(tensors[1]) == plans[1].resolve(tensors[0]) == tensors[0].span

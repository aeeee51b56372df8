"""Granule tables: no granule belongs to two tensors, and rows are as wide as they must be."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plan import PlanConfig, Region, segments
from plan.models import ParameterSpec, plan_model
from plan.region import PARAMETER_KINDS
from plan.segments import weight_segments
from tests.helpers import small_plan
from tests.plan.plans import planned


@given(st.lists(st.tuples(st.sampled_from(PARAMETER_KINDS), st.integers(0, 2000)), max_size=9))
@settings(max_examples=60, deadline=None)
def test_granules_never_straddle_tensors(wanted):
    plan = planned(PlanConfig("sgd", half="fp16"), wanted)
    table = segments(plan, Region.W_BN_BIAS, Region.W_DEEP_CONV)
    base = plan.series_range("W").base_offset
    for row, tensor in enumerate(table.tensors):
        mine = np.flatnonzero(table.rows == row)
        assert mine[0] == table.first[row] == (tensor.offset - base) // 512
        assert len(mine) * 512 == tensor.slot_bytes
    halves = segments(plan, Region.A_FC_WEIGHT, Region.A_DEEP_CONV)
    weights = segments(plan, Region.W_FC_WEIGHT, Region.W_DEEP_CONV)
    np.testing.assert_array_equal(halves.rows, weights.rows)


def test_segment_rows_are_wider_above_65536_tensors():
    plan = plan_model([ParameterSpec(f"p{k}", "fc_weight", (1,)) for k in range(65537)],
                      PlanConfig("none"))  # fmt: skip
    rows = segments(plan, Region.W_FC_WEIGHT).rows
    assert rows.dtype == np.uint32 and rows[-1] == 65536


def test_the_table_of_the_weights_says_its_size_in_one_line():
    table = weight_segments(small_plan())
    assert table.tensors == small_plan().weights()
    assert repr(table) == f"<Segments: {len(table.rows):,} granules of 8 tensors>"

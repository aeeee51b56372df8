"""The table of what a plan keeps for its kernels."""

from plan.scratch import BLOCK, BLOCK_FLOATS, ROW, ROW_FLOATS, SCRATCH, STATE, STATE_OF
from tests.helpers import small_plan


def test_names_are_unique_and_blocks_large_enough():
    assert len(STATE_OF) == len(STATE) and len(SCRATCH) == sum(bool(s.tensor) for s in STATE)
    assert len(set(BLOCK)) == len(BLOCK) <= BLOCK_FLOATS and len(set(ROW)) == len(ROW) == ROW_FLOATS


def test_a_plan_with_parameters_has_every_temporary_in_its_region():
    plan = small_plan("lamb")
    for state in STATE:
        if state.tensor:
            assert plan.tensors[state.tensor].region is state.region


def test_coefficients_have_a_block_and_a_row_for_each_tensor():
    plan = small_plan()
    assert plan.tensors["step.coefficients"].shape == (BLOCK_FLOATS + ROW_FLOATS * 8,)
    assert plan.tensors["step.segments"].numel == plan.series_range("W").size // 512

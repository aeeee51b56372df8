"""The table of what a plan keeps for its kernels."""

from plan.scratch import (
    BLOCK,
    BLOCK_FLOATS,
    FIXED,
    GROUP,
    GROUP_FLOATS,
    OWN_GROUPS,
    RESTS,
    ROW,
    ROW_FLOATS,
    SCRATCH,
    STATE,
    STATE_OF,
    SUMS,
    TRAINED,
    TRAINED_ONLY,
    block_index,
    group_index,
    row_index,
)
from tests.helpers import small_plan


def test_names_are_unique_and_rows_large_enough():
    assert len(STATE_OF) == len(STATE) and len(SCRATCH) == sum(bool(s.tensor) for s in STATE)
    assert len(set(BLOCK)) == len(BLOCK) <= BLOCK_FLOATS
    assert len(set(ROW)) == len(ROW) <= ROW_FLOATS and not {*BLOCK} & {*ROW}
    assert len(set(GROUP)) == len(GROUP) <= GROUP_FLOATS
    assert [block_index(name) for name in BLOCK] == list(range(len(BLOCK)))
    assert [row_index(name) for name in ROW] == list(range(len(ROW)))
    assert [group_index(name) for name in GROUP] == list(range(len(GROUP)))


def test_rows_are_whole_vectors_from_a_boundary_on():
    """Kernels read and write them 16 bytes at a time, whole sectors of 32 for a row."""
    assert BLOCK_FLOATS % 8 == ROW_FLOATS % 8 == len(ROW) % 4 == GROUP_FLOATS % 4 == 0
    plan = small_plan()
    for name in ("step.coefficients", "step.groups"):
        assert plan.tensors[name].offset % 32 == 0


def test_live_words_are_three():
    """Kernels compare with 0: above it trained, below it never."""
    assert FIXED < RESTS == 0 < TRAINED


def test_sums_of_gradients_are_those_that_only_trained_tensors_have():
    """Not LAMB's: its first pass moves trained tensors alone, and its sums are of those."""
    assert {*SUMS} - {*TRAINED_ONLY} == {"lamb", "weight_report"}


def test_a_plan_with_parameters_has_every_temporary_in_its_region():
    plan = small_plan("lamb")
    for state in STATE:
        if state.tensor:
            assert plan.tensors[state.tensor].region is state.region


def test_each_tensor_has_a_row_a_word_a_step_and_room_for_a_group():
    plan = small_plan()
    assert plan.tensors["step.coefficients"].shape == (BLOCK_FLOATS + 8 * ROW_FLOATS,)
    assert plan.tensors["step.groups"].shape == (OWN_GROUPS + 8, GROUP_FLOATS)
    for name in ("step.live", "step.steps", "step.group_of_tensor"):
        assert plan.tensors[name].shape == (8,)
    assert plan.tensors["step.segments"].numel == plan.series_range("W").size // 512

"""Chunks and folds: rows of bounded length that cover every granule once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plan import PlanConfig
from plan.chunks import chunks_of, sizes_of
from plan.scratch import CHUNK_GRANULES, FOLD_CHUNKS
from plan.segments import weight_segments
from tests.plan.plans import planned


@given(
    st.lists(
        st.tuples(st.sampled_from(["fc_weight", "bn_bias"]), st.integers(0, 10**7)), max_size=6
    )
)
@settings(max_examples=40, deadline=None)
def test_chunks_and_folds_never_straddle_tensors(wanted):
    plan = planned(PlanConfig("sgd"), wanted)
    first = weight_segments(plan).first
    granules, folds, fold_of = chunks_of(first)
    assert sizes_of(plan.weights()) == (len(granules) - 1, len(folds) - 1)
    assert np.isin(first, granules).all() and granules[-1] == first[-1]
    assert (np.diff(granules) <= CHUNK_GRANULES).all() and (np.diff(granules) > 0).all()
    assert np.isin(granules[folds], granules).all() and (np.diff(folds) <= FOLD_CHUNKS).all()
    assert (granules[folds[fold_of]] == first).all()

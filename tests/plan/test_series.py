"""The table of series: what the rows say holds for the regions."""

import pytest

from plan import PlanError, Region
from plan.series import (
    BIAS_KINDS,
    FP32_SERIES,
    PARAMETER_KINDS,
    SERIES,
    STATE_SERIES,
    WEIGHT_KINDS,
    parameter_series,
)


def test_the_rows_cover_the_regions_and_nothing_else():
    assert set(SERIES) == {region.series for region in Region}
    assert list(SERIES) == list("BWEAGRMVNIFST")


def test_every_series_of_parameters_has_exactly_the_regions_of_its_row():
    for series in SERIES.values():
        if not series.kinds:
            continue
        said = {
            (kind, "half" if half else "fp32")
            for half in series.forms
            for kind in series.kinds_of(half=half)
        }
        mine = {
            (r.kind, r.dtype) for r in Region
            if r.series == series.letter and r.kind in PARAMETER_KINDS
        }  # fmt: skip
        assert said == mine


def test_the_letters_of_the_groups():
    assert set(FP32_SERIES) == set("WGMVE")
    assert STATE_SERIES == "MVN"
    assert {s.letter for s in SERIES.values() if s.kinds == WEIGHT_KINDS} == set("AN")
    assert {s.letter for s in SERIES.values() if s.half_suffix} == set("EG")


def test_parts_share_the_kinds_between_them():
    assert BIAS_KINDS + WEIGHT_KINDS == PARAMETER_KINDS
    assert SERIES["W"].kinds_of() == PARAMETER_KINDS
    assert SERIES["A"].kinds_of("bias") == SERIES["N"].kinds_of("bias") == ()
    with pytest.raises(PlanError, match="series G: part got 'biases', expected 'all', 'bias', 'w"):
        SERIES["G"].kinds_of("biases")


@pytest.mark.parametrize("letter", ["S", "X", "", "WE"])
def test_what_is_no_series_of_parameters_is_refused(letter):
    with pytest.raises(PlanError, match=f"got '{letter}', expected one of parameters: W, E, A, G"):
        parameter_series(letter)

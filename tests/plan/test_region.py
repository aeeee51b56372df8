"""The 68 regions, in the order of the origin's table."""

from plan import NUM_REGIONS, PlanConfig, Region
from plan.region import PARAMETER_KINDS, When, series_region


def test_regions_are_68_in_address_order():
    assert [r.value for r in Region] == list(range(68))
    assert NUM_REGIONS == 69
    assert Region.DEFAULT is Region.B_PREV_MEAN


def test_regions_stand_at_the_numbers_of_the_origin():
    numbers = {
        "B_PREV_MEAN": 1, "W_EQ_BIAS": 5, "W_DEEP_CONV": 12, "E_BN_BIAS": 13,
        "E_DEEP_CONV_FP16": 21, "A_FC_WEIGHT": 22, "G_BN_BIAS": 25, "G_DEEP_CONV": 30,
        "R_RESULT": 31, "G_FC_WEIGHT_FP16": 32, "M_BN_BIAS": 35, "N_DEEP_CONV": 49,
        "I_A_LABEL": 50, "F_FEATURE_FP32": 54, "S_SCALAR_FP32": 58, "S_MASK": 62,
        "T_TEMP_FP32": 63, "R_PREDICTED_LABEL": 67, "R_RESULT_ACCUMULATED": 68,
    }  # fmt: skip
    assert {name: Region[name] + 1 for name in numbers} == numbers


def test_half_regions_need_half():
    halves = [r for r in Region if r.dtype == "half" and r.when is not When.ALWAYS]
    assert {r.name for r in halves if r.series in "AGE"} == {
        "E_FC_WEIGHT_FP16", "E_FIRST_CONV_FP16", "E_DEEP_CONV_FP16",
        "A_FC_WEIGHT", "A_FIRST_CONV", "A_DEEP_CONV",
        "G_FC_WEIGHT_FP16", "G_FIRST_CONV_FP16", "G_DEEP_CONV_FP16",
    }  # fmt: skip
    assert not any(PlanConfig(ema=True).enables(r) for r in halves)
    assert all(PlanConfig(half="bf16", ema=True).enables(r) for r in halves)


def test_fp32_features_exist_exactly_without_half():
    assert PlanConfig().enables(Region.F_FEATURE_FP32)
    assert not PlanConfig(half="fp16").enables(Region.F_FEATURE_FP32)
    assert not PlanConfig().enables(Region.F_FEATURE_FP16)


def test_folded_and_ema_regions_follow_their_options():
    assert not PlanConfig().enables(Region.W_EQ_BIAS)
    assert PlanConfig(bn_folded=True).enables(Region.W_EQ_SCALE)
    assert not PlanConfig(half="fp16").enables(Region.E_FC_WEIGHT_FP16)
    assert PlanConfig(ema=True).enables(Region.E_BN_BIAS)


def test_series_of_a_kind_keep_its_order():
    for series in "WEGMV":
        places = [series_region(series, kind) for kind in PARAMETER_KINDS]
        assert places == list(range(places[0], places[0] + 6))


def test_scales_and_variances_start_at_one():
    ones = {r.name for r in Region if r.initial == 1.0}
    assert ones == {"B_PREV_VAR", "B_NEXT_VAR", "W_EQ_SCALE", "W_BN_WEIGHT", "E_BN_WEIGHT"}

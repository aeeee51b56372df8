"""The plan's scalars, and a caller's own."""

import numpy as np
import pytest

from plan import PlanError
from plan.scalars import DEVICE_OWNED, FP32_SCALARS, INT32_SCALARS, own_scalars


def test_the_scalars_that_the_device_changes_stand_last():
    for table in (FP32_SCALARS, INT32_SCALARS):
        owned = [name in DEVICE_OWNED for name in table]
        assert owned == sorted(owned) and any(owned) and not all(owned)


def test_own_scalars_are_plain_sorted_and_come_back():
    values = own_scalars("x", {"gamma": np.float32(0.5), "delta": 2})
    assert values == (("delta", 2.0), ("gamma", 0.5))
    assert all(type(value) is float for _, value in values)
    assert own_scalars("x", values) == values and hash(values)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", 1.0, "x: scalar 'lr' is one of every plan, expected a new name; rename it"),
        ("step", 1.0, "scalar 'step' is one of every plan"),
        ("dampening", 1.0, "scalar 'dampening' is one of every plan"),
        ("two words", 1.0, "scalar 'two words' got a name that is no identifier"),
        ("lambda", 1.0, "scalar 'lambda' got a name that is no identifier"),
        ("_gamma", 1.0, "scalar '_gamma' begins with an underscore"),
        ("gamma", float("nan"), "scalar 'gamma' got nan, expected a finite number within FP32"),
        ("gamma", float("inf"), "got inf, expected a finite"),
        ("gamma", 1e39, r"got 1e\+39, expected a finite"),
        ("gamma", "0.9", "got '0.9', expected a finite"),
    ],
)
def test_own_scalars_that_cannot_be(name, value, message):
    with pytest.raises(PlanError, match=message):
        own_scalars("x", {name: value})

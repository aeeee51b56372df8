"""Range: bytes, and what may be given for them."""

import numpy as np
import pytest

from plan import Range


def test_a_range_is_two_plain_ints():
    made = Range.of((np.int64(2**40), np.int32(512)))
    assert made == Range(2**40, 512) == (2**40, 512) and made.end == 2**40 + 512
    assert all(type(n) is int for n in made)


@pytest.mark.parametrize("given", [7, None, "ab", (1,), (1, 2, 3), (0, 1.5), (0, "4"), {}])
def test_what_is_no_range_is_refused_by_its_label(given):
    with pytest.raises(
        TypeError, match=r"^clear: range dst got .*, expected Range\(base_offset, s"
    ):
        Range.of(given, "clear: range dst")

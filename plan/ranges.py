"""Range: bytes of an arena, what every range op works on."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple


class Range(NamedTuple):
    """Half-open bytes of adjoining regions: ``base_offset`` and ``size``, plain ints.

    >>> Range(512, 1024).end
    1536
    """

    base_offset: int
    size: int

    @property
    def end(self) -> int:
        """First byte past the range."""
        return self.base_offset + self.size

    @classmethod
    def of(cls, given: Any, label: str = "range") -> Range:
        """Return a Range, or a pair of offset and size in bytes, as a Range of plain ints.

        Args:
            given: what the caller gave.
            label: the subject of the error's sentence.

        Raises:
            TypeError: no such pair, or not of integers.

        >>> Range.of((0, 256))
        Range(base_offset=0, size=256)

        """
        try:
            offset, size = given
            return cls(operator.index(offset), operator.index(size))
        except (TypeError, ValueError):
            raise TypeError(
                f"{label} got {given!r}, expected Range(base_offset, size) in whole bytes, a "
                "region, two regions or a tensor"
            ) from None

"""What the tests of refused checkpoints share."""

from __future__ import annotations

import pytest

from tests.checkpoint.filled import filled


@pytest.fixture
def target():
    """Return an arena with values of its own, none of which a refused file may change."""
    return filled(seed=2, ema=True)

"""The parameter lists of real models."""

import numpy as np
import pytest

from plan.models import MODELS
from plan.region import PARAMETER_KINDS, WEIGHT_KINDS


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("mlp", 6, 535_818),
        ("resnet50", 161, 25_557_032),
        ("vgg16_bn", 58, 138_365_992),
        ("gpt2", 148, 124_439_808),
    ],
)
def test_models_have_their_published_sizes(name, tensors, parameters):
    listed = MODELS[name]()
    assert len(listed) == tensors
    assert sum(int(np.prod(s.shape)) for s in listed) == parameters
    weights = [s for s in listed if s.kind in WEIGHT_KINDS]
    assert all(s.kind in PARAMETER_KINDS for s in listed) and weights

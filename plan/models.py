"""Parameter lists of real models: name, kind, shape, in the order of the model's own module list.

Convolution weights are (out, kh, kw, in), NHWC; linear weights (out, in), embeddings (rows, width).
Sources of the architectures: torchvision's resnet50 and vgg16_bn (names as there), OpenAI's GPT-2
124M with tied output embedding (names as in its checkpoint).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from plan.config import PlanConfig
from plan.memory_plan import MemoryPlan


class ParameterSpec(NamedTuple):
    """One line of a parameter list: name, kind (PARAMETER_KINDS) and shape in elements."""

    name: str
    kind: str
    shape: tuple[int, ...]


def _norm(name: str, width: int) -> list[ParameterSpec]:
    return [
        ParameterSpec(f"{name}.weight", "bn_weight", (width,)),
        ParameterSpec(f"{name}.bias", "bn_bias", (width,)),
    ]


def _linear(name: str, out: int, width: int) -> list[ParameterSpec]:
    return [
        ParameterSpec(f"{name}.weight", "fc_weight", (out, width)),
        ParameterSpec(f"{name}.bias", "fc_bias", (out,)),
    ]


def mlp(widths: tuple[int, ...] = (784, 512, 256, 10)) -> list[ParameterSpec]:
    """Return a multilayer perceptron: 6 tensors, 535,818 parameters by default."""
    pairs = enumerate(zip(widths, widths[1:], strict=False))
    return [spec for k, (n, m) in pairs for spec in _linear(f"layers.{k}", m, n)]


def resnet50(classes: int = 1000) -> list[ParameterSpec]:
    """Return ResNet-50: 161 tensors, 25,557,032 parameters for 1000 classes."""
    specs = [ParameterSpec("conv1.weight", "first_conv", (64, 7, 7, 3)), *_norm("bn1", 64)]
    width = 64
    for stage, (planes, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            convs = ((1, width, planes), (3, planes, planes), (1, planes, 4 * planes))
            for k, (size, inner, outer) in enumerate(convs, 1):
                shape = (outer, size, size, inner)
                specs.append(ParameterSpec(f"{name}.conv{k}.weight", "deep_conv", shape))
                specs += _norm(f"{name}.bn{k}", outer)
            if block == 0:
                shape = (4 * planes, 1, 1, width)
                specs.append(ParameterSpec(f"{name}.downsample.0.weight", "deep_conv", shape))
                specs += _norm(f"{name}.downsample.1", 4 * planes)
            width = 4 * planes
    return specs + _linear("fc", classes, 2048)


def vgg16_bn(classes: int = 1000) -> list[ParameterSpec]:
    """Return VGG-16 with batch norm: 58 tensors, 138,365,992 parameters for 1000 classes."""
    layout = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
    specs: list[ParameterSpec] = []
    index, width = 0, 3
    for outer in layout:
        if outer:
            kind = "deep_conv" if specs else "first_conv"
            specs.append(ParameterSpec(f"features.{index}.weight", kind, (outer, 3, 3, width)))
            specs.append(ParameterSpec(f"features.{index}.bias", "fc_bias", (outer,)))
            specs += _norm(f"features.{index + 1}", outer)
            index, width = index + 3, outer
        else:
            index += 1
    for k, (out, inner) in zip(
        (0, 3, 6), ((4096, 25088), (4096, 4096), (classes, 4096)), strict=True
    ):
        specs += _linear(f"classifier.{k}", out, inner)
    return specs


def gpt2(
    layers: int = 12, width: int = 768, vocabulary: int = 50257, context: int = 1024
) -> list[ParameterSpec]:
    """Return GPT-2: 148 tensors, 124,439,808 parameters for the 124M model."""
    specs = [
        ParameterSpec("wte.weight", "fc_weight", (vocabulary, width)),
        ParameterSpec("wpe.weight", "fc_weight", (context, width)),
    ]
    for k in range(layers):
        specs += _norm(f"h.{k}.ln_1", width)
        specs += _linear(f"h.{k}.attn.c_attn", 3 * width, width)
        specs += _linear(f"h.{k}.attn.c_proj", width, width)
        specs += _norm(f"h.{k}.ln_2", width)
        specs += _linear(f"h.{k}.mlp.c_fc", 4 * width, width)
        specs += _linear(f"h.{k}.mlp.c_proj", width, 4 * width)
    return specs + _norm("ln_f", width)


MODELS: dict[str, Callable[[], list[ParameterSpec]]] = {
    "mlp": mlp,
    "resnet50": resnet50,
    "vgg16_bn": vgg16_bn,
    "gpt2": gpt2,
}


def plan_model(specs: list[ParameterSpec], config: PlanConfig | None = None) -> MemoryPlan:
    """Return the finalized plan of a parameter list.

    >>> from plan.models import plan_model, mlp
    >>> len(plan_model(mlp()).parameters)
    6
    """
    plan = MemoryPlan(config)
    for spec in specs:
        plan.parameter(*spec)
    return plan.finalize()

"""What a torch module's parameters are: their names, kinds and orders in memory.

Kinds by module type: the first convolution is ``first_conv``, others ``deep_conv``; linear and
embedding weights ``fc_weight``; norm weights ``bn_weight`` and biases ``bn_bias``; other biases
``fc_bias``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

_CONVOLUTIONS = nn.modules.conv._ConvNd
_NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._BatchNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
_WHOLE = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag)


def kind_of(module: nn.Module, name: str, param: torch.Tensor, first_conv: bool) -> str:
    """Return the plan's kind of a parameter from the module that owns it."""
    bias = name.endswith("bias")
    if isinstance(module, _NORMS):
        return "bn_bias" if bias else "bn_weight"
    if bias:
        return "fc_bias"
    if isinstance(module, _CONVOLUTIONS):
        return "first_conv" if first_conv else "deep_conv"
    if isinstance(module, _WHOLE) or param.dim() > 1:
        return "fc_weight"
    return "bn_weight"


def memory_order(param: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions of a dense tensor from the slowest to the fastest in memory."""
    strides = param.stride()
    order = sorted(range(param.dim()), key=lambda d: (-strides[d], d))
    dense = param.permute(order).is_contiguous()
    return tuple(order) if dense else tuple(range(param.dim()))


def parameters(module: nn.Module) -> Iterator[tuple[nn.Module, str, str, nn.Parameter]]:
    """Yield (owner, key, full name, parameter), each parameter once."""
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for key, param in owner._parameters.items():
            if param is not None and id(param) not in seen:
                seen.add(id(param))
                yield owner, key, f"{prefix}.{key}" if prefix else key, param

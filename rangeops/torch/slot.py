"""Slot: one adopted parameter, its names in the module, its place in the plan, its views."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from plan import Parameter


@dataclass(frozen=True)
class Slot:
    """One adopted parameter.

    Attributes:
        name: its full name in the module.
        owner, key: the module that holds it, and its name there.
        param: the parameter.
        planned: its tensors in the plan.
        order: its dimensions from the slowest to the fastest in memory.
        dtype: what it had before it was adopted.
        weight: the FP32 weight, a view of the arena.
        data: what the module computes with: ``weight``, or its half copy.
        grad: the view that is its gradient; None in a plan for inference.

    """

    name: str
    owner: nn.Module
    key: str
    param: nn.Parameter
    planned: Parameter
    order: tuple[int, ...]
    dtype: torch.dtype
    weight: torch.Tensor
    data: torch.Tensor
    grad: torch.Tensor | None

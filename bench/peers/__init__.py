"""What other people do: the same step parameter by parameter in NumPy, and torch's ways."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from math import prod

from bench.peers import numpy_loops, torch_steps
from plan.models import ParameterSpec

Maker = Callable[[list[ParameterSpec]], Callable[[], None]]


def ways(kind: str, device: str) -> dict[str, Maker]:
    """Return what does an optimizer's step on "cpu" or "cuda": name -> maker for a model.

    A maker allocates the model with random weights and gradients and returns the step.
    """
    found: dict[str, Maker] = {}
    if device == "cpu":
        found["NumPy per-parameter loop"] = lambda specs: numpy_loops.loop(
            kind, numpy_loops.arrays(specs)
        )
    if have_torch():
        found |= torch_steps.ways(kind, device)
    return found


def have_torch() -> bool:
    """Return whether torch can be imported."""
    return find_spec("torch") is not None


def threads() -> str:
    """Return how many threads ours and torch's steps may use on the CPU."""
    found = f"{len(os.sched_getaffinity(0))}"
    if have_torch():
        import torch

        found += f" / torch {torch.get_num_threads()}"
    return found


def parameters(specs: list[ParameterSpec]) -> int:
    """Return the number of parameters of a list."""
    return sum(prod(spec.shape) for spec in specs)

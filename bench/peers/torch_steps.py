"""What other people do: the same AdamW step parameter by parameter, in NumPy and in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

from plan.models import ParameterSpec

LR, BETA1, BETA2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01


def numpy_adamw(specs: list[ParameterSpec]) -> Callable[[], None]:
    """Return a step that loops over parameters in NumPy, in place with one scratch array each."""
    rng = np.random.default_rng(0)
    state = []
    for spec in specs:
        p, g = (rng.standard_normal(spec.shape, np.float32) for _ in range(2))
        state.append((p, g, np.zeros_like(p), np.zeros_like(p), np.empty_like(p)))
    t = 0

    def step() -> None:
        nonlocal t
        t += 1
        step_size = np.float32(LR / (1 - BETA1**t))
        correction = np.float32(1 / np.sqrt(1 - BETA2**t))
        for p, g, m, v, scratch in state:
            np.subtract(g, m, out=scratch)
            scratch *= np.float32(1 - BETA1)
            m += scratch
            np.multiply(g, g, out=scratch)
            scratch -= v
            scratch *= np.float32(1 - BETA2)
            v += scratch
            np.sqrt(v, out=scratch)
            scratch *= correction
            scratch += np.float32(EPS)
            np.divide(m, scratch, out=scratch)
            scratch *= step_size
            p *= np.float32(1 - LR * DECAY)
            p -= scratch

    return step


def have_torch() -> bool:
    """Return whether torch can be imported."""
    return find_spec("torch") is not None


def torch_parameters(specs: list[ParameterSpec], device: str) -> list[Any]:
    """Return torch parameters of the given shapes with gradients."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    out = []
    for spec in specs:
        p = torch.randn(spec.shape, device=device, generator=generator).requires_grad_()
        p.grad = torch.randn(spec.shape, device=device, generator=generator)
        out.append(p)
    return out


def torch_loop(specs: list[ParameterSpec], device: str) -> Callable[[], None]:
    """Return a step that loops over parameters with torch's in-place operations."""
    import torch

    state = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in torch_parameters(specs, device)]
    t = 0

    def step() -> None:
        nonlocal t
        t += 1
        correction = (1 - BETA2**t) ** 0.5
        with torch.no_grad():
            for p, m, v in state:
                g = p.grad
                p.mul_(1 - LR * DECAY)
                m.lerp_(g, 1 - BETA1)
                v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
                p.addcdiv_(m, (v.sqrt() / correction).add_(EPS), value=-LR / (1 - BETA1**t))

    return step


def torch_adamw(specs: list[ParameterSpec], device: str, **options: Any) -> Callable[[], None]:
    """Return torch.optim.AdamW's step with ``options`` (fused, foreach, capturable)."""
    import torch

    optimizer = torch.optim.AdamW(
        torch_parameters(specs, device),
        lr=LR,
        betas=(BETA1, BETA2),
        eps=EPS,
        weight_decay=DECAY,
        **options,
    )
    return optimizer.step


def torch_graph(step: Callable[[], None]) -> Callable[[], None]:
    """Return the replay of a step captured in a CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def torch_peers(
    specs: list[ParameterSpec], device: str
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield (name, step) of every torch way of doing the step on ``device``."""
    yield "torch per-parameter loop", torch_loop(specs, device)
    yield "torch for-loop AdamW", torch_adamw(specs, device, foreach=False, fused=False)
    yield "torch foreach AdamW", torch_adamw(specs, device, foreach=True)
    yield "torch fused AdamW", torch_adamw(specs, device, fused=True)
    if device != "cpu":
        step = torch_adamw(specs, device, fused=True, capturable=True)
        yield "torch fused AdamW, graph", torch_graph(step)


def parameters(specs: list[ParameterSpec]) -> int:
    """Return the number of parameters of a list."""
    return sum(prod(spec.shape) for spec in specs)

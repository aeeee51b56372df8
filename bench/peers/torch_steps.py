"""torch's ways of an optimizer's step: its for-loop, foreach and fused optimizers, and a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.peers.hyper import BETA1, BETA2, DECAY, EPS, LR, MOMENTUM
from plan.models import ParameterSpec

_BETAS = {"betas": (BETA1, BETA2), "eps": EPS}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": MOMENTUM}),
    "nesterov": ("SGD", {"momentum": MOMENTUM, "nesterov": True}),
    "adam": ("Adam", _BETAS),
    "adamw": ("AdamW", _BETAS),
}
"""Optimizer -> its class in torch.optim and that class's own options; torch has no others."""


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


def torch_step(
    kind: str, specs: list[ParameterSpec], device: str, **options: Any
) -> Callable[[], None]:
    """Return the step of torch's own optimizer with ``options`` (fused, foreach, capturable)."""
    import torch

    name, own = OPTIMIZERS[kind]
    made = getattr(torch.optim, name)
    return made(torch_parameters(specs, device), lr=LR, weight_decay=DECAY, **own, **options).step


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


def ways(kind: str, device: str) -> dict[str, Callable[[list[ParameterSpec]], Any]]:
    """Return every torch way of an optimizer's step on a device: name -> maker for a model."""
    found: dict[str, Callable[[list[ParameterSpec]], Any]] = {}
    if kind not in OPTIMIZERS:
        return found
    name = OPTIMIZERS[kind][0]
    make = partial(torch_step, kind, device=device)
    if kind == "adamw":
        found["torch per-parameter loop"] = partial(torch_loop, device=device)
    found[f"torch for-loop {name}"] = partial(make, foreach=False, fused=False)
    found[f"torch foreach {name}"] = partial(make, foreach=True)
    found[f"torch fused {name}"] = partial(make, fused=True)
    if device != "cpu" and name != "SGD":
        found[f"torch fused {name}, graph"] = lambda specs: torch_graph(
            make(specs, fused=True, capturable=True)
        )
    return found

"""A torch training step over the adapter's AdamW, beside torch's fused and foreach."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from bench import peers, timing
from bench.rows import row

WAYS = ("rangeops", "torch fused", "torch foreach")


def can_make(model: str) -> bool:
    """Return whether what a model needs is installed: torch, for resnet50 torchvision."""
    needed = ("torch", "torchvision") if model == "resnet50" else ("torch",)
    return all(importlib.util.find_spec(name) is not None for name in needed)


def _made(model: str, way: str) -> tuple[Callable[[], None], Any]:
    """Return (whole training step, optimizer) of a model on random data under bf16 autocast."""
    import torch
    from torch.nn import functional

    import rangeops.torch as ranged
    from bench import nets

    torch.manual_seed(0)
    net = getattr(nets, model)().cuda()
    if model == "resnet50":
        net = net.to(memory_format=torch.channels_last)
    x, y = nets.batch(model)
    hyper: dict[str, Any] = {"lr": 1e-4, "weight_decay": peers.DECAY}
    optimizer: Any
    if way == "rangeops":
        ranged.adopt(net, "adamw")
        optimizer = ranged.AdamW(net.parameters(), clear_grad=True, **hyper)
    else:
        kind: dict[str, Any] = {"fused": True} if way == "torch fused" else {"foreach": True}
        optimizer = torch.optim.AdamW(net.parameters(), capturable=True, **kind, **hyper)

    def step() -> None:
        # In a graph torch keeps its gradients, as its documentation on captured training says.
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            out = net(x)
            loss = functional.cross_entropy(out.reshape(-1, out.shape[-1]), y)
        loss.backward()
        optimizer.step()

    return step, optimizer


def trainer_steps(model: str) -> Iterator[dict[str, Any]]:
    """Time the optimizer alone (GPU and host) and the whole step, eager and in a graph."""
    import torch

    mine: dict[str, float] = {}
    for way in WAYS:
        step, optimizer = _made(model, way)
        for _ in range(3):
            step()
        alone = timing.torch_gpu(optimizer.step)
        host = timing.host(optimizer.step, torch.cuda.synchronize, 40)
        eager = timing.steady(step, torch.cuda.synchronize, 1.0)
        graph = timing.steady(peers.torch_graph(step), torch.cuda.synchronize, 1.0)
        timed = (("optimizer", alone), ("whole step, eager", eager), ("whole step, graph", graph))
        for part, taken in timed:
            mine.setdefault(part, taken.seconds)
            more: dict[str, Any] = {"ratio": round(taken.seconds / mine[part], 3)}
            if part == "optimizer":
                more["host_us"] = round(1e6 * host.seconds, 1)
                if way == "rangeops":
                    optimizer._watches = False
                    bare = timing.host(optimizer.step, torch.cuda.synchronize, 40)
                    more["host_us_unwatched"] = round(1e6 * bare.seconds, 1)
            yield row("trainer", model, f"{way}: {part}", taken, **more)
        del step, optimizer
        torch.cuda.empty_cache()

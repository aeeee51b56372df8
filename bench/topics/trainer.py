"""A torch training step over the adapter's AdamW, beside torch's fused and foreach."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from bench import timing
from bench.peers import hyper, torch_steps
from bench.rows import STEP_COLUMNS, row
from bench.topic import Topic

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
    options: dict[str, Any] = {"lr": 1e-4, "weight_decay": hyper.DECAY}
    optimizer: Any
    if way == "rangeops":
        ranged.adopt(net, "adamw")
        optimizer = ranged.AdamW(net.parameters(), clear_grad=True, **options)
    else:
        kind: dict[str, Any] = {"fused": True} if way == "torch fused" else {"foreach": True}
        optimizer = torch.optim.AdamW(net.parameters(), capturable=True, **kind, **options)

    def step() -> None:
        # In a graph torch keeps its gradients, as its documentation on captured training says.
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            out = net(x)
            loss = functional.cross_entropy(out.reshape(-1, out.shape[-1]), y)
        loss.backward()
        optimizer.step()

    return step, optimizer


def _optimizer(
    way: str, step: Callable[[], None], optimizer: Any
) -> tuple[timing.Timing, dict[str, float]]:
    """Time the optimizer alone: the GPU, and what it costs the host."""
    import torch

    if way == "rangeops":
        # A gradient that the step before has cleared is none, and a step would move nothing.
        optimizer._clears = False
        step()

    def host() -> float:
        taken = timing.host(optimizer.step, torch.cuda.synchronize, 40)
        return round(1e6 * taken.seconds, 1)

    alone = timing.torch_gpu(optimizer.step)
    more = {"host_us": host()}
    if way == "rangeops":
        optimizer._watches = False
        more["host_us_unwatched"] = host()
        optimizer._watches, optimizer._clears = True, True
    return alone, more


def trainer_steps(model: str) -> Iterator[dict[str, Any]]:
    """Time the optimizer alone (GPU and host) and the whole step, eager and in a graph."""
    import torch

    steps, optimizers = zip(*(_made(model, way) for way in WAYS), strict=True)
    for step in steps:
        for _ in range(3):
            step()
    eager = timing.in_turn(list(steps), torch.cuda.synchronize, 1.0)
    trios = zip(WAYS, steps, optimizers, strict=True)
    alone, hosts = zip(*(_optimizer(*trio) for trio in trios), strict=True)
    graphs = [torch_steps.torch_graph(step) for step in steps]
    graph = timing.in_turn(graphs, torch.cuda.synchronize, 1.0)
    timed = {"optimizer": alone, "whole step, eager": eager, "whole step, graph": graph}
    for index, way in enumerate(WAYS):
        for part, taken in timed.items():
            more = {"ratio": round(taken[index].seconds / taken[0].seconds, 3)}
            more |= hosts[index] if part == "optimizer" else {}
            yield row("trainer", model, f"{way}: {part}", taken[index], **more)


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time the models of which everything is installed."""
    for model in ("resnet50", "gpt2"):
        if can_make(model):
            yield from trainer_steps(model)
            timing.release()


TOPIC = Topic(
    "trainer",
    rows,
    {
        "trainer": (
            "A torch training step (bf16 autocast, AdamW) over the adapter and over torch's "
            "optimizers",
            {k: v for k, v in STEP_COLUMNS.items() if k not in ("gb_per_s", "share_of_copy")}
            | {"host_us": "host us", "host_us_unwatched": "unwatched"},
        )
    },
    packages=("torch",),
    in_quick=False,
)

"""Handwritten digits with PyTorch: a small CNN, autocast, EMA, the whole step in one CUDA graph.

    python -m examples.digits_torch --plot digits.png          on a GPU where there is one
    python -m examples.digits_torch --device cpu --peer        beside torch's own AdamW

Data: scikit-learn's 1,797 digits of 8 x 8 pixels, every fifth one kept for the test.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from tqdm import tqdm

import rangeops.torch as ranged

BATCH, EMA_DECAY = 128, 0.98


def network() -> nn.Module:
    """Return the CNN: two convolutions, two linear layers, 38,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def digits(device: str) -> tuple[torch.Tensor, ...]:
    """Return training images and labels, test images and labels, on ``device``."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    held = torch.arange(len(labels)) % 5 == 0
    return tuple(t.to(device) for t in (images[~held], labels[~held], images[held], labels[held]))


def captured(step: Callable[[], None], warm_up: int = 3) -> Callable[[], None]:
    """Return the replay of ``step`` captured in a CUDA graph; the warm-up's steps count."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of images that the model classifies correctly."""
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def train(
    device: str, steps: int, *, peer: bool = False, amp: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Train and return losses, test accuracy, and that of the averaged weights.

    ``peer`` trains with torch's AdamW instead, eagerly; ``amp`` computes under bf16 autocast.
    """
    torch.manual_seed(0)
    images, labels, test_images, test_labels = digits(device)
    model = network().to(device)
    optimizer: Any
    if peer:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    else:
        ranged.adopt(model, "adamw", ema=True)
        optimizer = ranged.AdamW(model.parameters(), lr=3e-3, ema_decay=EMA_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order = torch.Generator().manual_seed(1)
    x, y = images[:BATCH].clone(), labels[:BATCH].clone()
    loss = torch.zeros((), device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=amp):
            out = functional.cross_entropy(model(x), y)
        out.backward()
        optimizer.step()
        loss.copy_(out.detach())

    run, losses = step, []
    if device == "cuda" and not peer:
        start = [t.detach().clone() for t in model.parameters()]
        state = optimizer.state_dict()
        run = captured(step)
        with torch.no_grad():  # the warm-up's steps are taken back
            for p, old in zip(model.parameters(), start, strict=True):
                p.copy_(old)
        optimizer.load_state_dict(state)
    for _ in tqdm(range(steps), desc="torch" if peer else "rangeops", disable=quiet):
        chosen = torch.randint(0, len(labels), (BATCH,), generator=order).to(device)
        x.copy_(images[chosen])
        y.copy_(labels[chosen])
        if not peer:
            optimizer.sync()
        run()
        schedule.step()
        losses.append(loss.clone())
    result = {"losses": [float(value) for value in losses]}
    result["accuracy"] = accuracy(model, test_images, test_labels)
    if not peer:
        with optimizer.averaged():
            result["averaged"] = accuracy(model, test_images, test_labels)
    return result


def draw(curves: dict[str, list[float]], file: str) -> None:
    """Draw loss curves on a log scale to ``file``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(8, 4))
    for name, losses in curves.items():
        panel.plot(losses, label=name, linewidth=1)
    panel.set(yscale="log", xlabel="step", ylabel="training loss")
    panel.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    """Train as the command line says and print what came out."""
    parser = argparse.ArgumentParser(prog="python -m examples.digits_torch", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--fp32", action="store_true", help="no autocast on the GPU either")
    parser.add_argument("--peer", action="store_true", help="train with torch's AdamW as well")
    parser.add_argument("--plot", help="write the loss curves to this file")
    options = parser.parse_args()
    amp = options.device == "cuda" and not options.fp32
    found = {"rangeops": train(options.device, options.steps, amp=amp)}
    if options.peer:
        found["torch"] = train(options.device, options.steps, amp=amp, peer=True)
    for name, result in found.items():
        averaged = f", averaged weights {result['averaged']:.2%}" if "averaged" in result else ""
        print(f"{name}: loss {result['losses'][-1]:.5f}, test {result['accuracy']:.2%}{averaged}")
    if options.plot:
        draw({name: result["losses"] for name, result in found.items()}, options.plot)


if __name__ == "__main__":
    main()

"""A small torch module with everything in it, its loss, and pairs of optimizers to compare."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from tests.helpers import HAVE_GPU  # noqa: E402

WHERE = "cuda" if HAVE_GPU else "cpu"
torch.set_num_threads(1)  # several test processes share the cores, and torch's threads spin


class Tied(nn.Module):
    """Two layers that share one weight, a norm, an embedding, a frozen layer and a scalar."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.first = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        h = self.norm(torch.relu(self.first(self.embedding(x))))
        return self.head(self.frozen(h) * self.scale)


def tied(device=WHERE):
    torch.manual_seed(3)
    return Tied().to(device)


def loss_of(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 11, (8, 5), generator=generator).to(next(model.parameters()).device)
    return functional.cross_entropy(model(x).reshape(-1, 11), x.roll(1, 1).reshape(-1))


def train(model, optimizer, steps, start=0):
    for k in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(model, k).backward()
        optimizer.step()


def far(one, two):
    """Return the largest difference between the parameters of two models."""
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return max((a.detach().float() - b.detach().float()).abs().max().item() for a, b in pairs)


MAKERS = {
    "adamw": lambda m, lib: lib.AdamW(m.parameters(), lr=1e-2, weight_decay=0.1),
    "adam": lambda m, lib: lib.Adam(m.parameters(), lr=1e-2, weight_decay=0.1),
    "sgd": lambda m, lib: lib.SGD(m.parameters(), lr=0.1, weight_decay=0.01),
    "momentum": lambda m, lib: lib.SGD(m.parameters(), lr=0.05, momentum=0.9, dampening=0.1),
    "nesterov": lambda m, lib: lib.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
}


def pair(kind, **options):
    """Return (torch model, optimizer, adopted model, optimizer, adopter) from one start."""
    one, two = tied(), tied()
    adopted = ranged.adopt(two, kind, **options)
    return one, MAKERS[kind](one, torch.optim), two, MAKERS[kind](two, ranged), adopted


def two_layers(device=WHERE):
    """Return the module of most collected cases: Linear(3,4), Tanh, Linear(4,2)."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)


def two_layers_loss(model):
    x = torch.arange(12.0, device=model[0].weight.device).reshape(4, 3) / 10
    return model(x).square().mean()


def run(model, optimizer, steps):
    """Train the module of two layers on its one batch."""
    for _ in range(steps):
        optimizer.zero_grad()
        two_layers_loss(model).backward()
        optimizer.step()


def copies(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}

"""Training matches torch: digits and a small GPT, 200 steps, every optimizer that both have.

The yardstick is what float32 rounding alone does to torch's own run: its fused optimizer against
its loop, and weights moved by one ulp after each step, up and down.  A run over the arena may
differ from torch's by five of those.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from examples import digits_cupy, digits_torch  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.helpers import HAVE_GPU  # noqa: E402

WHERE = "cuda" if HAVE_GPU else "cpu"
torch.set_num_threads(1)  # several test processes share the cores, and torch's threads spin
STEPS = 200
YARDSTICKS = 5.0


class Block(nn.Module):
    """A transformer block: causal attention and an MLP, each behind a norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, c))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class SmallGPT(nn.Module):
    """Two blocks of width 32 over 23 made-up tokens, the output tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.place = nn.Embedding(23, 32), nn.Embedding(16, 32)
        self.blocks = nn.Sequential(Block(32, 4), Block(32, 4))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 23, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) * 0.1 + self.place(places) * 0.1
        return self.head(self.norm(self.blocks(x)))


def gpt_batches():
    """Return batches of a rule with noise: each token is twice the last plus one, mod 23."""
    rng = np.random.default_rng(2)
    out = []
    for _ in range(STEPS):
        tokens = np.empty((8, 17), np.int64)
        tokens[:, 0] = rng.integers(0, 23, 8)
        for t in range(1, 17):
            tokens[:, t] = (2 * tokens[:, t - 1] + 1 + (rng.random(8) < 0.1)) % 23
        whole = torch.tensor(tokens, device=WHERE)
        out.append((whole[:, :-1], whole[:, 1:].reshape(-1)))
    return out


def digit_batches():
    images, labels, *_ = digits_torch.digits(WHERE)
    order = torch.Generator().manual_seed(5)
    chosen = [torch.randint(0, len(labels), (16,), generator=order) for _ in range(STEPS)]
    return [(images[c.to(WHERE)], labels[c.to(WHERE)]) for c in chosen]


def smooth_digits():
    """Return the example's CNN without kinks: where a ReLU flips, rounding grows by thousands."""
    model = digits_torch.network()
    for k, layer in enumerate(model):
        if isinstance(layer, nn.ReLU):
            model[k] = nn.GELU()
        elif isinstance(layer, nn.MaxPool2d):
            model[k] = nn.AvgPool2d(2)
    return model


TASKS = {"digits": (smooth_digits, digit_batches), "gpt": (SmallGPT, gpt_batches)}
OPTIMIZERS = {
    "adamw": ("AdamW", {"lr": 1e-3, "weight_decay": 0.1}),
    "adam": ("Adam", {"lr": 1e-3, "weight_decay": 1e-3}),
    "sgd": ("SGD", {"lr": 0.3, "weight_decay": 1e-3}),
    "momentum": ("SGD", {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3}),
    "nesterov": ("SGD", {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
}


def start(task):
    torch.manual_seed(11)
    return TASKS[task][0]().to(WHERE)


def run(task, kind, library, *, nudge=False, scaler=False, switch=False, **options):
    """Train and return (losses, parameters); ``switch`` passes through torch's checkpoint."""
    model = start(task)
    name, hyper = OPTIMIZERS[kind]

    def attach(module, lib):
        if lib is ranged:
            ranged.adopt(module, kind)
        return getattr(lib, name)(module.parameters(), **hyper, **options)

    optimizer = attach(model, library)
    scale = torch.amp.GradScaler(WHERE, init_scale=256.0, growth_interval=50, enabled=scaler)
    losses = []
    for k, (x, y) in enumerate(TASKS[task][1]()):
        if switch and k in (STEPS // 3, 2 * STEPS // 3):
            weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model = start(task)
            optimizer = attach(model, torch.optim if k == STEPS // 3 else ranged)
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        out = model(x)
        loss = functional.cross_entropy(out.reshape(-1, out.shape[-1]), y)
        scale.scale(loss).backward()
        if scaler and k in (3, 4, 120):
            next(model.parameters()).grad.view(-1)[0] = float("inf")
        scale.step(optimizer)
        scale.update()
        if nudge:
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.nextafter(p, torch.full_like(p, (-1) ** k * torch.inf)))
        losses.append(loss.detach())
    return torch.stack(losses).cpu(), [p.detach().cpu() for p in model.parameters()]


def far(one, two):
    """Return the largest differences of losses and of parameters between two runs."""
    weights = max((a - b).abs().max().item() for a, b in zip(one[1], two[1], strict=True))
    return np.array([(one[0] - two[0]).abs().max().item(), weights])


def assert_as_torch(mine, loop, *others):
    yardstick = np.max([far(loop, other) for other in others], axis=0)
    assert (far(mine, loop) <= YARDSTICKS * yardstick + tolerance.ROUNDING).all(), (
        far(mine, loop), yardstick,
    )  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_200_steps_agree_with_torch(task, kind):
    loop = run(task, kind, torch.optim, foreach=False)
    fused = run(task, kind, torch.optim, fused=True)
    nudged = run(task, kind, torch.optim, foreach=False, nudge=True)
    mine = run(task, kind, ranged)
    assert_as_torch(mine, loop, fused, nudged)
    assert mine[0][-20:].mean() < 0.7 * mine[0][0]


@pytest.mark.parametrize("kind", ["adamw", "nesterov"])
def test_overflows_under_a_grad_scaler_agree_with_torch(kind):
    loop = run("gpt", kind, torch.optim, scaler=True, foreach=False)
    nudged = run("gpt", kind, torch.optim, scaler=True, foreach=False, nudge=True)
    assert_as_torch(run("gpt", kind, ranged, scaler=True), loop, nudged)


@pytest.mark.parametrize("kind", ["adamw", "momentum"])
def test_to_a_torch_checkpoint_and_back_midway(kind):
    """A third over the arena, a third in torch, a third over a new arena."""
    loop = run("gpt", kind, torch.optim, foreach=False)
    nudged = run("gpt", kind, torch.optim, foreach=False, nudge=True)
    assert_as_torch(run("gpt", kind, ranged, switch=True), loop, nudged)


def test_the_torch_example_learns_as_torch_does():
    found = digits_torch.train(WHERE, 300, quiet=True)
    peer = digits_torch.train(WHERE, 300, peer=True, quiet=True)
    assert found["accuracy"] >= 0.97 and found["averaged"] >= 0.97
    mine, theirs = (np.array(r["losses"]) for r in (found, peer))
    assert np.abs(mine[:50] - theirs[:50]).max() < 1e-3
    assert abs(mine[-50:].mean() - theirs[-50:].mean()) < 0.01


def test_the_cupy_example_learns():
    found = digits_cupy.train(WHERE, 1000, quiet=True)
    assert found["accuracy"] >= 0.96 and found["loss"] < 0.05

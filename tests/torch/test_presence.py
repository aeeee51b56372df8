"""When a gradient is present: as with torch, which has None behind ``zero_grad()``."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.torch.models import (  # noqa: E402
    WHERE,
    copies,
    far,
    loss_of,
    run,
    tied,
    train,
    two_layers,
    two_layers_loss,
)


@pytest.mark.parametrize("clear", [False, True])
def test_a_step_without_a_backward_pass_moves_nothing(clear):
    model = two_layers()
    holder = ranged.adopt(model, "adamw")
    optimizer = ranged.AdamW(model.parameters(), lr=0.1, weight_decay=0.5, clear_grad=clear)
    optimizer.step()
    run(model, optimizer, 2)
    before = copies(model)
    optimizer.zero_grad()
    optimizer.step()
    optimizer.step()
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert set(holder.arena.groups.steps().values()) == {2}


def test_without_zero_grad_the_gradient_counts_again():
    one, two = two_layers(), two_layers()
    ranged.adopt(two, "adamw")
    for model, lib in ((one, torch.optim), (two, ranged)):
        optimizer = lib.AdamW(model.parameters(), lr=0.1)
        two_layers_loss(model).backward()
        optimizer.step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
    assert far(one, two) < tolerance.APART


class Branches(nn.Module):
    """A trunk and two branches, of which one is used at a time."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 4)
        self.branches = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
        self.never = nn.Linear(4, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x, which):
        return self.branches[which](self.frozen(torch.tanh(self.trunk(x))))


def branches():
    torch.manual_seed(7)
    return Branches().to(WHERE)


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("through", ["optimizer", "model", "zeros"])
def test_branches_train_as_with_torch(clear, clip, batches, through):
    """A clip of torch's writes every gradient; one that backward did not reach is none even so."""
    if clear and through == "zeros":
        pytest.skip("with clear_grad a gradient is none behind the step, not zeros")
    one, two = branches(), branches()
    ranged.adopt(two, "adamw")
    for model, lib in ((one, torch.optim), (two, ranged)):
        own = {} if lib is torch.optim else {"clear_grad": clear}
        optimizer = lib.AdamW(model.parameters(), lr=0.05, weight_decay=0.1, **own)
        x = torch.linspace(-1, 1, 12, device=WHERE).reshape(4, 3)
        for step in range(6):
            if through == "optimizer":
                optimizer.zero_grad()
            else:
                model.zero_grad(set_to_none=through == "model")
            for batch in range(batches):
                which = (step // 2 + batch * (step % 2)) % 2
                (model(x + step, which) - 1).square().mean().backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
    assert far(one, two) < tolerance.APART
    assert torch.equal(two.never.weight, branches().never.weight)


def test_a_grad_scaler_makes_no_gradient_present():
    one, two = branches(), branches()
    ranged.adopt(two, "adamw")
    for model, lib in ((one, torch.optim), (two, ranged)):
        optimizer = lib.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
        scaler = torch.amp.GradScaler(WHERE, init_scale=8.0)
        for step in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3, device=WHERE), step % 2).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
    assert far(one, two) < tolerance.APART


def test_zero_grad_leaves_gradients_of_other_parameters():
    model = two_layers()
    ranged.adopt(model, "adamw")
    optimizer = ranged.AdamW(model[0].parameters(), lr=0.1)
    two_layers_loss(model).backward()
    kept = model[2].weight.grad.clone()
    optimizer.zero_grad()
    assert torch.equal(model[2].weight.grad, kept) and not model[0].weight.grad.any()
    before = copies(model)
    optimizer.step()
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_an_unfrozen_parameter_is_reached_from_its_second_step_on_too():
    one, two = tied(), tied()
    ranged.adopt(two, "adamw")
    for model, lib in ((one, torch.optim), (two, ranged)):
        optimizer = lib.AdamW(model.parameters(), lr=0.01)
        for step in range(6):
            model.frozen.requires_grad_(step in (1, 2, 4, 5))
            optimizer.zero_grad()
            loss_of(model, step).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    assert far(one, two) < tolerance.APART
    assert optimizer.state[two.frozen.weight]["step"].item() == 4


def test_a_gradient_that_came_before_adopting_counts():
    one, two = two_layers(), two_layers()
    for model in (one, two):
        two_layers_loss(model).backward()
        model[0].bias.grad = None
    ranged.adopt(two, "sgd")
    torch.optim.SGD(one.parameters(), lr=0.1).step()
    ranged.SGD(two.parameters(), lr=0.1).step()
    assert far(one, two) < tolerance.STORED


def test_an_unwatched_step_does_the_same_on_an_untouched_module():
    models = tied(), tied()
    for model, watch in zip(models, (True, False), strict=True):
        ranged.adopt(model)
        train(model, ranged.AdamW(model.parameters(), lr=1e-2, watch=watch), 5)
    assert far(*models) == 0.0


@pytest.mark.parametrize("distributed", [False, True])
def test_a_gradient_of_another_ranks_backward_counts_under_distributed(distributed, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: distributed)
    model = branches()
    ranged.adopt(model, "sgd")
    optimizer = ranged.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    model(torch.ones(2, 3, device=WHERE), 0).sum().backward()
    before = copies(model)
    for param in (*model.trunk.parameters(), *model.branches.parameters()):
        param.grad.copy_(torch.ones_like(param))  # as DistributedDataParallel does
    optimizer.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert any(n.startswith("branches.1") for n in moved) == distributed
    assert not any(n.startswith("never") for n in moved) and "trunk.weight" in moved


def test_distributed_data_parallel_trains_branches_as_with_torch():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        one, two = branches().cpu(), branches().cpu()
        ranged.adopt(two, "adamw")
        for model, lib in ((one, torch.optim), (two, ranged)):
            spread = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
            optimizer = lib.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
            for step in range(6):
                optimizer.zero_grad()
                spread(torch.ones(2, 3), step // 2 % 2).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
        assert far(one, two) < tolerance.APART
    finally:
        torch.distributed.destroy_process_group()

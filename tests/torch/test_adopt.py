"""The PyTorch adapter: views, averages, release, misuse (S31)."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from plan import PlanError  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.torch.models import WHERE, far, loss_of, pair, tied, train  # noqa: E402


def test_parameters_and_gradients_become_views_and_outputs_stay():
    model = tied()
    want = loss_of(model).item()
    classes = {name: type(p) for name, p in model.named_parameters()}
    adopted = ranged.adopt(model)
    assert loss_of(model).item() == want
    assert {name: type(p) for name, p in model.named_parameters()} == classes
    arena, storage = adopted.arena, adopted._storage
    for slot in adopted.slots:
        assert slot.param.untyped_storage().data_ptr() == storage.untyped_storage().data_ptr()
        assert slot.param.data_ptr() == arena.ptr_at(slot.planned.weight.offset)
        if slot.param.requires_grad:
            assert slot.param.grad.data_ptr() == arena.ptr_at(slot.planned.gradient.offset)
    kinds = {s.name: s.planned.kind for s in adopted.slots}
    assert kinds["embedding.weight"] == "fc_weight" and kinds["norm.bias"] == "bn_bias"
    assert kinds["first.bias"] == "fc_bias" and kinds["scale"] == "bn_weight"
    assert model.frozen.weight.grad is None


def test_s31_tied_weights_move_once():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(1, 1, bias=False)
            self.b = nn.Linear(1, 1, bias=False)
            self.b.weight = self.a.weight

        def forward(self):
            return (self.a.weight + self.b.weight).sum()

    model = Two().to(WHERE)
    model.a.weight.data.fill_(1.0)
    adopted = ranged.adopt(model, "sgd")
    assert len(adopted.slots) == 1 and model.a.weight is model.b.weight
    optimizer = ranged.SGD(model.parameters(), lr=0.1)
    model().backward()
    optimizer.step()
    assert model.a.weight.item() == pytest.approx(0.8, rel=tolerance.STORED)


def test_s31_channels_last_weights_keep_their_order():
    def conv():
        torch.manual_seed(0)
        return nn.Conv2d(3, 8, 3).to(WHERE).to(memory_format=torch.channels_last)

    one, two = conv(), conv()
    assert two.weight.stride() == (27, 1, 9, 3)
    x = torch.randn(2, 3, 9, 9, device=WHERE)
    before = two(x)
    ranged.adopt(two, "sgd")
    assert two.weight.stride() == (27, 1, 9, 3) == two.weight.grad.stride()
    assert torch.equal(two(x), before)
    optimizers = torch.optim.SGD(one.parameters(), lr=0.1), ranged.SGD(two.parameters(), lr=0.1)
    for model, optimizer in zip((one, two), optimizers, strict=True):
        model(x).square().mean().backward()
        optimizer.step()
    assert far(one, two) <= tolerance.STORED


def test_averaged_weights_go_in_and_come_back_to_the_bit():
    _, _, model, optimizer, adopted = pair("adamw", ema=True)
    optimizer.param_groups[0]["lr"] = 0.05
    shadow = {n: p.detach().clone().double() for n, p in model.named_parameters()}
    adopted.arena.scalars.ema_decay = 0.5
    for k in range(5):
        train(model, optimizer, 1, k)
        for name, param in model.named_parameters():
            if param.requires_grad:
                shadow[name] += 0.5 * (param.detach().double() - shadow[name])
    live = {n: p.detach().clone() for n, p in model.named_parameters()}
    with optimizer.averaged() as inside:
        for name, param in inside.named_parameters():
            torch.testing.assert_close(param.double(), shadow[name], **tolerance.SEQUENCE)
    assert all(torch.equal(p, live[n]) for n, p in model.named_parameters())


def test_release_gives_ordinary_tensors_back():
    _, _, model, optimizer, adopted = pair("adamw")
    train(model, optimizer, 2)
    kept = {n: p.detach().clone() for n, p in model.named_parameters()}
    adopted.release()
    for name, param in model.named_parameters():
        assert torch.equal(param, kept[name])
        assert param.untyped_storage().nbytes() == param.numel() * 4
    torch.optim.AdamW(model.parameters()).step()
    ranged.adopt(model)


def misuse_replaced(model):
    model.first.weight = nn.Parameter(torch.zeros_like(model.first.weight))


def misuse_retyped(model):
    model.to(torch.float64)


def misuse_moved(model):
    model.to("meta") if WHERE == "cpu" else model.cpu()


def misuse_rewritten(model):
    model.norm.weight.data = torch.ones(6, device=WHERE)


@pytest.mark.parametrize("misuse", [misuse_replaced, misuse_retyped, misuse_moved,
                                    misuse_rewritten])  # fmt: skip
def test_misuse_is_an_error_at_the_next_step(misuse):
    _, _, model, optimizer, adopted = pair("adamw")
    train(model, optimizer, 1)
    before = adopted.arena.download("embedding.weight")
    misuse(model)
    with pytest.raises(RuntimeError, match=r"AdamW: .* since adopt\(\), expected"):
        optimizer.step()
    np.testing.assert_array_equal(adopted.arena.download("embedding.weight"), before)


def test_refusals():
    model = tied()
    with pytest.raises(PlanError, match="no one arena holds"):
        ranged.AdamW(model.parameters())
    ranged.adopt(model, "adam")
    with pytest.raises(PlanError, match="lies in an arena already"):
        ranged.adopt(model)
    with pytest.raises(PlanError, match="adopted for adam, expected adamw; adopt it for that"):
        ranged.AdamW(model.parameters())
    with pytest.raises(ValueError, match="amsgrad got True, expected False"):
        ranged.Adam(model.parameters(), amsgrad=True)
    with pytest.raises(PlanError, match="got 0 parameters on 0 devices"):
        ranged.adopt(nn.ReLU())
    optimizer = ranged.Adam(model.parameters())
    state = optimizer.state_dict()
    state["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match="load_state_dict got groups of"):
        optimizer.load_state_dict(state)

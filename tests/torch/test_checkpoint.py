"""Checkpoints of the PyTorch adapter and of torch, both ways (S30, S32)."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.torch.models import MAKERS, WHERE, far, pair, tied, train  # noqa: E402


@pytest.mark.parametrize("kind", MAKERS)
def test_checkpoints_pass_from_torch_and_back(kind):
    one, mine, two, theirs, _ = pair(kind)
    train(one, mine, 7)
    train(two, theirs, 7)
    saved = copy.deepcopy((mine.state_dict(), theirs.state_dict()))
    mine.load_state_dict(saved[1])
    theirs.load_state_dict(saved[0])
    assert sorted(saved[0]["state"]) == sorted(saved[1]["state"])
    for index, state in saved[0]["state"].items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(
                    saved[1]["state"][index][key].cpu(), value.cpu(), **tolerance.TRAINED
                )
    train(one, mine, 7, 7)
    train(two, theirs, 7, 7)
    assert far(one, two) < 2 * tolerance.APART


def test_a_checkpoint_resumes_to_the_bit():
    _, _, whole, optimizer, _ = pair("adamw", ema=True)
    train(whole, optimizer, 12)
    _, _, first, optimizer, _ = pair("adamw", ema=True)
    train(first, optimizer, 5)
    buffer = io.BytesIO()
    torch.save((first.state_dict(), optimizer.state_dict()), buffer)
    buffer.seek(0)
    weights, state = torch.load(buffer, weights_only=True)
    _, _, second, optimizer, adopted = pair("adamw", ema=True)
    second.load_state_dict(weights)
    optimizer.load_state_dict(state)
    train(second, optimizer, 7, 5)
    assert far(whole, second) == 0.0
    assert adopted.arena.scalars.step == 12


def test_s30_checkpoints_hold_logical_tensors_only():
    model = nn.Linear(10, 1, bias=False).to(WHERE)
    wide = nn.Linear(2048, 2048, bias=False).to(WHERE)  # 16 MiB and more in one arena
    both = nn.ModuleDict({"small": model, "wide": wide})
    ranged.adopt(both)
    optimizer = ranged.AdamW(both.parameters())
    loss = both["small"](torch.ones(1, 10, device=WHERE)).sum()
    (loss + wide(torch.ones(1, 2048, device=WHERE)).sum()).backward()
    optimizer.step()
    state = optimizer.state_dict()["state"][0]
    for value in (both.state_dict()["small.weight"], model.state_dict(), state):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        assert buffer.tell() < 10_000
    fresh = nn.Linear(10, 1, bias=False)
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh.weight, model.weight.cpu())
    pointer = model.weight.data_ptr()
    model.load_state_dict({"weight": torch.full((1, 10), 2.0)})
    assert model.weight.data_ptr() == pointer and model.weight.sum().item() == 20.0


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_s32_loaded_weights_reach_the_masters(half):
    model = nn.Linear(1, 1, bias=False).to(WHERE)
    model.weight.data.fill_(0.9)
    adopted = ranged.adopt(model, "sgd", half=half, ema=True)
    optimizer = ranged.SGD(model.parameters(), lr=0.1, ema_decay=0.0)
    model.load_state_dict({"weight": torch.full((1, 1), 5.0)})
    assert adopted.slots[0].weight.item() == 5.0
    model.weight.grad.fill_(1.0)
    optimizer.step()
    assert adopted.slots[0].weight.item() == pytest.approx(4.9, rel=tolerance.STORED)
    assert model.weight.item() == {"fp16": 4.8984375, "bf16": 4.90625}[half]
    assert model.weight.dtype == {"fp16": torch.float16, "bf16": torch.bfloat16}[half]


def test_s32_a_checkpoint_fits_a_plan_with_other_slots():
    """Logical tensors: what one optimizer saved loads into a plan that lies differently."""
    _, _, one, optimizer, _ = pair("adamw")
    train(one, optimizer, 3)
    other = tied()
    ranged.adopt(other, "adamw", kinds={"*.weight": "deep_conv", "scale": "fc_weight"})
    loaded = MAKERS["adamw"](other, ranged)
    other.load_state_dict(one.state_dict())
    loaded.load_state_dict(optimizer.state_dict())
    train(one, optimizer, 3, 3)
    train(other, loaded, 3, 3)
    assert far(one, other) == 0.0

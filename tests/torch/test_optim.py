"""The optimizers of the PyTorch adapter, beside torch's (S29)."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from tests import tolerance  # noqa: E402
from tests.torch.models import MAKERS, WHERE, far, loss_of, pair, tied, train  # noqa: E402


@pytest.mark.parametrize("kind", MAKERS)
def test_training_agrees_with_torch(kind):
    one, mine, two, theirs, _ = pair(kind)
    train(one, mine, 30)
    train(two, theirs, 30)
    assert far(one, two) < 2e-5  # 30 steps; torch's own foreach and fused differ as much
    assert far(one.frozen, two.frozen) == 0.0
    np.testing.assert_array_equal(two.frozen.weight.cpu(), tied().frozen.weight.cpu())


@pytest.mark.parametrize("none", [True, False])
def test_s29_zero_grad_of_the_model_does_not_cut_the_views(none):
    model = nn.Linear(2, 2).to(WHERE)
    adopted = ranged.adopt(model, "sgd")
    optimizer = ranged.SGD(model.parameters(), lr=0.1)
    start = model.weight.detach().clone()
    for factor in (1.0, 2.0):
        model.zero_grad(set_to_none=none)
        model(torch.full((1, 2), factor, device=WHERE)).sum().backward()
        optimizer.step()
        gradient = adopted.arena.download("weight#G")
        np.testing.assert_array_equal(gradient, np.full((2, 2), factor, np.float32))
        assert model.weight.grad is adopted.slots[0].grad
    torch.testing.assert_close(model.weight.detach(), start - 0.3)


@pytest.mark.parametrize("clear", [False, True])
def test_zero_grad_forgets_a_backward_pass_that_no_step_used(clear):
    model, plain = tied(), tied()
    ranged.adopt(model)
    optimizer = ranged.AdamW(model.parameters(), lr=1e-2, clear_grad=clear)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for seed in range(3):
        for net, chosen in ((model, optimizer), (plain, reference)):
            loss_of(net, seed + 50).backward()
            chosen.zero_grad()
            loss_of(net, seed).backward()
            chosen.step()
            chosen.zero_grad()
    assert far(plain, model) < tolerance.ROUNDING


def test_unfreezing_later_is_noticed():
    _, _, model, optimizer, _ = pair("adamw")
    train(model, optimizer, 2)
    before = model.frozen.weight.detach().clone()
    model.frozen.requires_grad_(True)
    train(model, optimizer, 1, 2)
    assert not torch.equal(model.frozen.weight, before)
    model.frozen.requires_grad_(False)
    before = model.frozen.weight.detach().clone()
    train(model, optimizer, 1, 3)
    assert torch.equal(model.frozen.weight, before)


def test_a_parameter_without_a_gradient_is_left_alone():
    one, mine, two, theirs, _ = pair("adamw")
    for k in range(4):
        for model, optimizer in ((one, mine), (two, theirs)):
            model.zero_grad()
            loss_of(model, k).backward()
            if k in (1, 2):
                model.first.weight.grad = None
            optimizer.step()
    assert far(one, two) < tolerance.APART
    assert theirs.state[two.first.weight]["step"] == mine.state[one.first.weight]["step"] == 2
    before = two.first.weight.detach().clone()
    two.zero_grad()
    loss_of(two).backward()
    two.first.weight.grad = None
    theirs.step()
    assert torch.equal(two.first.weight, before)
    loss_of(two).backward()
    theirs.step()
    assert not torch.equal(two.first.weight, before)


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_half_weights_with_masters_train_under_autocast(half):
    dtype = torch.float16 if half == "fp16" else torch.bfloat16
    if WHERE == "cpu" and half == "fp16":
        dtype = torch.bfloat16  # the CPU's autocast computes in bf16; fp16 weights are cast to it
    losses = []
    for mine in (False, True):
        model = tied()
        if mine:
            adopted = ranged.adopt(model, "adamw", half=half)
            options = {"loss_scale": 1024.0} if half == "fp16" else {}
            optimizer = ranged.AdamW(model.parameters(), lr=1e-2, **options)
            assert model.first.weight.dtype != torch.float32 == model.first.bias.dtype
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(60):
            optimizer.zero_grad()
            with torch.autocast(WHERE, dtype):
                loss = loss_of(model)
            (optimizer.scale(loss) if mine and half == "fp16" else loss).backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] < 0.6 * loss_of(tied()).item() and abs(losses[0] - losses[1]) < 0.05
    adopted.release()
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_grad_scaler_passes_scale_and_flag_on_the_device():
    one, mine, two, theirs, adopted = pair("adamw")
    for model, optimizer in ((one, mine), (two, theirs)):
        scaler = torch.amp.GradScaler(WHERE, init_scale=2.0**10, growth_interval=3)
        for k in range(12):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, k)).backward()
            if k in (0, 1, 7):
                model.first.weight.grad.view(-1)[3] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 2.0**9
    assert far(one, two) < tolerance.APART
    status = theirs.status().read()
    assert (status.step, status.skipped_steps) == (9, 3)
    assert adopted.arena.scalars.grad_scale == 1.0


def test_the_own_scaler_skips_and_moves_on_the_device():
    model = tied()
    ranged.adopt(model, "adamw")
    optimizer = ranged.AdamW(model.parameters(), loss_scale=2.0**10)
    for k in range(5):
        optimizer.zero_grad()
        optimizer.scale(loss_of(model, k)).backward()
        if k == 2:
            model.scale.grad.fill_(float("nan"))
        optimizer.step()
    status = optimizer.status().read()
    assert (status.step, status.skipped_steps, status.loss_scale) == (4, 1, 2.0**9)


def test_groups_schedulers_closures_and_clipping():
    def build(model, lib):
        bias = [p for n, p in model.named_parameters() if n.endswith("bias") and p.requires_grad]
        rest = [p for n, p in model.named_parameters() if not n.endswith("bias")]
        groups = [{"params": rest}, {"params": bias, "weight_decay": 0.0, "lr": 0.05}]
        return lib.AdamW([{**g, "params": [p for p in g["params"] if p.requires_grad]}
                          for g in groups], lr=0.01, weight_decay=0.1)  # fmt: skip

    one, two = tied(), tied()
    ranged.adopt(two, "adamw")
    for model, lib in ((one, torch.optim), (two, ranged)):
        optimizer = build(model, lib)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        for k in range(10):

            def closure(model=model, optimizer=optimizer, k=k):
                optimizer.zero_grad()
                loss = loss_of(model, k)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                return loss

            assert optimizer.step(closure) > 0
            scheduler.step()
    assert far(one, two) < tolerance.APART


def test_the_fused_clip_is_torchs():
    one, two = tied(), tied()
    ranged.adopt(two, "sgd")
    mine = torch.optim.SGD(one.parameters(), lr=0.5)
    theirs = ranged.SGD(two.parameters(), lr=0.5, clip_norm=0.1, clear_grad=True)
    for k in range(6):
        mine.zero_grad()
        loss_of(one, k).backward()
        norm = nn.utils.clip_grad_norm_(one.parameters(), 0.1)
        mine.step()
        theirs.zero_grad()
        loss_of(two, k).backward()
        theirs.step()
        assert theirs.status().grad_norm == pytest.approx(
            norm.item(), rel=tolerance.TRAINED["rtol"]
        )
    assert far(one, two) < tolerance.ROUNDING


@pytest.mark.parametrize("kind", ["lars", "lamb", "lion"])
def test_the_other_optimizers_train(kind):
    model = tied()
    adopted = ranged.adopt(model, kind)
    maker = {"lars": ranged.LARS, "lamb": ranged.LAMB, "lion": ranged.Lion}[kind]
    options = {
        "lars": {"lr": 0.02, "trust_coefficient": 1.0},
        "lamb": {"lr": 0.02},
        "lion": {"lr": 3e-3},
    }
    optimizer = maker(model.parameters(), **options[kind])
    first = loss_of(model).item()
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert loss_of(model).item() < 0.8 * first
    optimizer.load_state_dict(optimizer.state_dict())
    if kind != "lion":
        ratio = adopted.arena.download("first.weight#N")[2]
        assert ratio != 1.0


def test_a_compiled_forward_and_backward_fill_the_views():
    one, two = tied(), tied()
    ranged.adopt(two, "adamw")
    compiled = torch.compile(two, backend="aot_eager")
    for model, forward, lib in ((one, one, torch.optim), (two, compiled, ranged)):
        optimizer = MAKERS["adamw"](model, lib)
        for k in range(5):
            optimizer.zero_grad()
            x = torch.randint(0, 11, (8, 5), generator=torch.Generator().manual_seed(k)).to(WHERE)
            out = forward(x)
            functional.cross_entropy(out.reshape(-1, 11), x.roll(1, 1).reshape(-1)).backward()
            optimizer.step()
    assert far(one, two) < tolerance.APART


@pytest.mark.gpu
@pytest.mark.parametrize("clear", [False, True])
def test_a_captured_training_step_equals_the_eager_one(clear):
    x = torch.randint(0, 11, (8, 5), device="cuda")

    def loss(model):
        return functional.cross_entropy(model(x).reshape(-1, 11), x.roll(1, 1).reshape(-1))

    models = []
    for captured in (False, True):
        model = tied()
        ranged.adopt(model, "adamw", ema=True)
        optimizer = ranged.AdamW(model.parameters(), lr=1e-2, clear_grad=clear)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            run = graph.replay
        else:
            run = step
        for k in range(20):
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + k)
            optimizer.sync()
            run()
        torch.cuda.synchronize()
        models.append(model)
    assert far(*models) == 0.0


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_change_during_a_capture_is_refused():
    model = tied()
    ranged.adopt(model, "adamw")
    optimizer = ranged.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 3)
    graph = torch.cuda.CUDAGraph()
    optimizer.param_groups[0]["lr"] = 0.5
    with (
        pytest.raises(RuntimeError, match="while the stream is capturing"),
        torch.cuda.graph(graph),
    ):
        optimizer.step()
    torch.cuda.synchronize()
    train(model, optimizer, 1)

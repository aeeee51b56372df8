"""The PyTorch adapter: views, optimizers, checkpoints, misuse (S29 to S32)."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import rangeops.torch as ranged  # noqa: E402
from plan import PlanError  # noqa: E402
from tests.conftest import HAVE_GPU  # noqa: E402

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


@pytest.mark.parametrize("kind", MAKERS)
def test_training_agrees_with_torch(kind):
    one, mine, two, theirs, _ = pair(kind)
    train(one, mine, 30)
    train(two, theirs, 30)
    assert far(one, two) < 2e-5  # 30 steps; torch's own foreach and fused differ as much
    assert far(one.frozen, two.frozen) == 0.0
    np.testing.assert_array_equal(two.frozen.weight.cpu(), tied().frozen.weight.cpu())


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
                    saved[1]["state"][index][key].cpu(), value.cpu(), rtol=1e-4, atol=1e-6
                )
    train(one, mine, 7, 7)
    train(two, theirs, 7, 7)
    assert far(one, two) < 2e-5


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
    assert far(plain, model) < 2e-6


def test_an_unwatched_step_does_the_same_on_an_untouched_module():
    models = tied(), tied()
    for model, watch in zip(models, (True, False), strict=True):
        ranged.adopt(model)
        train(model, ranged.AdamW(model.parameters(), lr=1e-2, watch=watch), 5)
    assert far(*models) == 0.0


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
    # torch counts steps by parameter: 2 for first.weight, where the arena counts 4.
    before = two.first.weight.detach().clone()
    two.zero_grad()
    loss_of(two).backward()
    two.first.weight.grad = None
    theirs.step()
    assert torch.equal(two.first.weight, before)
    loss_of(two).backward()
    theirs.step()
    assert not torch.equal(two.first.weight, before)


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
    assert model.a.weight.item() == pytest.approx(0.8, rel=1e-7)


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
    assert far(one, two) <= 1e-7


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
    assert adopted.slots[0].weight.item() == pytest.approx(4.9, rel=1e-7)
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
    assert far(one, two) < 1e-5
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
    assert far(one, two) < 1e-5
    with pytest.raises(ValueError, match="param groups differ in betas, eps, expected one value"):
        optimizer.param_groups[1]["betas"] = (0.5, 0.9)
        optimizer.step()


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
        assert theirs.status().grad_norm == pytest.approx(norm.item(), rel=1e-4)
    assert far(one, two) < 1e-6


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
            torch.testing.assert_close(param.double(), shadow[name], rtol=1e-5, atol=1e-6)
    assert all(torch.equal(p, live[n]) for n, p in model.named_parameters())


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
    assert far(one, two) < 1e-5


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

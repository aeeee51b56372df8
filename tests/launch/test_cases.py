"""Failures that others met: capture, streams, packaging, constants, metrics.

S25, S26, S34, S35, S36.
"""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import rangeops
from plan import MemoryPlan, PlanConfig, Range
from rangeops import REGISTRY, Arena, ops
from rangeops.kernels.spec import Kernel
from tests import tolerance
from tests.helpers import optimizer_for, raw_arena, small_plan
from tests.kernels.test_build import without_simulator

ROOT = Path(__file__).parents[2]


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(REGISTRY))
def test_s25_a_first_use_inside_a_capture_is_one_clear_error(name):
    import cupy

    op = REGISTRY[name]
    plan = small_plan(optimizer_for(op), half="fp16", ema=True, accumulate=True)
    arena = Arena(plan)
    spans = {o.name: plan.series_range("G" if o.name == "dst" else "W")
             for o in op.operands if not o.series}  # fmt: skip
    if name == "average_half":
        spans = {"x": plan.series_range("A")}
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        with pytest.raises(
            RuntimeError, match=f"{name}: got its first use while the stream is cap"
        ):
            op(arena, **spans)
        with pytest.raises(RuntimeError, match="host read while the stream is capturing"):
            arena.scalars.skip_step  # noqa: B018
        with pytest.raises(RuntimeError, match="host write while the stream is capturing"):
            arena.scalars.lr = 1.0
        stream.end_capture()
        launch = op.bind(arena, **spans)
        stream.begin_capture()
        launch()
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    assert stream.done


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adamw", "momentum", "ema", "check_nan", "sema_switch"])
def test_a_replay_equals_the_eager_launch(name):
    import cupy

    from rangeops.verify import fill_random

    op = REGISTRY[name]
    plan = small_plan(optimizer_for(op), half="fp16", ema=True, accumulate=True)
    arena = Arena(plan)
    fill_random(arena)
    begin, launch = ops.begin_step.bind(arena), op.bind(arena)
    stream = cupy.cuda.Stream(non_blocking=True)
    start = arena.memory.get()
    cupy.cuda.Device().synchronize()
    with stream:
        for lr in (0.5, 0.25):
            arena.scalars.lr = lr
            begin(), launch()
        eager = arena.memory.get(stream=stream)
        stream.synchronize()
        arena.memory.set(start, stream=stream)
        stream.begin_capture()
        begin(), launch()
        graph = stream.end_capture()
        for lr in (0.5, 0.25):
            arena.scalars.lr = lr
            graph.launch(stream)
        replayed = arena.memory.get(stream=stream)
        stream.synchronize()
    np.testing.assert_array_equal(replayed, eager)


SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {}
}
"""


def spin(stream):
    """Return a call that keeps ``stream`` busy for about 50 ms."""
    import cupy

    kernel = cupy.RawKernel(SPIN, "spin")
    return lambda: kernel((1,), (1,), (np.int64(90_000_000),))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["cupy", "default", "handle", "core"])
def test_s26_launches_follow_the_stream_of_the_caller(kind):
    import cupy

    plan = MemoryPlan(PlanConfig("sgd"))
    p = plan.parameter("w", "fc_weight", (4096,))
    arena = Arena(plan.finalize())
    arena.scalars.lr = 0.1
    begin, sgd = ops.begin_step.bind(arena), ops.sgd.bind(arena)
    own = cupy.cuda.Stream.null if kind == "default" else cupy.cuda.Stream(non_blocking=True)
    busy = spin(own)
    cupy.cuda.Device().synchronize()
    for _ in range(10 if kind == "cupy" else 3):
        with own:
            arena["w"] = 1.0
            arena[p.gradient] = 0.0
            busy()
            arena[p.gradient] = 1.0
        if kind in ("cupy", "default"):
            with own:
                begin(), sgd()
        else:
            handle = own.ptr if kind == "handle" else own
            begin(handle), sgd(handle)
        with own:
            got = arena.download("w")
        assert (got == np.float32(1) - np.float32(0.1)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("side", [False, True])
def test_s26_torch_streams(side):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import cupy

    memory = torch.zeros(3 * 4096, dtype=torch.float32, device="cuda")
    spans = {"p": Range(0, 4096), "g": Range(4096, 4096)}
    sgd = ops.sgd.bind(memory, lr=0.1, **spans)
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    pageable = torch.ones(1 << 19)
    torch.cuda.synchronize()
    busy = spin(stream)
    for _ in range(5):
        with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
            memory[:1024] = 1.0
            memory[1024:2048] = 0.0
            busy()
            pageable.to("cuda", non_blocking=True)
            memory[1024:2048].fill_(1.0)
            sgd()
            got = memory[:1024].cpu().numpy()
        assert (got == np.float32(1) - np.float32(0.1)).all()


def test_s34_the_metadata_bound_numpy_below_the_release_that_breaks_numba_cuda():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bound,) = [d for d in project["dependencies"] if d.startswith("numpy")]
    assert bound == "numpy>=2.0,<2.5"
    major, minor = map(int, metadata.version("numpy").split(".")[:2])
    assert (2, 0) <= (major, minor) < (2, 5)


def test_s34_one_op_runs_on_the_installed_versions(device):
    arena = raw_arena(512, device, 0xFF)
    ops.clear(arena, Range(0, 256))
    assert arena.read(Range(0, 512)).sum() == 256 * 255


LITERALS = """
from rangeops import ops
from rangeops.kernels import build
key = tuple(sorted(dict(half=None, half_grad=False, half_copy=False, ema=False,
                        clear_grad=False).items()))
print(build.cache_key(ops.adamw.kernel, key, "sm_90"))
"""


def test_s35_there_is_no_module_level_default_to_change():
    """Hyper-parameters live in device scalars; what modules hold are layouts, not settings."""
    import importlib
    import pkgutil

    settings = {"lr", "eps", "beta1", "beta2", "weight_decay", "momentum", "trust_coefficient"}
    for info in pkgutil.iter_modules(rangeops.ops.__path__):
        module = importlib.import_module(f"rangeops.ops.{info.name}")
        for name, value in vars(module).items():
            assert not (isinstance(value, float)), f"{info.name}.{name}"
            assert (
                name.lower() not in settings or callable(value) or isinstance(value, int | Kernel)
            )


@pytest.mark.parametrize("name", ["adamw", "momentum", "sgd"])
def test_s35_a_changed_hyper_parameter_takes_effect_without_a_new_kernel(name, device):
    from rangeops.kernels import build

    plan = small_plan("momentum" if name == "momentum" else name)
    arena = Arena(plan, device=device)
    begin, update = ops.begin_step.bind(arena), getattr(ops, name).bind(arena)
    misses = [
        c.cache_info().misses for c in (build.gpu_kernel, build.simulated_kernel, build.cpu_loop)
    ]
    arena["fc.weight#G"] = 1.0
    moved = []
    for lr in (0.5, 0.25):
        arena["fc.weight"] = 1.0
        for state in ("fc.weight#M", "fc.weight#V"):
            if state in plan.tensors:
                arena[state] = 0.0
        arena.scalars.set(lr=lr, step=0)
        begin(), update()
        moved.append(1.0 - float(arena.download("fc.weight")[0, 0]))
    assert moved[0] == pytest.approx(2 * moved[1], rel=tolerance.STEP)
    assert misses == [
        c.cache_info().misses for c in (build.gpu_kernel, build.simulated_kernel, build.cpu_loop)
    ]


def test_s35_halves_are_widened_before_they_are_compared(device):
    """1.0 in fp16 is below a bound of 1.000001 and is not clamped."""
    plan = MemoryPlan(PlanConfig("sgd", half="fp16"))
    p = plan.parameter("w", "fc_weight", (8,))
    arena = Arena(plan.finalize(), device=device)
    arena[p.half_gradient] = np.full(8, 1.0, np.float16)
    arena.scalars.clip_value = 1.000001
    ops.check_nan(arena, half_grad=True, clip=True)
    assert (arena.download(p.half_gradient) == 1.0).all()


def test_s35_a_cache_key_is_the_same_in_a_second_process():
    keys = {without_simulator("-c", LITERALS).stdout.strip() for _ in range(2)}
    assert len(keys) == 1 and len(keys.pop()) == 64


def metrics(device="cpu"):
    arena = Arena(small_plan(), device=device)
    return arena, ops.accumulate_metrics.bind(arena)


def test_s36_counts_go_on_above_two_to_the_24(device):
    arena, add = metrics(device)
    arena["accumulated.top1"] = np.array([16_777_216, 0], np.float32)
    arena["accumulated.samples"] = np.array([1, 0], np.float32)
    arena["result.top1"] = 1.0
    for _ in range(10):
        add()
    high, low = arena.download("accumulated.top1").astype(np.float64)
    assert high + low == 16_777_226


def test_s36_two_million_losses_keep_their_digits():
    arena, add = metrics()
    arena["result.loss"] = 0.1
    for _ in range(2_000_000):
        add()
    found = ops.read_metrics(arena)
    assert found["samples"] == 2_000_000
    assert found["loss"] * 2_000_000 == pytest.approx(200_000.003, rel=tolerance.STEP)


def test_s36_a_nonfinite_batch_is_left_out_of_sums_and_samples(device):
    arena, add = metrics(device)
    arena.scalars.batch_size = 32
    for loss in (2.0, float("nan"), 4.0, float("inf")):
        arena["result.loss"] = loss
        arena["result.top1"] = 0.5
        add()
    assert ops.read_metrics(arena) == {"loss": 3.0, "top1": 0.5, "top5": 0.0, "samples": 64.0}


def test_metrics_of_nothing_are_zero():
    arena, _ = metrics()
    assert ops.read_metrics(arena) == {"loss": 0.0, "top1": 0.0, "top5": 0.0, "samples": 0.0}

"""The mixed-precision step: check, unscale, AdamW, EMA, half copy, clear; 40 bytes a parameter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from bench import peers, timing
from bench.fill import fill
from bench.peers import hyper, torch_steps
from bench.rows import STEP_COLUMNS, row
from bench.topic import Topic
from plan import PlanConfig
from plan.models import MODELS, ParameterSpec, plan_model
from rangeops import Arena, OptimizerStep, ops

EMA_DECAY, SCALE = 0.999, 1024.0
BYTES = 40


def unfused(arena: Arena) -> Callable[[], None]:
    """Return the same step as six range ops, one after the other."""
    assert arena.plan is not None
    launches = [
        ops.check_nan.bind(arena, half_grad=True),
        ops.begin_step.bind(arena),
        ops.adamw.bind(arena, half_grad=True),
        ops.ema.bind(arena),
        ops.cast_fp32_to_fp16.bind(arena),
        ops.clear.bind(arena, arena.plan.series_range("G", "weight", half=True)),
    ]

    def step() -> None:
        for launch in launches:
            launch()

    return step


def torch_loop(specs: list[ParameterSpec]) -> Callable[[], None]:
    """Return the step parameter by parameter in torch."""
    import torch

    params = torch_steps.torch_parameters(specs, "cuda")
    state = [
        (
            p,
            p.grad.half(),
            p.detach().half(),
            torch.zeros_like(p),
            torch.zeros_like(p),
            p.detach().clone(),
        )
        for p in params
    ]
    t = 0

    def step() -> None:
        nonlocal t
        t += 1
        root = (1 - hyper.BETA2**t) ** 0.5
        with torch.no_grad():
            for p, g16, half, m, v, e in state:
                g = g16.float().mul_(1 / SCALE)
                torch.isfinite(g).all()
                p.mul_(1 - hyper.LR * hyper.DECAY)
                m.lerp_(g, 1 - hyper.BETA1)
                v.mul_(hyper.BETA2).addcmul_(g, g, value=1 - hyper.BETA2)
                denominator = (v.sqrt() / root).add_(hyper.EPS)
                p.addcdiv_(m, denominator, value=-hyper.LR / (1 - hyper.BETA1**t))
                e.lerp_(p, 1 - EMA_DECAY)
                half.copy_(p)
                g16.zero_()

    return step


def torch_foreach(specs: list[ParameterSpec]) -> Callable[[], None]:
    """Return the step with torch's foreach calls and fused capturable AdamW."""
    import torch

    params = torch_steps.torch_parameters(specs, "cuda")
    g32 = [p.grad for p in params]
    g16 = [g.half() for g in g32]
    half = [p.detach().half() for p in params]
    averaged = [p.detach().clone() for p in params]
    plain = [p.detach() for p in params]
    found = torch.zeros((), device="cuda")
    inverse = torch.full((), 1 / SCALE, device="cuda")
    optimizer = torch.optim.AdamW(
        params, lr=hyper.LR, weight_decay=hyper.DECAY, fused=True, capturable=True
    )

    def step() -> None:
        with torch.no_grad():
            torch._foreach_copy_(g32, g16)
            found.zero_()
            torch._amp_foreach_non_finite_check_and_unscale_(g32, found, inverse)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(half, plain)
            torch._foreach_lerp_(averaged, plain, 1 - EMA_DECAY)
            torch._foreach_zero_(g16)

    return step


_CUPY_STEP = """
float grad = float(g) * inv;
m += omb1 * (grad - m);
v += omb2 * (grad * grad - v);
p = p * keep - size * (m / (sqrtf(v) * isb2 + eps));
e += d * (p - e);
a = float16(p);
g = float16(0.0f);
"""


def cupy_elementwise(specs: list[ParameterSpec]) -> Callable[[], None]:
    """Return the step on flat CuPy arrays: a finite check, then one ElementwiseKernel."""
    import cupy

    n = peers.parameters(specs)
    generator = cupy.random.default_rng(0)
    p, e, v, m = (generator.standard_normal(n, dtype=cupy.float32) for _ in range(4))
    cupy.abs(v, out=v)
    g = generator.standard_normal(n, dtype=cupy.float32).astype(cupy.float16)
    a = p.astype(cupy.float16)
    scalars = ("inv", "omb1", "omb2", "keep", "size", "isb2", "eps", "d")
    update = cupy.ElementwiseKernel(
        ", ".join(f"float32 {name}" for name in scalars),
        "float32 p, float32 m, float32 v, float32 e, float16 a, float16 g",
        _CUPY_STEP,
        "adamw_step",
    )
    values = (1 / SCALE, 1 - hyper.BETA1, 1 - hyper.BETA2, 1.0, hyper.LR, 1.0, hyper.EPS, 1e-3)

    def step() -> None:
        cupy.isfinite(g).all()
        update(*(cupy.float32(x) for x in values), p, m, v, e, a, g)

    return step


def optax_step(specs: list[ParameterSpec]) -> Any:
    """Return optax's jitted FP32 AdamW over a list of arrays, or None without JAX on a GPU."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
        import optax
    except ImportError:
        return None
    if jax.default_backend() != "gpu":
        return None
    keys = jax.random.split(jax.random.PRNGKey(0), 2 * len(specs))
    params = [jax.random.normal(k, s.shape) for k, s in zip(keys, specs, strict=False)]
    grads = [jax.random.normal(k, s.shape) for k, s in zip(keys[len(specs) :], specs, strict=True)]
    optimizer = optax.adamw(hyper.LR, weight_decay=hyper.DECAY)
    state = optimizer.init(params)

    def update(params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    jitted = jax.jit(update, donate_argnums=(0, 1))
    box = [params, state]

    def step() -> None:
        box[:] = jitted(*box, grads)

    return step, lambda: jax.block_until_ready(box)


def amp_steps(model: str) -> Iterator[dict[str, Any]]:
    """Time one model's mixed-precision step: fused in a graph and eager, unfused, torch's ways."""
    import cupy

    specs = MODELS[model]()
    arena = Arena(plan_model(specs, PlanConfig("adamw", half="fp16", ema=True)))
    fill(arena)
    arena.scalars.set(lr=hyper.LR, weight_decay=hyper.DECAY, ema_decay=EMA_DECAY)
    step = OptimizerStep(arena, resume=True, loss_scale=SCALE)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    rate = timing.copy_rate(step.nbytes, stream)
    with stream:
        graph = step.capture()
        replay = timing.gpu(graph.replay, stream)
        eager = timing.steady(step, stream.synchronize)
        apart = timing.gpu(unfused(arena), stream)
        costs = [timing.host(call, stream.synchronize, 200) for call in (graph.replay, step)]

    def line(name: str, taken: timing.Timing, nbytes: int | None, **more: Any) -> dict[str, Any]:
        ratio = round(taken.seconds / replay.seconds, 2)
        return row("amp-step", model, name, taken, nbytes, rate, ratio=ratio, **more)

    host = [round(1e6 * cost.seconds, 2) for cost in costs]
    yield line("rangeops, graph", replay, step.nbytes, host_us=host[0])
    yield line("rangeops, eager", eager, step.nbytes, host_us=host[1])
    yield line("rangeops, six unfused ops", apart, None)
    step.close()
    clipped = OptimizerStep(arena, resume=True, clip_norm=1.0)
    cupy.cuda.Device().synchronize()
    with stream:
        taken = timing.gpu(clipped.capture().replay, stream)
    yield line("rangeops with global-norm clip, graph", taken, clipped.nbytes)
    with stream:
        taken = timing.steady(cupy_elementwise(specs), stream.synchronize)
    yield line("CuPy ElementwiseKernel on flat arrays", taken, None)
    optax = optax_step(specs)
    if optax is not None:
        yield line("optax adamw, jitted (FP32: no check, EMA, half)", timing.steady(*optax), None)
    if not peers.have_torch():
        return
    import torch

    foreach = torch_foreach(specs)
    for name, peer in (
        ("torch foreach + fused, eager", foreach),
        ("torch foreach + fused, graph", torch_steps.torch_graph(foreach)),
        ("torch per-parameter loop", torch_loop(specs)),
    ):
        yield line(name, timing.steady(peer, torch.cuda.synchronize), None)


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time every model's step."""
    for model in ("resnet50",) if quick else ("resnet50", "gpt2", "vgg16_bn"):
        yield from amp_steps(model)
        timing.release()


TOPIC = Topic(
    "amp",
    rows,
    {
        "amp-step": (
            "Mixed-precision step (check, unscale, AdamW, EMA, half copy, clear) on the GPU",
            STEP_COLUMNS | {"host_us": "host us"},
        )
    },
)

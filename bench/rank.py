"""One rank of the topic "ranks": ``python -m bench.rank`` with a launcher's variables.

All ranks measure together; rank 0 prints a row a line, in JSON.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bench import peers, timing
from bench.fill import fill
from bench.peers import hyper
from bench.rows import row
from plan import PlanConfig, Range
from plan.models import MODELS, plan_model
from rangeops import Arena, write_kept
from rangeops.ranks import Call, Ranks, ReplicatedStep, Shard, ShardedStep, World, rank_info

MODELS_TIMED = ("resnet50", "gpt2")
BUCKET = 25 << 20
"""Bytes of torch DDP's buckets."""


class _Timer:
    """Times the same call on all ranks at once; the slowest counts."""

    def __init__(self, world: World, stream: Any) -> None:
        self._world, self._stream = world, stream

    def __call__(self, call: Callable[[], Any]) -> timing.Timing:
        self._world.exchange(0)
        with self._stream:
            taken = timing.gpu(call, self._stream)
        found = self._world.exchange([taken.seconds, taken.spread])
        return timing.Timing(*max(found))


def _reductions(model: str, ranks: Ranks, timer: _Timer, stream: Any) -> Iterator[dict[str, Any]]:
    import cupy

    arena, plan, world = ranks.arena, ranks.plan, ranks.world
    span = plan.series_range("G")
    buckets = plan.bucket1, plan.bucket2
    nbytes = sum(b.size for b in buckets)
    factor = 2 * (world.size - 1) / world.size
    flat = cupy.random.default_rng(0).random(nbytes // 4, cupy.float32)
    one = ranks.all_reduce_sum(*buckets)
    tensors = [t for t in plan if span.base_offset <= t.offset < span.end]
    each = [ranks.all_reduce_sum((t.offset, t.slot_bytes)) for t in tensors]
    together = ranks.bind(*(c for one_ in each for c in one_.calls))

    whole = Call("all_reduce", Range(0, nbytes), "fp32", "sum", label="a flat buffer")

    def own() -> None:
        ranks.communicator.run((whole,), [flat], stream.ptr)

    def loop() -> None:
        for reduce in each:
            reduce()

    subjects: list[tuple[str, Callable[[], Any]]] = [
        ("rangeops all_reduce_sum, two buckets", one),
        ("NCCL, one flat buffer", own),
        (f"NCCL, {len(each)} tensors one by one", loop),
        (f"NCCL, {len(each)} tensors in one group", together),
    ]
    mine = 0.0
    for subject, call in subjects:
        taken = timer(call)
        mine = mine or taken.seconds
        rate = factor * nbytes / taken.seconds
        more = {"bus_gb_per_s": round(rate / 1e9, 1), "ratio": round(taken.seconds / mine, 3)}
        yield row("ranks", model, subject, taken, nbytes, **more)
    arena.view(span)[:] = 0


def _torch_buckets(model: str, nbytes: int, world: World, mine: float) -> Iterator[dict[str, Any]]:
    """Time torch's all-reduce of DDP's bucket sizes, through torch.distributed."""
    import torch
    from torch import distributed

    where = world.info
    distributed.init_process_group(
        "nccl",
        init_method=f"tcp://{where.address}:{where.port + 1}",
        rank=where.rank,
        world_size=where.size,
        device_id=torch.device(where.device),
    )
    sizes = [1 << 20, *[BUCKET] * ((nbytes - (1 << 20)) // BUCKET)]
    sizes.append(nbytes - sum(sizes))
    flats = [torch.rand(size // 4, device="cuda") for size in sizes if size]

    def reduce() -> None:
        works = [distributed.all_reduce(flat, async_op=True) for flat in flats]
        for work in works:
            work.wait()

    for _ in range(3):
        reduce()
    taken = timing.torch_gpu(reduce)
    slowest = timing.Timing(*max(world.exchange([taken.seconds, taken.spread])))
    distributed.destroy_process_group()
    rate = 2 * (world.size - 1) / world.size * nbytes / slowest.seconds
    more = {"bus_gb_per_s": round(rate / 1e9, 1), "ratio": round(slowest.seconds / mine, 3)}
    yield row("ranks", model, f"torch, DDP's {len(flats)} buckets", slowest, nbytes, **more)


def _steps(model: str, world: World, timer: _Timer) -> Iterator[dict[str, Any]]:
    """Time the step with its collectives in a graph, and weigh the arena, both ways."""
    from cupy.cuda import runtime

    for half in ("fp16", None):
        plan = plan_model(MODELS[model](), PlanConfig("adamw", half=half))
        for kind in (ReplicatedStep, ShardedStep):
            sharded = kind is ShardedStep
            shard = Shard(plan, world.rank, world.size)
            unmapped = shard.unmapped(masters=True) if sharded else []
            gc.collect()
            before = runtime.memGetInfo()[0]
            arena = Arena(plan, world.info.device, unmapped=unmapped)
            weight = before - runtime.memGetInfo()[0]
            for tensor in plan.weights():
                write_kept(arena, tensor, 1e-2)
            ranks = Ranks(arena, world)
            step = kind(ranks, lr=hyper.LR, check=True)
            step()
            graph = step.capture()
            taken = timer(graph.replay)
            what = "fp16 gradients and copies" if half else "FP32"
            name = f"{'sharded' if sharded else 'replicated'} step, {what}, graph"
            yield row("ranks", model, name, taken, arena_mb=round(weight / 1e6, 1))
            ranks.close()
            del arena, step, graph, ranks


def main() -> int:
    """Run as one rank; rank 0 prints its rows."""
    import cupy

    where = rank_info()
    device = where.take_device()
    stream = cupy.cuda.Stream(non_blocking=True)
    with World(where) as world:
        timer = _Timer(world, stream)
        for model in MODELS_TIMED:
            arena = Arena(plan_model(MODELS[model](), PlanConfig("adamw")), device)
            fill(arena)
            ranks = Ranks(arena, world)
            found = list(_reductions(model, ranks, timer, stream))
            ranks.close()
            if peers.have_torch():
                mine = found[0]["ms"] / 1e3
                found += _torch_buckets(model, found[0]["bytes"], world, mine)
            del arena, ranks
            found += _steps(model, world, timer)
            if world.rank == 0:
                for line in found:
                    print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

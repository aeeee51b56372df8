"""Saving and loading a checkpoint against a plain write and read of the same bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import timing
from bench.fill import fill
from bench.rows import row
from bench.topic import Topic
from plan import PlanConfig
from plan.models import MODELS, plan_model
from rangeops import Arena, load, save

ROUNDS = 7


def plain_write(file: Path, content: bytes) -> None:
    """Write bytes as safely as a checkpoint is: synced, then renamed."""
    part = file.with_suffix(".part")
    with open(part, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, file)


def plain_read(file: Path) -> None:
    """Read a file into fresh memory."""
    with open(file, "rb", buffering=0) as source:
        source.readinto(np.empty(file.stat().st_size, np.uint8).data)


def alternately(*calls: Callable[[], Any]) -> list[timing.Timing]:
    """Time calls in turn, so that a disk's moods touch all alike; the first is a trial."""
    taken: list[list[float]] = [[] for _ in calls]
    for k in range(ROUNDS + 1):
        for call, samples in zip(calls, taken, strict=True):
            seconds = timing.once(call)
            if k:
                samples.append(seconds)
    return [timing.summary(samples) for samples in taken]


def checkpoints(model: str) -> Iterator[dict[str, Any]]:
    """Time AdamW with averages: weights, two moments and the average, four series of FP32."""
    arena = Arena(plan_model(MODELS[model](), PlanConfig("adamw", ema=True)))
    fill(arena)
    arena.scalars.step = 1
    with tempfile.TemporaryDirectory() as folder:
        file, other = Path(folder) / "run.safetensors", Path(folder) / "plain"
        save(arena, file)
        size, content = file.stat().st_size, file.read_bytes()
        written = alternately(lambda: save(arena, file), lambda: plain_write(other, content))
        read = alternately(lambda: load(arena, file), lambda: plain_read(other))
    for what, (ours, plain) in (("save", written), ("load", read)):
        share = round(plain.seconds / ours.seconds, 4)
        yield row("checkpoint", model, f"rangeops {what}", ours, size, share_of_plain=share)
        name = {"save": "write, sync, rename", "load": "read"}[what]
        yield row("checkpoint", model, f"plain {name}", plain, size)


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time one model quickly, or two."""
    for model in ("mlp",) if quick else ("resnet50", "gpt2"):
        yield from checkpoints(model)
        timing.release()


TOPIC = Topic(
    "checkpoints",
    rows,
    {
        "checkpoint": (
            "A checkpoint of AdamW with averages against plain files of the same bytes",
            {
                "case": "model",
                "subject": "what",
                "bytes": "bytes",
                "ms": "ms",
                "spread": "spread",
                "gb_per_s": "GB/s",
                "share_of_plain": "plain / ours",
            },
        )
    },
    gpus=0,
)

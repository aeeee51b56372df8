"""Two GPUs: all-reduce of a range beside NCCL's own, per tensor and torch's; steps of two ranks.

Bus bandwidth is 2*(n-1)/n * bytes / time, as NCCL's own tests count it; times are the slower
rank's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bench.topic import Topic


def rows_of_ranks(size: int = 2) -> Iterator[dict[str, Any]]:
    """Start ``size`` ranks (``bench.rank``) on as many GPUs and yield rank 0's rows."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    started = []
    for rank in range(size):
        own = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "bench.rank"],
                env=os.environ | own | {"RANGEOPS_PORT": port},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    printed = started[0].communicate()[0]
    for rank, process in enumerate(started):
        if process.wait():
            raise RuntimeError(
                f"ranks: rank {rank} ended with status {process.returncode}, expected 0; "
                "its own words are on stderr"
            )
    yield from (json.loads(line) for line in printed.splitlines() if line.startswith("{"))


TOPIC = Topic(
    "ranks",
    lambda quick: rows_of_ranks(),
    {
        "ranks": (
            "Two GPUs: all-reduce of all gradients in FP32, and whole steps",
            {
                "case": "model",
                "subject": "what",
                "ms": "ms",
                "spread": "spread",
                "bus_gb_per_s": "bus GB/s",
                "ratio": "time / ours",
                "arena_mb": "arena MB",
            },
        )
    },
    gpus=2,
    packages=("nccl",),
    in_quick=False,
)

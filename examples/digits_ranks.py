"""Handwritten digits by several ranks: data-parallel training of the MLP of digits_cupy.

    torchrun --nproc-per-node 2 -m examples.digits_ranks     a process a GPU, or CPU arenas
    python -m examples.digits_ranks                          one rank: the same training
    for r in 0 1; do RANK=$r WORLD_SIZE=2 python -m examples.digits_ranks --device cpu & done; wait

Every rank draws the same 128 images a step and takes its part of them; gradients are added up, the
update divides by the number of ranks, so the result is that of one process but for rounding.  With
``--sharded`` each rank updates its share of the weights (ZeRO-1).
"""

from __future__ import annotations

import argparse

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from examples.digits_cupy import BATCH, Network, digits, library, measured, planned
from rangeops import Arena
from rangeops.ranks import Ranks, ReplicatedStep, ShardedStep, World


def train(world: World, device: str, steps: int, sharded: bool) -> dict[str, float]:
    """Train with the other ranks; return the last loss of this rank's images, and the accuracy."""
    if BATCH % world.size:
        raise SystemExit(f"digits_ranks: {world.size} ranks do not divide {BATCH} images a step")
    own = BATCH // world.size
    arena = Arena(planned(own), device=device)
    xp = library(arena)
    network = Network(arena, xp)  # the same start on every rank
    ranks = Ranks(arena, world)
    kind = ShardedStep if sharded else ReplicatedStep
    optimizer = kind(ranks, lr=3e-3, weight_decay=0.01)
    x, y, test, target = map(xp.asarray, digits())
    rng = np.random.default_rng(1)

    def take(k: int) -> None:
        chosen = rng.integers(0, len(x), BATCH)[world.rank * own : (world.rank + 1) * own]
        network.x[...] = x[xp.asarray(chosen)]
        network.target[...] = y[xp.asarray(chosen)]
        arena.scalars.lr = 3e-3 * (1 - k / steps)

    take(0)
    network.step()
    optimizer()  # kernels and connections are made before the capture
    graph = optimizer.capture(before=[network.step])
    for k in tqdm(range(1, steps), desc=f"{world.size} ranks", disable=world.rank > 0):
        take(k)
        graph.replay()
    found = measured(network, test, target)
    ranks.close()
    return found


def main() -> None:
    """Train as the command line and the environment say; rank 0 prints what came out."""
    parser = argparse.ArgumentParser(prog="python -m examples.digits_ranks", description=__doc__)
    parser.add_argument("--device", choices=["cpu"], help="instead of a GPU a rank")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--sharded", action="store_true", help="each rank updates its own share")
    options = parser.parse_args()
    with World() as world:
        device = options.device or world.take_device()
        if device == "cpu" and world.size > 1:
            # The ranks' BLAS threads would spin for the same cores: 17 steps a second on two cores
            # instead of 720 (this module, two ranks); torchrun sets OMP_NUM_THREADS=1 for that.
            threadpool_limits(1)
        found = train(world, device, options.steps, options.sharded)
        if world.rank == 0:
            print(f"loss {found['loss']:.5f}, test {found['accuracy']:.2%}")


if __name__ == "__main__":
    main()

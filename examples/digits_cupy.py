"""Handwritten digits without a framework: an MLP written out in CuPy on views of one arena.

    python -m examples.digits_cupy                 on a GPU: the whole step is one CUDA graph
    python -m examples.digits_cupy --device cpu    the same lines under NumPy

Forward and backward are sums of products into fixed buffers of the arena; CuPy refuses cuBLAS
while it captures, so on a GPU they are one reduction kernel.  The optimizer is AdamW over the
whole model.  Data: scikit-learn's 1,797 digits, every fifth one kept for the test.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

from rangeops import Arena, DType, MemoryPlan, OptimizerStep, PlanConfig, Region, models

BATCH, WIDTHS = 128, (64, 128, 64, 10)


def planned(batch: int = BATCH) -> MemoryPlan:
    """Return the plan: parameters, and a buffer for every value of the step."""
    plan = MemoryPlan(PlanConfig("adamw"))
    for spec in models.mlp(WIDTHS):
        plan.parameter(*spec)
    plan.alloc(Region.I_A_DATA, (batch, WIDTHS[0]), "x", DType.FP32)
    plan.alloc_temp((batch, WIDTHS[-1]), DType.FP32, "target")
    plan.alloc_temp((1, batch), DType.FP32, "ones")
    plan.alloc_temp((batch, 1), DType.FP32, "row")
    for k, width in enumerate(WIDTHS[1:]):
        plan.alloc_feature((batch, width), f"h{k}")
        plan.alloc_temp((batch, width), DType.FP32, f"d{k}")
        plan.alloc_temp((batch, width), DType.FP32, f"live{k}")
    return plan.finalize()


def numpy_kernels() -> tuple[Any, Any]:
    """Return (product of two matrices, sum of rows) under NumPy."""
    return np.matmul, lambda a, out: np.sum(a, axis=1, keepdims=True, out=out)


def cupy_kernels() -> tuple[Any, Any]:
    """Return the same as CuPy reductions, which a graph can hold."""
    import cupy

    dot = cupy.ReductionKernel("T x, T y", "T z", "x * y", "a + b", "z = a", "0", "dot")
    total = cupy.ReductionKernel("T x", "T z", "x", "a + b", "z = a", "0", "total")

    def product(a: Any, b: Any, out: Any) -> None:
        dot(a[:, None, :], b.T[None, :, :], out, axis=2)

    return product, lambda a, out: total(a, out.reshape(-1), axis=1)


class Network:
    """Forward and backward of the MLP over an arena; every result goes to a planned buffer."""

    def __init__(self, arena: Arena, xp: Any) -> None:
        self.xp = xp
        self.product, self.total = numpy_kernels() if xp is np else cupy_kernels()
        self.depth = len(WIDTHS) - 1
        names = range(self.depth)
        self.w = [arena[f"layers.{k}.weight"] for k in names]
        self.b = [arena[f"layers.{k}.bias"] for k in names]
        self.gw = [arena[f"layers.{k}.weight#G"] for k in names]
        self.gb = [arena[f"layers.{k}.bias#G"].reshape(1, -1) for k in names]
        self.h, self.d, self.live = ([arena[f"{t}{k}"] for k in names] for t in ("h", "d", "live"))
        self.x, self.target, self.ones = arena["x"], arena["target"], arena["ones"]
        self.row = arena["row"]
        self.ones[...] = 1.0
        rng = np.random.default_rng(0)
        for k, w in enumerate(self.w):
            start = rng.standard_normal(w.shape) * np.sqrt(2 / WIDTHS[k])
            arena[f"layers.{k}.weight"] = start.astype(np.float32)

    def forward(self, x: Any, h: list[Any]) -> None:
        """Write the layers' outputs to ``h``; the last are the logits."""
        for k in range(self.depth):
            self.product(x, self.w[k].T, out=h[k])
            self.xp.add(h[k], self.b[k], out=h[k])
            if k < self.depth - 1:
                self.xp.maximum(h[k], 0.0, out=h[k])
            x = h[k]

    def step(self) -> None:
        """Forward and backward on the batch in the arena: the mean cross-entropy's gradients."""
        xp, last = self.xp, self.depth - 1
        self.forward(self.x, self.h)
        d, row = self.d[last], self.row
        self.total(self.h[last], out=row)  # the logits' sum; their mean is subtracted
        xp.multiply(row, np.float32(-1 / WIDTHS[-1]), out=row)
        xp.add(self.h[last], row, out=d)
        xp.exp(d, out=d)
        self.total(d, out=row)
        xp.divide(d, row, out=d)
        xp.subtract(d, self.target, out=d)
        xp.multiply(d, np.float32(1 / len(self.x)), out=d)
        for k in reversed(range(self.depth)):
            below = self.h[k - 1] if k else self.x
            self.product(self.d[k].T, below, out=self.gw[k])
            self.product(self.ones, self.d[k], out=self.gb[k])
            if k:
                self.product(self.d[k], self.w[k], out=self.d[k - 1])
                xp.sign(below, out=self.live[k - 1])  # the ReLU's derivative, 1 or 0
                xp.multiply(self.d[k - 1], self.live[k - 1], out=self.d[k - 1])


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images, their classes as rows of 0 and 1, test images, test classes."""
    data = load_digits()
    images = (data.images.reshape(-1, 64) / 16).astype(np.float32)
    classes = np.eye(10, dtype=np.float32)[data.target]
    held = np.arange(len(images)) % 5 == 0
    return images[~held], classes[~held], images[held], data.target[held]


def measured(network: Network, test: Any, target: Any) -> dict[str, float]:
    """Return the loss on the batch in the arena, and the accuracy on the test images."""
    xp = network.xp
    network.forward(network.x, network.h)
    logits = network.h[-1] - network.h[-1].max(axis=1, keepdims=True)
    logs = xp.log(xp.exp(logits).sum(axis=1)) - (logits * network.target).sum(axis=1)
    outputs = [xp.empty((len(test), width), np.float32) for width in WIDTHS[1:]]
    network.forward(test, outputs)
    right = outputs[-1].argmax(axis=1) == target
    return {"loss": float(logs.mean()), "accuracy": float(right.mean())}


def library(arena: Arena) -> Any:
    """Return CuPy for an arena on a GPU, else NumPy."""
    if not arena.on_gpu:
        return np
    import cupy

    return cupy


def train(device: str | None, steps: int, quiet: bool = False) -> dict[str, float]:
    """Train and return the last training loss and the test accuracy."""
    arena = Arena(planned(), device=device)
    xp = library(arena)
    network = Network(arena, xp)
    optimizer = OptimizerStep(arena, lr=3e-3, weight_decay=0.01, clear_grad=False)
    x, y, test, target = map(xp.asarray, digits())
    rng = np.random.default_rng(1)
    network.step()  # CuPy compiles its kernels before the capture
    graph = optimizer.capture(before=[network.step])
    for k in tqdm(range(steps), desc="CuPy" if arena.on_gpu else "NumPy", disable=quiet):
        chosen = xp.asarray(rng.integers(0, len(x), BATCH))
        network.x[...] = x[chosen]
        network.target[...] = y[chosen]
        arena.scalars.lr = 3e-3 * (1 - k / steps)
        graph.replay()
    return measured(network, test, target)


def main() -> None:
    """Train as the command line says and print what came out."""
    parser = argparse.ArgumentParser(prog="python -m examples.digits_cupy", description=__doc__)
    parser.add_argument("--device", help='"cuda" or "cpu" (default: a GPU where there is one)')
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    found = train(options.device, options.steps)
    print(f"loss {found['loss']:.5f}, test {found['accuracy']:.2%}")


if __name__ == "__main__":
    main()

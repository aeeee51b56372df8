"""Anything that may happen to a run, in any order, against the papers' formulas in float64.

Random models go through random sequences: steps with gradients present, missing or infinite,
tensors frozen and trained again, groups added and their settings changed, averages swapped in,
checkpoints loaded into other layouts and other half formats.  Weights and averages are those of
``tests.optim.textbook`` after every action.  Bytes of gradients that are not this step's hold NaN.
"""

from __future__ import annotations

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig
from rangeops import Arena, OptimizerStep, averaged, load, save
from rangeops.kernels.half import to_half
from tests import tolerance
from tests.optim.textbook import NATURE, RULES, Run, Settings, Tensor

SEQUENCES = 504
"""Shared evenly by the optimizers."""

ACTIONS = 12
PER_TEST = 9

KINDS = ("fc_bias", "bn_weight", "fc_weight", "deep_conv")

FACTORS = {"lr": (0.1, 3.0), "weight_decay": (0.0, 2.0)}
NUMBERS = {
    "beta1": (0.5, 0.95), "beta2": (0.8, 0.999), "eps": (1e-4, 1e-2), "momentum": (0.3, 0.95),
    "dampening": (0.0, 0.5), "trust_coefficient": (0.005, 0.05),
}  # fmt: skip
CHOICES = {
    "nesterov": (True, False), "maximize": (True, False), "adapt": (True, False),
    "decay": ("l2", "decoupled"), "bias_correction": (True, False),
    "grad_averaging": (True, False),
}  # fmt: skip

TAKES = {
    "sgd": "lr weight_decay maximize decay",
    "momentum": "lr weight_decay momentum dampening nesterov maximize decay",
    "nesterov": "lr weight_decay momentum dampening nesterov maximize decay",
    "lars": "lr weight_decay momentum trust_coefficient eps nesterov maximize adapt decay",
    "adam": "lr weight_decay beta1 beta2 eps maximize decay bias_correction",
    "adamw": "lr weight_decay beta1 beta2 eps maximize decay bias_correction",
    "lamb": "lr weight_decay beta1 beta2 eps maximize bias_correction grad_averaging adapt",
    "lion": "lr weight_decay beta1 beta2 maximize",
}
"""The settings that a group of each optimizer may have."""


class Pair:
    """An arena and its textbook, kept in step."""

    def __init__(self, optimizer, seed, folder):
        self.rng, self.optimizer, self.folder = np.random.default_rng(seed), optimizer, folder
        rng = self.rng
        count = int(rng.integers(2, 6))
        self.shapes = {f"t{k}": int(rng.integers(1, 300)) for k in range(count)}
        self.kinds = {name: str(rng.choice(KINDS)) for name in self.shapes}
        values = {
            n: rng.standard_normal(size).astype(np.float32) for n, size in self.shapes.items()
        }
        common = Settings(**NATURE.get(optimizer, {}), weight_decay=float(rng.choice([0.0, 0.1])))
        self.clears = bool(rng.integers(2))
        self.run = Run(
            optimizer,
            {n: Tensor(v.astype(np.float64), self._flat(n)) for n, v in values.items()},
            common,
            clip_norm=float(rng.choice([0.0, 2.0])),
            scale=64.0,
            dynamic=bool(rng.integers(2)),
        )
        self.arena = self._arena()
        self.step = self._driver(
            lr=common.lr, weight_decay=common.weight_decay, beta2=0.99, eps=common.eps,
            trust_coefficient=0.02, ema_decay=0.9, loss_scale=64.0, growth_interval=3,
        )  # fmt: skip
        for name, value in values.items():
            self.arena[name] = value
        self.made = 0

    def _flat(self, name):
        return self.kinds[name] in KINDS[:2]

    def _arena(self):
        half = self.rng.choice(["", "fp16", "bf16"])
        plan = MemoryPlan(PlanConfig(self.optimizer, half=str(half) or None, ema=True))
        for name in self.rng.permutation(list(self.shapes)):
            plan.parameter(str(name), self.kinds[name], (self.shapes[name],))
        return Arena(plan.finalize(), device="cpu")

    def _driver(self, **arguments):
        return OptimizerStep(
            self.arena, check=True, scaling=self.run.dynamic, clear_grad=self.clears,
            clip_norm=self.run.clip_norm or None, norms=True, **arguments,
        )  # fmt: skip

    def put(self, name, values):
        """Write a gradient as a backward pass leaves it, with the loss scale in it."""
        parameter = self.arena.plan.parameters[name]
        tensor = parameter.half_gradient or parameter.gradient
        values = np.asarray(values, np.float32)
        if tensor.dtype.is_half:
            self.arena.write(tensor.offset, to_half(values, tensor.dtype.label))
        else:
            self.arena[tensor] = values

    def advance(self, overflow=False):
        """Take a step; some tensors have no gradient, whose bytes are NaN."""
        rng, gradients = self.rng, {}
        for name, size in self.shapes.items():
            gradients[name] = rng.integers(-64, 65, size) / 64 if rng.random() < 0.75 else None
        scale = self.run.scale
        live = [n for n, g in gradients.items() if g is not None and not self.run.tensors[n].frozen]
        bad = str(rng.choice(live)) if overflow and live else ""
        for name, g in gradients.items():
            rests = g is None or self.run.tensors[name].frozen
            value = np.full(self.shapes[name], np.nan) if rests else g * scale
            if name == bad:
                value[-1] = gradients[name][-1] = np.inf
            self.put(name, value)
        self.arena.groups.rest([name for name, g in gradients.items() if g is None])
        self.step()
        self.run.advance(gradients, check=True)

    def overflow(self):
        """Take a step that is skipped, if anything is trained."""
        self.advance(overflow=True)

    def some(self):
        """Return a random choice of tensors, one at least."""
        names = list(self.shapes)
        return [str(n) for n in self.rng.choice(names, self.rng.integers(1, len(names) + 1), False)]

    def freeze(self):
        """Freeze some, or train some again."""
        names, on = self.some(), bool(self.rng.integers(2))
        (self.step.groups.freeze if on else self.step.groups.unfreeze)(names)
        for name in names:
            self.run.tensors[name].frozen = on

    def settings(self):
        """Return random settings that this optimizer has."""
        rng, out = self.rng, {}
        for name in TAKES[self.optimizer].split():
            if rng.random() < 0.5:
                continue
            if name in CHOICES:
                choice = CHOICES[name][int(rng.integers(2))]
                out[name] = choice
            else:
                out[name] = float(rng.uniform(*(FACTORS | NUMBERS)[name]))
        if "momentum" in out and rng.random() < 0.3:
            out["momentum"] = 0.0
        return out

    def add(self):
        """Make a group."""
        self.made += 1
        name, members, settings = f"g{self.made}", self.some(), self.settings()
        self.step.groups.add(name, members, **settings)
        self.run.own[name] = settings
        for member in members:
            self.run.tensors[member].group = name

    def change(self):
        """Change a group, or what all go by."""
        used = sorted({t.group for t in self.run.tensors.values() if t.group})
        if used and self.rng.random() < 0.7:
            name, settings = str(self.rng.choice(used)), self.settings()
            self.step.groups.set(name, **settings)
            self.run.own[name] |= settings
            return
        lr, ema = float(self.rng.uniform(1e-3, 0.03)), float(self.rng.uniform(0.5, 0.95))
        self.arena.scalars.set(lr=lr, ema_decay=ema)
        self.run.common.lr, self.run.ema_decay = lr, ema

    def swap(self):
        """Look at the averages, and go back."""
        with averaged(self.arena):
            for name, tensor in self.run.tensors.items():
                self.close(name, tensor.p if tensor.e is None else tensor.e, "swapped in")

    def reload(self):
        """Go on from a file in an arena of another layout and half format."""
        file = self.folder / "run.safetensors"
        if self.rng.random() < 0.3:
            with averaged(self.arena):
                save(self.arena, file)
        else:
            save(self.arena, file)
        self.arena = self._arena()
        load(self.arena, file)
        self.step = self._driver(resume=True)

    def close(self, name, want, what):
        got = self.arena.download(name).astype(np.float64)
        np.testing.assert_allclose(
            got, want, rtol=tolerance.APART, atol=tolerance.APART, err_msg=f"{name} {what}"
        )

    def check(self, what):
        """Compare weights, averages, steps and the loss scale."""
        for name, tensor in self.run.tensors.items():
            self.close(name, tensor.p, what)
            if tensor.e is not None:
                self.close(f"{name}#E", tensor.e, what)
        scalars = self.arena.scalars
        assert self.arena.groups.steps() == {n: t.step for n, t in self._in_order()}, what
        assert (scalars.step, scalars.skipped_steps) == (self.run.steps, self.run.skipped), what
        assert scalars.loss_scale == self.run.scale, what

    def _in_order(self):
        return [(t.name, self.run.tensors[t.name]) for t in self.arena.plan.weights()]


WEIGHTS = {
    "advance": 8, "overflow": 1, "freeze": 2, "add": 2, "change": 2, "swap": 1, "reload": 1.5,
}  # fmt: skip


def sequence(optimizer, seed, folder):
    pair, done = Pair(optimizer, seed, folder), []
    names, odds = zip(*WEIGHTS.items(), strict=True)
    for _ in range(ACTIONS):
        done.append(str(pair.rng.choice(names, p=np.array(odds) / sum(odds))))
        getattr(pair, done[-1])()
        pair.check(f"seed {seed} after {', '.join(done)}")


COUNT = SEQUENCES // len(RULES)


@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
@pytest.mark.parametrize("optimizer", RULES)
def test_any_sequence_gives_the_textbooks_weights(optimizer, first, tmp_path):
    for seed in range(first, min(first + PER_TEST, COUNT)):
        sequence(optimizer, seed, tmp_path)

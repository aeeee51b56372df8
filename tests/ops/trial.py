"""A trial: an op run on a planned arena as a step would, with its arguments in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from plan import MemoryPlan, PlanConfig
from rangeops import REGISTRY, Arena
from rangeops.arena.settings import stored
from rangeops.arena.tables import FOLLOWS, group_row
from rangeops.kernels.half import from_half, to_half
from rangeops.launch.op import RangeOp
from rangeops.verify import planned_variants
from tests.ops.own import BY_TENSOR, GROUPS, STEPS, Own, allowed

SHAPES = (
    ("bias", "fc_bias", (1000,)),
    ("scale", "bn_weight", (77,)),
    ("fc", "fc_weight", (70, 64)),
    ("conv", "deep_conv", (5000,)),
)
"""A model whose weights have several chunks; two tensors have groups of their own (``GROUPS``), the
others those of the plan."""

HYPER = {
    "lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.01, "momentum": 0.9,
    "dampening": 0.0, "ema_decay": 0.98, "trust_coefficient": 0.02, "clip_norm": 0.5,
    "clip_value": 0.25, "loss_scale": 1024.0, "step": 6, "batch_size": 32, "ranks": 4.0,
}  # fmt: skip

OWN = {"momentum": {"dampening": 0.1}, "nesterov": {"dampening": 0.1}}
"""What an optimizer has beside HYPER."""

BEFORE = {
    "lars": (("grad_norm", {"weights": True}), ("fold_norms", {"of": "lars"})),
    "lamb": (("lamb_moments", {}), ("fold_norms", {"of": "lamb"})),
}
"""The passes before a ratio: LARS's before begin_step, LAMB's behind it."""


class Trial:
    """An op, what its arguments were ``before`` it ran, and what they are ``after``.

    Arguments are by the kernel's names; ranges are whole series with their padding, floats in
    float64.  ``x.p``, ``x.m`` ... are the series before the first op of the step, and ``x.lr`` ...
    the hyper-parameters of each element's tensor, from what was given; ``x.own(name)`` has those of
    one tensor.  ``x.g`` is the true gradient: of both formats, unscaled, of the sign that the
    update wants, and ``x.raw_g`` as it lies.
    """

    def __init__(
        self,
        op: RangeOp,
        flags: dict[str, Any],
        options: dict[str, bool],
        groups: dict[str, dict[str, Any]] = GROUPS,
        **hyper: float,
    ) -> None:
        self.op, self.flags, self.options = op, flags, options
        self.half = flags.get("half")
        self.optimizer = op.name if op.settings is not None else flags.get("kind", "adamw")
        self.optimizer = {"lamb_moments": "lamb", "begin_step": "lars"}.get(op.name, self.optimizer)
        self.groups = groups
        if op.name != "begin_step":  # which writes for LARS whatever a row has
            self.groups = {name: allowed(its, self.optimizer) for name, its in groups.items()}
        full = not flags.get("half_grad")  # gradients of weights in FP32, beside half ones
        plan = MemoryPlan(
            PlanConfig(self.optimizer, half=self.half or "fp16", ema=True, accumulate=full)
        )
        for name, kind, shape in SHAPES:
            plan.parameter(name, kind, shape)
        self.plan = plan.finalize()
        self.arena = Arena(self.plan, device="cpu")
        self.hyper = HYPER | OWN.get(self.optimizer, {}) | hyper
        self._fill(np.random.default_rng(5))
        self._prepare()
        self.launch = self._bind()
        self.before = self._read()

    def _fill(self, rng: np.random.Generator) -> None:
        deviation = {"W": 1.0, "E": 1.0, "M": 1e-2, "V": 3e-2}
        for tensor in self.plan:
            series, n = tensor.region.series, tensor.numel
            if series not in (*deviation, "G", "A"):
                continue
            values = rng.standard_normal(n)
            if series == "G":
                values *= 10.0 ** rng.uniform(-4, 0, n) * HYPER["loss_scale"]
            values *= deviation.get(series, 1.0)
            if series == "V":
                values *= values
            values = values.astype(np.float32).reshape(tensor.shape)
            if tensor.dtype.is_half:
                bits = to_half(values, tensor.dtype.label)
                self.arena.write(tensor.offset, bits)
            else:
                self.arena[tensor] = values
        for name, value in (("loss", 0.25), ("top1", 0.5), ("top5", 0.75)):
            self.arena[f"result.{name}"] = value

    def _prepare(self) -> None:
        """Run the ops that come before this one in a step."""
        arena, run = self.arena, REGISTRY
        arena.scalars.set(**self.hyper)
        self._group()
        arena.groups.set_steps(STEPS)
        self.series = self._series()
        kind = self.optimizer if self.op.name in ("lars", "lamb", "trust_ratio") else ""
        halves = {"half_grad": True} if self.flags.get("half_grad") else {}
        first = BEFORE.get(kind, ())
        if kind == "lars":
            for name, arguments in first:
                run[name](arena, **arguments, **(halves if name == "grad_norm" else {}))
        if self.op.name in ("fold_norms", "total_norm"):
            run["tensor_stats"](arena)  # any sums will do, and these have a maximum
            run["fold_norms"](arena, of="gradient")
        if self.op.name == "begin_step":
            run["grad_norm"](arena)
            run["fold_norms"](arena, of="gradient")
            run["total_norm"](arena)
        elif self.op.name not in ("grad_scaling", "unscale", "check_nan"):
            run["begin_step"](arena, **self._chosen("begin_step"))
        if kind == "lamb":
            for name, arguments in first:
                run[name](arena, **arguments)
        if kind and self.op.name != "trust_ratio":
            run["trust_ratio"](arena, kind=kind, **self._chosen("trust_ratio"))

    def _group(self) -> None:
        """Write the groups behind those of the plan."""
        table, group_of = (
            self.arena.download(f"step.{name}") for name in ("groups", "group_of_tensor")
        )
        for k, (name, settings) in enumerate(self.groups.items(), 2):
            table[k] = group_row(FOLLOWS | stored(settings))
            group_of[list(self.slices).index(name)] = k
        self.arena["step.groups"], self.arena["step.group_of_tensor"] = table, group_of

    def _chosen(self, name: str) -> dict[str, bool]:
        return {key: on for key, on in self.options.items() if key in REGISTRY[name].options}

    def _bind(self) -> Any:
        (arguments,) = (
            a
            for a in planned_variants(self.op, self.plan)
            if all(a.get(k) == value for k, value in self.flags.items() if k != "half")
        )
        takes = self._chosen(self.op.name) if "options" in self.op.kernel.integers else {}
        return self.op.bind(self.arena, **arguments, **takes)

    def _read(self) -> dict[str, np.ndarray]:
        places = zip(self.op.kernel.arguments, self.launch.binding.arguments, strict=True)
        with np.errstate(invalid="ignore"):  # bits of any kind are moved, signalling NaN among them
            return {name: self._wide(place.read(), element) for (name, element), place in places}

    def _wide(self, values: np.ndarray, element: str) -> np.ndarray:
        if element == "half":
            values = from_half(values, self.half)
        return values.astype(np.float64) if values.dtype == np.float32 else values

    def _series(self) -> dict[str, np.ndarray]:
        """Return p, m, v, e and the gradient of both formats, in float64, whole series."""
        plan, out = self.plan, {}
        for name, series in (("p", "W"), ("g", "G"), ("m", "M"), ("v", "V"), ("e", "E")):
            span = plan.series_range(series)
            if span.size:
                out[name] = self.arena.read(span, "f4").astype(np.float64)
        if self.flags.get("half_grad"):
            halves = self.arena.read(plan.series_range("G", "all", True), "u2")
            wide = from_half(halves, self.half).astype(np.float64)
            out["g"] = np.concatenate([out["g"][: out["p"].size - wide.size], wide])
        out["raw_g"] = out["g"]
        sign = np.where(self.on("maximize"), -1, 1)
        out["g"] = sign * out["g"] / (HYPER["loss_scale"] * HYPER["ranks"])
        return out

    def run(self) -> Trial:
        """Launch, and read everything again."""
        self.launch()
        self.after = self._read()
        return self

    def __getattr__(self, name: str) -> Any:
        """Return a series before the step, a setting by element, or a scalar."""
        if name in BY_TENSOR:
            return self.by_tensor(lambda tensor, where: getattr(self.own(tensor), name))
        for table in (self.__dict__.get("series", {}), self.__dict__["hyper"]):
            if name in table:
                return table[name]
        raise AttributeError(name)

    def own(self, tensor: str) -> Own:
        """Return the settings of a tensor."""
        return Own(tensor, self.hyper, self.groups.get(tensor), self.chosen)

    def chosen(self, option: str) -> bool:
        """Return whether an option is on: given, of the optimizer's nature, or by default."""
        nature = REGISTRY[self.optimizer].settings or {}
        default = option in ("bias_correction", "grad_averaging")
        return self.options.get(option, nature.get(option, default))

    def on(self, option: str) -> np.ndarray:
        """Return by element whether an option is on for its tensor."""
        return self.by_tensor(lambda tensor, where: self.own(tensor).on(option)) != 0

    @property
    def slices(self) -> dict[str, slice]:
        """Where each tensor lies in a whole series, its padding included."""
        base = self.plan.series_range("W").base_offset
        return {
            t.name: slice((t.offset - base) // 4, (t.offset - base + t.slot_bytes) // 4)
            for t in self.plan.weights()
        }

    @property
    def chunks(self) -> list[slice]:
        """The elements of every chunk, in a whole series."""
        table = self.arena.download("norm.chunks").astype(int) * 128
        return [slice(a, b) for a, b in zip(table[:-1], table[1:], strict=True)]

    def by_tensor(self, rule: Any) -> np.ndarray:
        """Return ``rule(name, slice)`` of every tensor, spread over its elements."""
        out = np.zeros(self.plan.series_range("W").size // 4)
        for name, where in self.slices.items():
            out[where] = rule(name, where)
        return out

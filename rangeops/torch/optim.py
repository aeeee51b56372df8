"""SGD, Adam, AdamW, LARS, LAMB, Lion with torch's signatures; see ``rangeops.torch.optimizer``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from rangeops.torch.optimizer import RangeOptimizer


def _refuse(name: str, **options: Any) -> None:
    for option, value in options.items():
        if value:
            raise ValueError(f"{name}: {option} got {value!r}, expected False; it has no range op")


class SGD(RangeOptimizer, torch.optim.SGD):
    """torch.optim.SGD: momentum, Nesterov, L2 decay.  Adopt for "momentum", or "sgd" without."""

    state_names = (("momentum_buffer", "m"),)
    settings = ("momentum", "dampening", "nesterov", "maximize")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        **own: Any,
    ) -> None:
        torch.optim.SGD.__init__(
            self, params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize
        )
        moves = any(group["momentum"] for group in self.param_groups)
        self.kinds = ("momentum", "nesterov") if moves else ("sgd", "momentum", "nesterov")
        self.bind(decay="l2", **own)


class _Adaptive(RangeOptimizer):
    state_names = (("exp_avg", "m"), ("exp_avg_sq", "v"))
    settings = ("betas", "eps", "maximize", "bias_correction", "decoupled_weight_decay")


class Adam(_Adaptive, torch.optim.Adam):
    """torch.optim.Adam, L2 decay.  Adopt for "adam"."""

    kinds = ("adam",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **own: Any,
    ) -> None:
        _refuse("Adam", amsgrad=amsgrad)
        torch.optim.Adam.__init__(self, params, lr, betas, eps, weight_decay, maximize=maximize)
        self.bind(**own)


class AdamW(_Adaptive, torch.optim.AdamW):
    """torch.optim.AdamW.  Adopt for "adamw"."""

    kinds = ("adamw",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **own: Any,
    ) -> None:
        _refuse("AdamW", amsgrad=amsgrad)
        torch.optim.AdamW.__init__(self, params, lr, betas, eps, weight_decay, maximize=maximize)
        self.bind(**own)


class LAMB(RangeOptimizer):
    """LAMB (You et al. 2020).  Adopt for "lamb"; biases and norms keep ratio 1."""

    kinds = ("lamb",)
    state_names = (("exp_avg", "m"), ("exp_avg_sq", "v"))
    settings = ("betas", "eps", "maximize", "bias_correction", "grad_averaging", "adapt")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        **own: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, **own)


class Lion(RangeOptimizer):
    """Lion (Chen et al. 2023).  Adopt for "lion"."""

    kinds = ("lion",)
    state_names = (("exp_avg", "m"),)
    settings = ("betas", "maximize")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **own: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, defaults, **own)


class LARS(RangeOptimizer):
    """LARS (You, Gitman, Ginsburg 2017).  Adopt for "lars"; biases and norms keep ratio 1."""

    kinds = ("lars",)
    state_names = (("momentum_buffer", "m"),)
    settings = ("momentum", "trust_coefficient", "eps", "nesterov", "maximize", "adapt")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
        **own: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
        }
        super().__init__(params, defaults, **own)

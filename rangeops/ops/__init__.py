"""All range ops, a file a family; importing this package fills the registry."""

from rangeops.op import REGISTRY
from rangeops.ops.adam import adam, adamw
from rangeops.ops.average import average, average_half
from rangeops.ops.cast import cast_fp16_to_fp32, cast_fp32_to_fp16
from rangeops.ops.ema import ema, sema_switch
from rangeops.ops.finite import check_nan
from rangeops.ops.fold import fold_norms, total_norm
from rangeops.ops.gradients import accumulate_grad, unscale
from rangeops.ops.lamb import lamb, lamb_moments
from rangeops.ops.lars import lars
from rangeops.ops.lion import lion
from rangeops.ops.memory import clear, copy
from rangeops.ops.metrics import accumulate_metrics, read_metrics
from rangeops.ops.norms import grad_norm, read_norms, read_sums
from rangeops.ops.ratio import trust_ratio
from rangeops.ops.scaling import grad_scaling
from rangeops.ops.sgd import momentum, nesterov, sgd
from rangeops.ops.stats import tensor_stats
from rangeops.ops.step import begin_step

__all__ = [
    "REGISTRY",
    "accumulate_grad",
    "accumulate_metrics",
    "adam",
    "adamw",
    "average",
    "average_half",
    "begin_step",
    "cast_fp16_to_fp32",
    "cast_fp32_to_fp16",
    "check_nan",
    "clear",
    "copy",
    "ema",
    "fold_norms",
    "grad_norm",
    "grad_scaling",
    "lamb",
    "lamb_moments",
    "lars",
    "lion",
    "momentum",
    "nesterov",
    "read_metrics",
    "read_norms",
    "read_sums",
    "sema_switch",
    "sgd",
    "tensor_stats",
    "total_norm",
    "trust_ratio",
    "unscale",
]

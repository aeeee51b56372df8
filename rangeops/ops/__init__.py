"""All range ops, a file a family; importing this package fills the registry."""

from rangeops.launch.op import REGISTRY
from rangeops.ops._adam import adam, adamw
from rangeops.ops._average import average, average_half
from rangeops.ops._begin import begin_step
from rangeops.ops._cast import cast_fp16_to_fp32, cast_fp32_to_fp16
from rangeops.ops._ema import ema, sema_switch
from rangeops.ops._finite import check_nan
from rangeops.ops._fold import fold_norms, total_norm
from rangeops.ops._gradients import accumulate_grad, unscale
from rangeops.ops._lamb import lamb, lamb_moments
from rangeops.ops._lion import lion
from rangeops.ops._memory import clear, copy
from rangeops.ops._metrics import accumulate_metrics, read_metrics
from rangeops.ops._norms import grad_norm, read_norms, read_sums
from rangeops.ops._ratio import trust_ratio
from rangeops.ops._scaling import grad_scaling
from rangeops.ops._sgd import lars, momentum, nesterov, sgd
from rangeops.ops._stats import tensor_stats

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

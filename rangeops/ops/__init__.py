"""All range ops, a file a family; importing this package fills the registry."""

from rangeops.op import REGISTRY
from rangeops.ops.adam import adam, adamw
from rangeops.ops.cast import cast_fp16_to_fp32, cast_fp32_to_fp16
from rangeops.ops.ema import ema, sema_switch
from rangeops.ops.finite import check_nan
from rangeops.ops.memory import clear, copy
from rangeops.ops.metrics import accumulate_metrics, read_metrics
from rangeops.ops.scaling import grad_scaling
from rangeops.ops.sgd import momentum, nesterov, sgd
from rangeops.ops.step import begin_step

__all__ = [
    "REGISTRY",
    "accumulate_metrics",
    "adam",
    "adamw",
    "begin_step",
    "cast_fp16_to_fp32",
    "cast_fp32_to_fp16",
    "check_nan",
    "clear",
    "copy",
    "ema",
    "grad_scaling",
    "momentum",
    "nesterov",
    "read_metrics",
    "sema_switch",
    "sgd",
]

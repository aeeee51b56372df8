"""Types of the ops; made by ``python -m rangeops.ops``, not by hand."""

# fmt: off
from collections.abc import Iterable
from typing import Any, Literal, SupportsIndex, TypedDict, Unpack

from plan import DTensor, Range, Region
from rangeops.arena.arena import Arena
from rangeops.launch.launch import BoundLaunch
from rangeops.launch.op import REGISTRY as REGISTRY
from rangeops.launch.op import RangeOp
from rangeops.ops._metrics import read_metrics as read_metrics
from rangeops.ops._norms import read_norms as read_norms
from rangeops.ops._norms import read_sums as read_sums

_Bytes = Iterable[SupportsIndex]
Span = Range | Region | tuple[Region, Region] | DTensor | str | _Bytes | None
Part = Literal["all", "bias", "weight"]

class _Scalars(TypedDict, total=False):
    lr: float
    beta1: float
    beta2: float
    one_minus_beta1: float
    one_minus_beta2: float
    eps: float
    weight_decay: float
    momentum: float
    one_minus_dampening: float
    trust_coefficient: float
    one_minus_ema_decay: float
    clip_norm: float
    clip_value: float
    growth_factor: float
    backoff_factor: float
    min_loss_scale: float
    max_loss_scale: float
    label_smoothing: float
    bn_eps: float
    bn_momentum: float
    dropout_seed: float
    ranks: float
    loss_scale: float
    grad_scale: float
    grad_norm: float
    dampening: float
    ema_decay: float
    growth_interval: int
    hysteresis: int
    batch_size: int
    global_batch_size: int
    found_inf: int
    skip_step: int
    skipped_steps: int
    growth_tracker: int
    hysteresis_tracker: int
    floor_hits: int
    first_nonfinite: int
    nonfinite_granule: int
    poisoned: int
    settings: int
    settings_inverse: int
    ticket: int

class _AccumulateGrad(RangeOp):
    """g += h; h = 0"""

    def bind(self, arena: Any, g: Span = ..., h: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, g: Span = ..., h: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
accumulate_grad: _AccumulateGrad

class _AccumulateMetrics(RangeOp):
    """sum += value*batch_size (compensated)"""

    def bind(self, arena: Any, *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
accumulate_metrics: _AccumulateMetrics

class _Adam(RangeOp):
    """g += wd*p; m += (1-b1)*(g-m); v += (1-b2)*(g*g-v); p -= step_size*m/(sqrt(v)*isb2+eps)"""

    def bind(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        v: Span = ..., e: Span = ..., a: Span = ..., *, half_grad: bool = ...,
        half_copy: bool = ..., ema: bool = ..., clear_grad: bool = ..., bias_correction: bool = ...,
        maximize: bool = ..., decay: Literal['l2'] | None = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        v: Span = ..., e: Span = ..., a: Span = ..., *, half_grad: bool = ...,
        half_copy: bool = ..., ema: bool = ..., clear_grad: bool = ..., bias_correction: bool = ...,
        maximize: bool = ..., decay: Literal['l2'] | None = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
adam: _Adam

class _Adamw(RangeOp):
    """m += (1-b1)*(g-m); v += (1-b2)*(g*g-v); p = p*keep - step_size*m/(sqrt(v)*isb2+eps)"""

    def bind(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        v: Span = ..., e: Span = ..., a: Span = ..., *, half_grad: bool = ...,
        half_copy: bool = ..., ema: bool = ..., clear_grad: bool = ..., bias_correction: bool = ...,
        maximize: bool = ..., decay: Literal['decoupled'] | None = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        v: Span = ..., e: Span = ..., a: Span = ..., *, half_grad: bool = ...,
        half_copy: bool = ..., ema: bool = ..., clear_grad: bool = ..., bias_correction: bool = ...,
        maximize: bool = ..., decay: Literal['decoupled'] | None = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
adamw: _Adamw

class _Average(RangeOp):
    """x = x / ranks"""

    def bind(self, arena: Any, x: Span = ..., *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, x: Span = ..., *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
average: _Average

class _AverageHalf(RangeOp):
    """h = half(float32(h) / ranks)"""

    def bind(self, arena: Any, x: Span = ..., *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, x: Span = ..., *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
average_half: _AverageHalf

class _BeginStep(RangeOp):
    """unless found_inf: steps += 1, coefficients of every tensor's row"""

    def bind(self, arena: Any, *, bias_correction: bool = ..., ema_warmup: bool = ...,
        maximize: bool = ..., loss_scaling: bool = ..., global_norm: bool = ...,
        nesterov: bool = ..., grad_averaging: bool = ..., lr_outside: bool = ...,
        decoupled: bool = ..., decay: Literal['l2', 'decoupled'] | None = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, *, bias_correction: bool = ..., ema_warmup: bool = ...,
        maximize: bool = ..., loss_scaling: bool = ..., global_norm: bool = ...,
        nesterov: bool = ..., grad_averaging: bool = ..., lr_outside: bool = ...,
        decoupled: bool = ..., decay: Literal['l2', 'decoupled'] | None = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
begin_step: _BeginStep

class _CastFp16ToFp32(RangeOp):
    """x = float32(h)"""

    def bind(self, arena: Any, dst: Span = ..., src: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, dst: Span = ..., src: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
cast_fp16_to_fp32: _CastFp16ToFp32

class _CastFp32ToFp16(RangeOp):
    """h = half(x)"""

    def bind(self, arena: Any, dst: Span = ..., src: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, dst: Span = ..., src: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
cast_fp32_to_fp16: _CastFp32ToFp16

class _CheckNan(RangeOp):
    """found_inf |= exponent(x) all ones"""

    def bind(self, arena: Any, g: Span = ..., h: Span = ..., *, half_grad: bool = ...,
        clip: bool = ..., part: Part = ..., half: str | None = ..., state: Arena | None = ...,
        step: int | None = ..., **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, g: Span = ..., h: Span = ..., *, half_grad: bool = ...,
        clip: bool = ..., part: Part = ..., half: str | None = ..., state: Arena | None = ...,
        step: int | None = ..., stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
check_nan: _CheckNan

class _Clear(RangeOp):
    """x = 0"""

    def bind(self, arena: Any, dst: Span = ..., *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, dst: Span = ..., *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
clear: _Clear

class _Copy(RangeOp):
    """dst = src"""

    def bind(self, arena: Any, dst: Span = ..., src: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, dst: Span = ..., src: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
copy: _Copy

class _Ema(RangeOp):
    """e += (1-decay)*(p-e)"""

    def bind(self, arena: Any, e: Span = ..., p: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, e: Span = ..., p: Span = ..., *, part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
ema: _Ema

class _FoldNorms(RangeOp):
    """fold sums of chunk sums, float64"""

    def bind(self, arena: Any, *,
        of: Literal['gradient', 'lars', 'lamb', 'weight_report', 'gradient_report'] = ...,
        part: Part = ..., half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, *,
        of: Literal['gradient', 'lars', 'lamb', 'weight_report', 'gradient_report'] = ...,
        part: Part = ..., half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
fold_norms: _FoldNorms

class _GradNorm(RangeOp):
    """per tensor and in all: sum g*g, found_inf"""

    def bind(self, arena: Any, g: Span = ..., h: Span = ..., p: Span = ..., *,
        half_grad: bool = ..., weights: bool = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, g: Span = ..., h: Span = ..., p: Span = ..., *,
        half_grad: bool = ..., weights: bool = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
grad_norm: _GradNorm

class _GradScaling(RangeOp):
    """skipped: scale = max(min, scale*backoff); else grow at the interval"""

    def bind(self, arena: Any, *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
grad_scaling: _GradScaling

class _Lamb(RangeOp):
    """p -= r*lr*((m*inv_bc1)/(sqrt(v)*isb2+eps) + wd*p)"""

    def bind(self, arena: Any, p: Span = ..., m: Span = ..., v: Span = ..., e: Span = ...,
        a: Span = ..., *, half_copy: bool = ..., ema: bool = ..., bias_correction: bool = ...,
        grad_averaging: bool = ..., maximize: bool = ..., decay: Literal['l2'] | None = ...,
        part: Part = ..., half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., m: Span = ..., v: Span = ..., e: Span = ...,
        a: Span = ..., *, half_copy: bool = ..., ema: bool = ..., bias_correction: bool = ...,
        grad_averaging: bool = ..., maximize: bool = ..., decay: Literal['l2'] | None = ...,
        part: Part = ..., half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
lamb: _Lamb

class _LambMoments(RangeOp):
    """m = b1*m + b3*g; v += (1-b2)*(g*g-v); sums of u*u, p*p"""

    def bind(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        v: Span = ..., *, half_grad: bool = ..., clear_grad: bool = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        v: Span = ..., *, half_grad: bool = ..., clear_grad: bool = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
lamb_moments: _LambMoments

class _Lars(RangeOp):
    """d = r*lr*(g + wd*p); m = mu*m + d; p -= m"""

    def bind(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        e: Span = ..., a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ...,
        ema: bool = ..., clear_grad: bool = ..., maximize: bool = ..., nesterov: bool = ...,
        lr_outside: bool = ..., decay: Literal['l2'] | None = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        e: Span = ..., a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ...,
        ema: bool = ..., clear_grad: bool = ..., maximize: bool = ..., nesterov: bool = ...,
        lr_outside: bool = ..., decay: Literal['l2'] | None = ..., part: Part = ...,
        half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
lars: _Lars

class _Lion(RangeOp):
    """u = m + (1-b1)*(g-m); p = p*keep - lr*sign(u); m += (1-b2)*(g-m)"""

    def bind(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        e: Span = ..., a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ...,
        ema: bool = ..., clear_grad: bool = ..., maximize: bool = ...,
        decay: Literal['decoupled'] | None = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        e: Span = ..., a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ...,
        ema: bool = ..., clear_grad: bool = ..., maximize: bool = ...,
        decay: Literal['decoupled'] | None = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
lion: _Lion

class _Momentum(RangeOp):
    """m = mu*m + (1-dampening)*g; p -= lr*m"""

    def bind(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        e: Span = ..., a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ...,
        ema: bool = ..., clear_grad: bool = ..., maximize: bool = ..., decoupled: bool = ...,
        decay: Literal['l2', 'decoupled'] | None = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        e: Span = ..., a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ...,
        ema: bool = ..., clear_grad: bool = ..., maximize: bool = ..., decoupled: bool = ...,
        decay: Literal['l2', 'decoupled'] | None = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
momentum: _Momentum

class _Nesterov(RangeOp):
    """m = mu*m + (1-dampening)*g; p -= lr*(g + mu*m)"""

    def bind(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        e: Span = ..., a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ...,
        ema: bool = ..., clear_grad: bool = ..., maximize: bool = ..., decoupled: bool = ...,
        decay: Literal['l2', 'decoupled'] | None = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., m: Span = ...,
        e: Span = ..., a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ...,
        ema: bool = ..., clear_grad: bool = ..., maximize: bool = ..., decoupled: bool = ...,
        decay: Literal['l2', 'decoupled'] | None = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
nesterov: _Nesterov

class _SemaSwitch(RangeOp):
    """p = e; a = half(p)"""

    def bind(self, arena: Any, p: Span = ..., e: Span = ..., a: Span = ..., *,
        half_copy: bool = ..., swap: bool = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., e: Span = ..., a: Span = ..., *,
        half_copy: bool = ..., swap: bool = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
sema_switch: _SemaSwitch

class _Sgd(RangeOp):
    """p -= lr*(g + wd*p)"""

    def bind(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., e: Span = ...,
        a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ..., ema: bool = ...,
        clear_grad: bool = ..., maximize: bool = ..., decoupled: bool = ...,
        decay: Literal['l2', 'decoupled'] | None = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, p: Span = ..., g: Span = ..., h: Span = ..., e: Span = ...,
        a: Span = ..., *, half_grad: bool = ..., half_copy: bool = ..., ema: bool = ...,
        clear_grad: bool = ..., maximize: bool = ..., decoupled: bool = ...,
        decay: Literal['l2', 'decoupled'] | None = ..., part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
sgd: _Sgd

class _TensorStats(RangeOp):
    """per tensor: sum x*x, max |x|, count of NaN and inf"""

    def bind(self, arena: Any, g: Span = ..., h: Span = ..., *, half_grad: bool = ...,
        part: Part = ..., half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, g: Span = ..., h: Span = ..., *, half_grad: bool = ...,
        part: Part = ..., half: str | None = ..., state: Arena | None = ..., step: int | None = ...,
        stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
tensor_stats: _TensorStats

class _TotalNorm(RangeOp):
    """sums of 512 fold sums, float64"""

    def bind(self, arena: Any, *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
total_norm: _TotalNorm

class _TrustRatio(RangeOp):
    """r = tc*|p|/(|g| + wd*|p| + eps), or |p|/|u|; 1 for a norm of 0"""

    def bind(self, arena: Any, *, kind: Literal['lars', 'lamb'] = ..., lr_outside: bool = ...,
        trust_clip: bool = ..., part: Part = ..., half: str | None = ..., state: Arena | None = ...,
        step: int | None = ..., **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, *, kind: Literal['lars', 'lamb'] = ..., lr_outside: bool = ...,
        trust_clip: bool = ..., part: Part = ..., half: str | None = ..., state: Arena | None = ...,
        step: int | None = ..., stream: Any = ..., **scalars: Unpack[_Scalars]) -> None: ...
trust_ratio: _TrustRatio

class _Unscale(RangeOp):
    """g *= 1/grad_scale; grad_scale = 1"""

    def bind(self, arena: Any, g: Span = ..., *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ...,
        **scalars: Unpack[_Scalars]) -> BoundLaunch: ...
    def __call__(self, arena: Any, g: Span = ..., *, part: Part = ..., half: str | None = ...,
        state: Arena | None = ..., step: int | None = ..., stream: Any = ...,
        **scalars: Unpack[_Scalars]) -> None: ...
unscale: _Unscale

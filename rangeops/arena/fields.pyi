"""Types of the scalars; made by ``rangeops.arena.fields.stub``, not by hand."""

COMPLEMENTS: dict[str, str]
NAMES: frozenset[str]

class ScalarFields:
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
    step: int
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

def stub() -> str: ...

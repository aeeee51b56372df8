"""Generated configs and plans, for tests of what holds for all of them."""

from hypothesis import strategies as st

from plan import MemoryPlan, PlanConfig
from plan.series import PARAMETER_KINDS

sizes = st.integers(0, 2**42)
specs = st.lists(st.tuples(st.sampled_from(PARAMETER_KINDS), sizes), max_size=12)
configs = st.builds(
    PlanConfig,
    optimizer=st.sampled_from(["sgd", "momentum", "adamw", "lars", "lamb", "lion", "none"]),
    half=st.sampled_from([None, "fp16", "bf16"]),
    ema=st.booleans(),
)


def planned(config, wanted):
    plan = MemoryPlan(config)
    for k, (kind, n) in enumerate(wanted):
        plan.parameter(f"p{k}", kind, (n,))
    return plan.finalize()

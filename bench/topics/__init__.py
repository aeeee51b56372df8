"""All topics of the benchmark, in the order in which they are measured."""

from bench.topics import (
    amp,
    checkpoints,
    inputs,
    launches,
    planner,
    pools,
    ranks,
    rates,
    ratios,
    steps,
    sweeps,
    trainer,
)

MODULES = (
    steps, amp, ratios, trainer, sweeps, pools, inputs, rates, planner, launches, checkpoints,
    ranks,
)  # fmt: skip

TOPICS = {module.TOPIC.name: module.TOPIC for module in MODULES}
"""Name -> topic."""

TABLES = {name: table for topic in TOPICS.values() for name, table in topic.tables.items()}
"""The "topic" of a row -> title and columns of its table."""

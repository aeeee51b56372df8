"""The trace of a training step: what GPT-2 124M allocates in bf16, layer by layer.

Activations live until the backward pass takes them, temporaries go at once, gradients of
activations flow.  "fixed" has the same lengths in every step, "variable" draws one a step, after a
warm-up with each.
"""

from __future__ import annotations

import numpy as np

LENGTHS = (256, 512, 768, 1024)
WARM, STEPS = len(LENGTHS), 20
BATCH, LAYERS, WIDTH, HEADS, VOCABULARY = 2, 12, 768, 12, 50257

Event = tuple[bool, int, int]
"""(take or give, number of the block, bytes)."""


def step_trace(length: int) -> list[Event]:
    """Return what one forward and backward pass takes and gives, in order.

    >>> events = step_trace(256)
    >>> sum(take for take, *_ in events) == sum(not take for take, *_ in events)
    True
    """
    token = 2 * BATCH * length
    events: list[Event] = []
    sizes: dict[int, int] = {}

    def take(nbytes: int) -> int:
        sizes[len(sizes)] = nbytes
        events.append((True, len(sizes) - 1, nbytes))
        return len(sizes) - 1

    def give(*blocks: int) -> None:
        events.extend((False, block, sizes[block]) for block in blocks)

    saved: list[list[int]] = []
    for _ in range(LAYERS):
        statistics = [take(4 * BATCH * length) for _ in range(4)]
        kept = [take(token * WIDTH * k) for k in (1, 3, 1, 1, 1, 4, 4, 1)]
        kept.append(take(4 * BATCH * HEADS * length))
        give(take(token * WIDTH), take(token * 3 * WIDTH))
        saved.append([*statistics, *kept])
    logits = take(token * VOCABULARY)
    gradient = take(token * VOCABULARY)
    flowing = take(token * WIDTH)
    give(logits, gradient)
    for kept in reversed(saved):
        for block in reversed(kept):
            after = take(sizes[block])
            give(after, block)
        fresh = take(token * WIDTH)
        give(flowing)
        flowing = fresh
    give(flowing)
    return events


def traces(variable: bool) -> list[list[Event]]:
    """Return the traces of all steps, warm-up first."""
    rng = np.random.default_rng(0)
    lengths = rng.choice(LENGTHS, WARM + STEPS) if variable else np.full(WARM + STEPS, 1024)
    if variable:
        lengths[:WARM] = LENGTHS
    return [step_trace(int(n)) for n in lengths]


def peak(events: list[Event]) -> int:
    """Return the most bytes that are live at once, as they were asked for."""
    live = most = 0
    for taking, _, nbytes in events:
        live += nbytes if taking else -nbytes
        most = max(most, live)
    return most

"""Loading a state dict into an optimizer: read whole, then written."""

from __future__ import annotations

from typing import Any

import torch

from rangeops.torch.checkpoint import Contents
from rangeops.torch.groups import ParamGroups
from rangeops.torch.reading import Reader, Reading


def load(contents: Contents, groups: ParamGroups, state_dict: Any) -> None:
    """Load a state dict into the optimizer that ``contents`` and ``groups`` are of.

    Averages that it does not have begin as the weights.

    Raises:
        ValueError: something is missing or does not fit; nothing is changed then.
        RuntimeError: averaged weights are in the module, or the stream is being captured.

    """
    arena = contents.adopted.arena
    arena.owner.check_live("load_state_dict")
    if arena.capturing():
        raise RuntimeError("load_state_dict: got a call during a capture, expected it outside")
    reading = Reader(contents, groups.check).read(state_dict)
    for group, settings in zip(contents.groups, reading.groups, strict=True):
        group.update(settings)
    if reading.frozen is not None:
        groups.freeze(reading.frozen)
    groups.sync(contents.groups)  # first: a momentum that begins sets steps, which are read below
    _write(contents, reading)


def _write(contents: Contents, reading: Reading) -> None:
    """Write what was read; nothing of it can be refused any more."""
    adopted, averages = contents.adopted, reading.averages
    arena = adopted.arena
    with torch.no_grad():
        for view, value in reading.writes:
            view.zero_() if value is None else view.copy_(value)
        for slot in adopted.slots:
            if slot.name in reading.masters:
                slot.weight.copy_(reading.masters[slot.name])
                if slot.data is not slot.weight:
                    slot.data.copy_(slot.weight)
            average = adopted.series(slot, "ema") if averages else None
            if averages and average is not None:
                average.copy_(averages[slot.name])
    arena.scalars.set(**reading.scalars, found_inf=0, skip_step=0)
    arena.groups.set_steps(reading.steps)
    if averages is None and arena.planned("load_state_dict").config.ema:
        adopted.restart_ema()
    adopted.hooks.give(int(reading.scalars["step"]), reading.marks)

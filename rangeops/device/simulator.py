"""simulator: host memory on which Numba's simulator runs the GPU's kernels, thread by thread."""

from __future__ import annotations

import os

from rangeops.device.host import HostDevice


def simulator_on() -> bool:
    """Return whether Numba's simulator plays the GPU in this process."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


class SimulatorDevice(HostDevice):
    """The host, but for the form of the kernels."""

    name = kind = "simulator"


SIMULATOR = SimulatorDevice()
"""The one simulator."""

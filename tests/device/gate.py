"""Gate: holds a stream of a GPU back until the test says go, however slow the host is."""

from __future__ import annotations

import threading

import numpy as np


class Gate:
    """Work given to a stream behind the gate waits for ``open``.

    After 20 s it opens by itself: a call that waits for the stream fails its test, and does not
    hang it.  Whatever the test calls has to be loaded before, since loading waits for the device.
    """

    def __init__(self, stream):
        import cupy
        from cuda.bindings import driver

        self._memory = cupy.cuda.alloc_pinned_memory(4)
        self._word = np.frombuffer(self._memory, np.int32, 1)
        self._word[0] = 0
        flag = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
        (error,) = driver.cuStreamWaitValue32(stream.ptr, self._memory.ptr, 1, flag)
        assert not error, error
        self._timer = threading.Timer(20.0, self.open)
        self._timer.daemon = True
        self._timer.start()

    def open(self):
        """Let the stream go on."""
        self._word[0] = 1
        self._timer.cancel()

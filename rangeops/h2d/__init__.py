"""h2d: batches from the host into the arena, copied while the step before computes.

    loader -> pinned buffer -> copy stream -> zone A (I_A_LABEL, I_A_DATA) and zone B in turn

A thread takes batches from the loader and stages them in a ring of pinned buffers.  That thread
alone ever waits for the device, before it writes a buffer again; the rest is events: the copy
stream waits until a zone's last batch was consumed, the consumer's stream until its batch has
arrived.  Label and data of a zone adjoin, so a batch is one copy.
"""

from rangeops.h2d.copy import h2d_copy
from rangeops.h2d.prefetch import Batch, Prefetcher

__all__ = ["Batch", "Prefetcher", "h2d_copy"]

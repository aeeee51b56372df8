"""save, load: everything that a run goes on from, as one safetensors file of tensors by name.

    fc.weight        the FP32 weights (with halves the masters; half copies are made of them)
    m.fc.weight      first moments;  v.fc.weight: second moments;  ema.fc.weight: averages
    stats.NAME       BN statistics
    facts            config, kinds, scalars (loss scale, its counters, skipped steps ...), the step
                     of every tensor, groups, frozen tensors, the driver's options, ``extra``

Tensors are logical: shapes without padding, each by what it is, also while averaged weights are
swapped in.  So a file fits any layout of the same parameters: other halves, another order, another
number of ranks.  Everything is checked before the first byte is written; a file that is refused
changes nothing.
"""

from rangeops.checkpoint.loading import Loaded, load
from rangeops.checkpoint.saving import save

__all__ = ["Loaded", "load", "save"]

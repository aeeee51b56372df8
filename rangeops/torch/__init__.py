"""The PyTorch adapter: a module's parameters in an arena, optimizers with torch's signatures.

    adopted = rangeops.torch.adopt(model, "adamw", ema=True)
    optimizer = rangeops.torch.AdamW(model.parameters(), lr=1e-3)

``adopt`` makes ``param.data`` and ``param.grad`` views of one arena; the optimizers run a whole
step in a few launches.  ``RangeOptimizer`` is the base for an optimizer of one's own.  This package
alone imports torch, and nothing below imports this package.
"""

from rangeops.torch.adopt import Adopted, adopt
from rangeops.torch.optim import LAMB, LARS, SGD, Adam, AdamW, Lion
from rangeops.torch.optimizer import RangeOptimizer

__all__ = ["LAMB", "LARS", "SGD", "Adam", "AdamW", "Adopted", "Lion", "RangeOptimizer", "adopt"]

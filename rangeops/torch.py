"""The PyTorch adapter; the only file that imports torch, and only when a torch object came in."""

from __future__ import annotations

import torch


def current_stream_handle(device_id: int) -> int:
    """Return the raw handle of torch's current stream on a device."""
    return int(torch.cuda.current_stream(device_id).cuda_stream)

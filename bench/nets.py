"""GPT-2 124M as a torch module, torchvision's ResNet-50, and random batches for both."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def resnet50() -> nn.Module:
    """Return torchvision's ResNet-50, 25,557,032 parameters."""
    from torchvision import models

    return models.resnet50()


class Block(nn.Module):
    """GPT-2's block: causal attention and MLP, each behind a layer norm (Radford et al. 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output for (batch, time, width)."""
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, c))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """A GPT-2: token and place embeddings, blocks, a norm, the output tied to the embedding."""

    def __init__(self, tokens: int, places: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(tokens, width), nn.Embedding(places, width)
        for table in (self.embedding, self.place):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits for (batch, time) tokens."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.place(places)
        return self.head(self.norm(self.blocks(x)))


def gpt2() -> nn.Module:
    """Return GPT-2 124M: 124,439,808 parameters."""
    return GPT(50257, 1024, 768, 12, 12)


def batch(model: str) -> tuple[Any, Any]:
    """Return random inputs and targets on the GPU: 64 images of 224 x 224, or 8 x 1024 tokens."""
    if model == "resnet50":
        x = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        return x, torch.randint(0, 1000, (64,), device="cuda")
    tokens = torch.randint(0, 50257, (8, 1025), device="cuda")
    return tokens[:, :-1], tokens[:, 1:].reshape(-1)

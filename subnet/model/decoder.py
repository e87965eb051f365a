"""The decoder's parts: RMSNorm, rotary grouped-query attention, SwiGLU, and the block made of them (Llama-style).

Not here: the cut into stages (``subnet.model.stages``). No biases anywhere.
Shapes: B sequences, T positions, D width, H query heads, K key/value heads, Q head width.
Sources: RMSNorm arXiv:1910.07467, RoPE arXiv:2104.09864, GQA arXiv:2305.13245, SwiGLU arXiv:2002.05202.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subnet.config import ModelConfig


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a learned gain per channel."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Normalised hidden state."""
        return F.rms_norm(hidden_BTD, (hidden_BTD.shape[-1],), self.gain, self.eps)


def rotary_table(seq_len: int, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, Q/2] of the rotary angles."""
    frequency = base ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle = torch.outer(torch.arange(seq_len, dtype=torch.float64), frequency)
    return angle.cos().float(), angle.sin().float()


def rotate(heads_BHTQ: Tensor, cos_TQ: Tensor, sin_TQ: Tensor) -> Tensor:
    """Rotate each pair (i, i + Q/2) of channels by its position's angle."""
    first, second = heads_BHTQ.chunk(2, dim=-1)
    return torch.cat((first * cos_TQ - second * sin_TQ, second * cos_TQ + first * sin_TQ), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions; one matrix for queries, keys and values."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_width = config.width // config.num_heads
        self.qkv = nn.Linear(config.width, (self.num_heads + 2 * self.num_kv_heads) * self.head_width, bias=False)
        self.out = nn.Linear(self.num_heads * self.head_width, config.width, bias=False)
        cos, sin = rotary_table(config.seq_len, self.head_width, config.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """What attention adds to the residual stream."""
        batch, length, _ = hidden_BTD.shape
        heads = self.qkv(hidden_BTD).view(batch, length, self.num_heads + 2 * self.num_kv_heads, self.head_width)
        heads = heads.transpose(1, 2)
        cos, sin = self.cos[:length], self.sin[:length]
        turned = rotate(heads[:, : self.num_heads + self.num_kv_heads], cos, sin)
        query, key = turned[:, : self.num_heads], turned[:, self.num_heads :]
        value = heads[:, self.num_heads + self.num_kv_heads :]
        groups = self.num_heads // self.num_kv_heads
        if groups > 1:
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """Gated feed-forward layer; one matrix for gate and value."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.width, 2 * config.ffn_width, bias=False)
        self.down = nn.Linear(config.ffn_width, config.width, bias=False)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """What the layer adds to the residual stream."""
        gate, up = self.gate_up(hidden_BTD).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.width, config.norm_eps)
        self.ffn = SwiGLU(config)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """The residual stream after this block."""
        hidden_BTD = hidden_BTD + self.attention(self.attention_norm(hidden_BTD))
        return hidden_BTD + self.ffn(self.ffn_norm(hidden_BTD))  # type: ignore[no-any-return]

"""The sample model in plain torch: a Llama of 4 layers, its tokenizer, and greedy generation."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

from .data import SPECIALS

# The split of Qwen2's tokenizer (every digit alone), which GGUF knows by the name "qwen2".
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Shape:
    """The sizes of the model, as they go into config.json and the GGUF header."""

    vocab: int = 1024
    hidden: int = 192
    layers: int = 4
    heads: int = 3
    kv_heads: int = 1
    head: int = 64
    ffn: int = 512
    context: int = 2048
    eps: float = 1e-5
    theta: float = 10000.0


def train_tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    """A byte-level BPE of `vocab` tokens, the special ones last."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # While it learns merges the text is cut finer than later: no merge then joins a mark or a line end with letters,
    # so that an engine that cuts a GGUF's text by GPT-2's rule gets the same tokens as one that knows "qwen2".
    finer = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, finer, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIALS), show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.add_special_tokens(list(SPECIALS))
    if tokenizer.get_vocab_size() != vocab:
        raise ValueError(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {vocab}: too little text")
    return tokenizer


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions the Hugging Face way: the two halves of a head turn against each other."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Layer(nn.Module):
    """Attention with one shared key and value head, then a gated feed-forward."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norm1, self.norm2 = (nn.RMSNorm(shape.hidden, eps=shape.eps) for _ in range(2))
        self.q = nn.Linear(shape.hidden, shape.heads * shape.head, bias=False)
        self.k = nn.Linear(shape.hidden, shape.kv_heads * shape.head, bias=False)
        self.v = nn.Linear(shape.hidden, shape.kv_heads * shape.head, bias=False)
        self.o = nn.Linear(shape.heads * shape.head, shape.hidden, bias=False)
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The layer's output and the keys and values up to here."""
        batch, length, _ = x.shape
        y = self.norm1(x)
        q = rotate(self.q(y).view(batch, length, -1, self.shape.head).transpose(1, 2), *turn)
        k = rotate(self.k(y).view(batch, length, -1, self.shape.head).transpose(1, 2), *turn)
        v = self.v(y).view(batch, length, -1, self.shape.head).transpose(1, 2)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        share = self.shape.heads // self.shape.kv_heads
        wide = (t.repeat_interleave(share, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, *wide, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), (k, v)


class Llama(nn.Module):
    """The whole model; the output matrix is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # What is added to the residual stream starts smaller, for a calm beginning.
                small = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / ((2 * shape.layers) ** 0.5 if small else 1.0))
        frequency = shape.theta ** (-torch.arange(0, shape.head, 2).float() / shape.head)
        angle = torch.outer(torch.arange(shape.context).float(), frequency)
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(
        self, tokens: Tensor, mask: Tensor, past: list[tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The last hidden states (times the embedding they are logits) and the cache."""
        start = past[0][0].shape[2] if past else 0
        turn = (self.cos[start : start + tokens.shape[1]], self.sin[start : start + tokens.shape[1]])
        x = self.embed(tokens)
        cache: list[tuple[Tensor, Tensor]] = []
        for number, layer in enumerate(self.layers):
            x, kept = layer(x, turn, mask, past[number] if past else None)
            cache.append(kept)
        return self.norm(x), cache


@torch.inference_mode()
def generate(model: Llama, prompts: list[list[int]], stop: set[int], most: int) -> list[list[int]]:
    """Greedy answers, without the stop token, for a batch of prompts of any lengths."""
    longest = max(map(len, prompts))
    # Shorter prompts are filled on the left: rotary positions are relative, so only the mask has to know.
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    real = torch.tensor([[False] * (longest - len(p)) + [True] * len(p) for p in prompts])
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    mask = (causal & real[:, None, :])[:, None] | torch.eye(longest, dtype=torch.bool)
    hidden, cache = model(tokens, mask)
    answers: list[list[int]] = [[] for _ in prompts]
    alive = list(range(len(prompts)))
    for _ in range(most):
        chosen = (hidden[:, -1] @ model.embed.weight.T).argmax(dim=-1)
        kept = [row for row, token in enumerate(chosen.tolist()) if token not in stop]
        if len(kept) < len(alive):
            alive = [alive[row] for row in kept]
            if not alive:
                break
            chosen, real = chosen[kept], real[kept]
            cache = [(k[kept], v[kept]) for k, v in cache]
        for row, token in zip(alive, chosen.tolist(), strict=True):
            answers[row].append(token)
        real = torch.cat((real, torch.ones(len(alive), 1, dtype=torch.bool)), dim=1)
        hidden, cache = model(chosen[:, None], real[:, None, None, :], cache)
    return answers

#!/usr/bin/env python3
"""One training step of GPT-2 124M in PyTorch on the CPU: what train_bench measures, as a PyTorch user would write it.

The same arithmetic: b = 4, s = 1024, h = 768, 12 heads, vocabulary 50257, tied embeddings, tanh-GELU, no dropout,
gradients clipped to 1, AdamW. fp32 is plain; bf16 is autocast over fp32 weights. The floor of the step is its model
FLOPs (causal convention, as in train_bench) at the peak of a product of [2048, 1024] by [1024, 1024] measured here.

    torch_step.py [--threads N] [--dtype fp32|bf16] [--steps K] [--layers L] [--compile]
"""
import argparse
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

BATCH, SEQ, HIDDEN, HEADS, VOCAB = 4, 1024, 768, 12, 50257


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        q, k, v = (t.view(BATCH, SEQ, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(BATCH, SEQ, HIDDEN))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(SEQ, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(HIDDEN)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.blocks(self.words(tokens) + self.positions.weight)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def peak_flops(dtype):
    a, b = torch.full((2048, 1024), 0.5, dtype=dtype), torch.full((1024, 1024), 0.25, dtype=dtype)
    best, end = 0, time.perf_counter() + 0.5
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, b)
        best = max(best, 2 * 2048 * 1024 * 1024 / (time.perf_counter() - start))
    return best


def model_flops(layers):
    """Of a step, forward and backward; attention counts only the scores below the diagonal, s / 2 a token."""
    products = layers * 12 * HIDDEN * HIDDEN + HIDDEN * VOCAB
    attention = layers * SEQ * HIDDEN
    return 6 * BATCH * SEQ * (products + attention)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Gpt(options.layers)
    step_model = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(VOCAB, (BATCH, SEQ + 1))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = step_model(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    peak = peak_flops(dtype)
    seconds = []
    for _ in range(options.steps + 1):  # the first warms up
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    peak = max(peak, peak_flops(dtype))
    median = statistics.median(seconds[1:])
    floor = model_flops(options.layers) / peak
    how = "compiled, " if options.compile else ""
    print(f"PyTorch {torch.__version__} {options.dtype}, {how}{options.threads} threads: "
          f"{median * 1e3:.0f} ms a step, {BATCH * SEQ / median:.0f} tokens/s, peak {peak * 1e-12:.3f} TFLOP/s, "
          f"floor {floor * 1e3:.0f} ms, MFU {100 * floor / median:.1f}%")


if __name__ == "__main__":
    main()

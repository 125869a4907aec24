#!/usr/bin/env python3
"""Training steps of GPTs in PyTorch: what train_bench measures, as a PyTorch user would write it.

    torch_step.py --model 124m|1.3b|6.7b-layers|tiny [--recipe autocast|bf16] [--micro-batch B] [--micro-batches M]
                  [--steps K] [--warm-up K] [--layers L] [--peak TFLOP/s] [--no-compile]

On a GPU: the models, batches (by GPU memory) and padded vocabulary of train_bench --model; torch.compile, the faster of
flash and cuDNN attention (measured), fused AdamW, gradients clipped to 1. Recipe `autocast`: fp32 weights, gradients
and moments under bf16 autocast, the same state as Trivet's; `bf16`: weights, gradients and moments all in bf16, with
half the bytes and less precision than Trivet's. MFU is against the data sheet (--peak, or by the GPU's name), in
train_bench's two conventions. The last line is machine-readable.

    torch_step.py [--threads N] [--dtype fp32|bf16] [--steps K] [--layers L] [--compile] [--gemms]

On a CPU: GPT-2 124M, b = 4, s = 1024, vocabulary 50257, tied embeddings, tanh-GELU, no dropout, gradients clipped to 1,
AdamW. fp32 is plain; bf16 is autocast over fp32 weights. The floor of the step is its model FLOPs (causal convention, as
in train_bench) at the peak of a GEMM of [2048, 1024] by [1024, 1024] measured here.

--blocks llama, in either mode: Llama's blocks, as in train_bench --blocks llama.

--gemms runs the GEMMs of one step instead of whole steps, as in matmul_bench: with torch.mm (oneDNN, MKL) and, in fp32,
also with NumPy (OpenBLAS); each is the best of a few alternating runs.
"""
import argparse
import dataclasses
import math
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, PADDED_VOCAB = 50257, 50304


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    seq: int
    batch: int  # samples per micro-batch on a GPU with 100 GiB or more
    vocab: int = PADDED_VOCAB  # rows of the embedding
    llama: bool = False

    def groups(self):
        """Query groups in a Llama."""
        return self.heads // (3 if self.heads % 3 == 0 else 4 if self.heads % 4 == 0 else 1)

    def ffn(self):
        """FFN width in a Llama: 8/3 h, rounded up to a multiple of 64."""
        return -(-self.hidden * 8 // (3 * 64)) * 64

    def tokens(self):
        return self.batch * self.seq

    def flops_per_token(self, convention):
        """Forward and backward. `causal` counts only the scores below the diagonal, s / 2 per token; `full` all."""
        layer = 12 * self.hidden * self.hidden
        if self.llama:
            layer = self.hidden * (2 * self.hidden * (1 + self.groups() / self.heads) + 3 * self.ffn())
        products = self.layers * layer + self.hidden * min(VOCAB, self.vocab)
        attention = self.layers * self.seq * self.hidden * (1 if convention == "causal" else 2)
        return 6 * (products + attention)


MODELS = {
    "124m": Shape(12, 768, 12, 1024, 64),
    "1.3b": Shape(24, 2048, 16, 2048, 16),
    "6.7b-layers": Shape(8, 4096, 32, 2048, 16),
    "tiny": Shape(2, 128, 2, 64, 4, 512),
}


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden = shape.hidden
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden, ffn = shape.hidden, shape.ffn()
        self.heads, self.groups, self.width = shape.heads, shape.groups(), hidden // shape.heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.groups) * self.width, bias=False)
        self.proj = nn.Linear(hidden, hidden, bias=False)
        self.gate_up, self.down = nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)
        angles = torch.outer(torch.arange(shape.seq), 10000.0 ** (-torch.arange(0, self.width, 2) / self.width))
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, -1), persistent=False)

    def rotate(self, x):
        a, b = x.chunk(2, dim=-1)
        return (x * self.cos + torch.cat([-b, a], -1) * self.sin).type_as(x)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, -1, self.width).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(
            [self.heads * self.width, self.groups * self.width, self.groups * self.width], dim=-1))
        mixed = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, h))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Gpt(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.words = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = None if shape.llama else nn.Embedding(shape.seq, shape.hidden)
        self.blocks = nn.Sequential(*((LlamaBlock if shape.llama else Block)(shape) for _ in range(shape.layers)))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5) if shape.llama else nn.LayerNorm(shape.hidden)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.words(tokens)
        x = self.blocks(x if self.positions is None else x + self.positions.weight)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


# ---- on a GPU

DATA_SHEET = {"H200": 989.4, "H100 80GB HBM3": 989.4, "A100": 312.0}  # TFLOP/s, dense bf16


def data_sheet_peak(name):
    for part, peak in DATA_SHEET.items():
        if part in name and "NVL" not in name:
            return peak
    sys.exit(f"torch_step.py: no data sheet of {name} here; give --peak in TFLOP/s")


def product_peak():
    """TFLOP/s of a large bf16 GEMM on random numbers."""
    a, b = (torch.rand(8192, 8192, device="cuda").mul_(2).sub_(1).bfloat16() for _ in range(2))
    seconds = []
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(8):
            torch.mm(a, b.t())
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / 8)
    return 2 * 8192**3 / min(seconds[1:]) * 1e-12


def choose_attention(shape):
    """Enables only scaled_dot_product_attention's faster kernel for this shape; returns its name and the times."""
    switches = {"flash": torch.backends.cuda.enable_flash_sdp, "cudnn": torch.backends.cuda.enable_cudnn_sdp}
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    qkv = torch.randn(shape.batch, shape.seq, 3, shape.heads, shape.hidden // shape.heads, device="cuda",
                      dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(shape.batch, shape.heads, shape.seq, shape.hidden // shape.heads, device="cuda",
                       dtype=torch.bfloat16)

    def milliseconds(name):
        for other, switch in switches.items():
            switch(other == name)

        def run():
            torch.cuda.synchronize()
            start = time.perf_counter()
            q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
            F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)
            torch.cuda.synchronize()
            return (time.perf_counter() - start) * 1e3

        run()
        end = time.perf_counter() + 0.1
        while time.perf_counter() < end:  # an idle GPU takes a while to reach its clock rate
            run()
        return statistics.median(run() for _ in range(5))

    found = {}
    for name in switches:
        try:
            found[name] = milliseconds(name)
        except RuntimeError as error:
            print(f"attention by {name} does not run: {str(error).splitlines()[0]}")
    if not found:
        sys.exit("torch_step.py: neither flash nor cuDNN attention runs here")
    best = min(found, key=found.get)
    for other, switch in switches.items():
        switch(other == best)
    return best, ", ".join(f"{name} {ms:.3f} ms" for name, ms in found.items())


def measure_on_gpu(options, shape):
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    name = torch.cuda.get_device_name()
    peak = options.peak or data_sheet_peak(name)
    attention, attention_times = choose_attention(shape)
    pure = options.recipe == "bf16"
    with torch.device("cuda"):
        model = Gpt(shape)
        if pure:
            model.bfloat16()
        optimizer = adamw(model)
        data = torch.randint(min(VOCAB, shape.vocab), (8, shape.batch, shape.seq + 1))
        batches = [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for tokens in data]
    step_model = torch.compile(model) if options.compile else model
    steps_done = 0

    def step():
        nonlocal steps_done
        total = 0
        for i in range(options.micro_batches):
            tokens, targets = batches[(steps_done * options.micro_batches + i) % len(batches)]
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not pure):
                loss = step_model(tokens, targets) / options.micro_batches
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps_done += 1
        return total

    begin = time.perf_counter()
    first = step().item()
    compiled = time.perf_counter() - begin
    for _ in range(options.warm_up or 5):
        step()
    events = [torch.cuda.Event(enable_timing=True) for _ in range((options.steps or 20) + 1)]
    events[0].record()
    for event in events[1:]:  # no synchronisation in between
        last = step()
        event.record()
    torch.cuda.synchronize()
    ms = sorted(a.elapsed_time(b) for a, b in zip(events, events[1:]))
    median = statistics.median(ms)
    tokens = shape.tokens() * options.micro_batches
    mfu = {c: 100 * shape.flops_per_token(c) * tokens / (median * 1e-3) / (peak * 1e12) for c in ("full", "causal")}
    memory = torch.cuda.max_memory_allocated() / 2**30
    how = ("compiled" if options.compile else "eager") + f", attention by {attention} ({attention_times})"
    state = "weights, gradients and moments bf16" if pure else "fp32 weights, gradients, moments under bf16 autocast"
    print(f"PyTorch {torch.__version__} on {name}, {options.model}, {shape.layers} layers; {state}, fused AdamW; {how}; "
          f"first step {compiled:.0f} s")
    print(f"step     {median:.2f} ms (median of {len(ms)}; {ms[0]:.2f} to {ms[-1]:.2f}), {tokens / median * 1e3:.0f} "
          f"tokens/s; peak memory {memory:.1f} GiB; loss {first:.4f} in step 1, {last.item():.4f} in step {steps_done}")
    products = product_peak()
    print(f"MFU      full {mfu['full']:.1f}%, causal {mfu['causal']:.1f}% of {peak} TFLOP/s; products reach "
          f"{products:.1f}")
    print(f"result who=torch-{options.recipe} model={options.model} dtype=bf16 tokens={tokens} ms={median:.3f} "
          f"tokens_per_s={tokens / median * 1e3:.0f} mfu_full={mfu['full']:.2f} mfu_causal={mfu['causal']:.2f} "
          f"product_tflops={products:.1f}")


# ---- on a CPU


def peak_flops(dtype):
    a, b = torch.full((2048, 1024), 0.5, dtype=dtype), torch.full((1024, 1024), 0.25, dtype=dtype)
    best, end = 0, time.perf_counter() + 0.5
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, b)
        best = max(best, 2 * 2048 * 1024 * 1024 / (time.perf_counter() - start))
    return best


def measure_gemms(options, shape):
    os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
    import numpy  # reads OPENBLAS_NUM_THREADS
    torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    hidden, tokens, total = shape.hidden, shape.tokens(), {}
    linears = [("qkv", 3 * hidden, hidden, shape.layers), ("proj", hidden, hidden, shape.layers),
               ("fc1", 4 * hidden, hidden, shape.layers), ("fc2", hidden, 4 * hidden, shape.layers),
               ("head", PADDED_VOCAB, hidden, 1)]
    for name, rows, columns, calls in linears:
        x, y, w = (torch.full(size, 0.01, dtype=dtype) for size in ((tokens, columns), (tokens, rows), (rows, columns)))
        for kind, a, b in (("forward", x, w.t()), ("backward input", y, w), ("backward weight", y.t(), x)):
            out = torch.empty(a.shape[0], b.shape[1], dtype=dtype)
            ways = {"torch": lambda a=a, b=b: torch.mm(a, b, out=out)}
            if dtype == torch.float32:
                ways["numpy"] = lambda a=a, b=b: numpy.matmul(a.numpy(), b.numpy(), out=out.numpy())
            best = dict.fromkeys(ways, math.inf)
            for _ in range(3 if name == "head" else 9):
                for way, run in ways.items():
                    start = time.perf_counter()
                    run()
                    best[way] = min(best[way], time.perf_counter() - start)
            flops = 2 * a.shape[0] * a.shape[1] * b.shape[1]
            print(f"{name + ' ' + kind:<24}", *(f"{way} {best[way] * 1e3:9.3f} ms {flops / best[way] * 1e-12:6.3f} TFLOP/s"
                                                for way in ways), flush=True)
            for way in ways:
                total[way] = total.get(way, 0) + calls * best[way]
    print("GEMMs of a step", *(f"{way} {seconds * 1e3:.0f} ms" for way, seconds in total.items()))


def measure_on_cpu(options, shape):
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Gpt(shape)
    step_model = torch.compile(model) if options.compile else model
    optimizer = adamw(model)
    tokens = torch.randint(VOCAB, (shape.batch, shape.seq + 1))

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
    for _ in range((options.steps or 4) + 1):  # the first is a warm-up
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    peak = max(peak, peak_flops(dtype))
    median = statistics.median(seconds[1:])
    floor = shape.flops_per_token("causal") * shape.tokens() / peak
    how = "compiled, " if options.compile else ""
    print(f"PyTorch {torch.__version__} {options.dtype}, {how}{options.threads} threads: "
          f"{median * 1e3:.0f} ms per step, {shape.tokens() / median:.0f} tokens/s, peak {peak * 1e-12:.3f} TFLOP/s, "
          f"floor {floor * 1e3:.0f} ms, MFU {100 * floor / median:.1f}%")


def main():
    parser = argparse.ArgumentParser(description="Training steps of GPTs in PyTorch; see the top of the file.")
    parser.add_argument("--model", choices=MODELS, help="on a GPU")
    parser.add_argument("--recipe", choices=["autocast", "bf16"], default="autocast", help="on a GPU")
    parser.add_argument("--micro-batch", type=int, help="samples; train_bench's")
    parser.add_argument("--micro-batches", type=int, default=1, help="of a step, on a GPU")
    parser.add_argument("--warm-up", type=int, help="steps, on a GPU")
    parser.add_argument("--peak", type=float, help="TFLOP/s of the GPU in bf16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="on a CPU")
    parser.add_argument("--gemms", action="store_true", help="on a CPU: GEMMs instead of steps")
    parser.add_argument("--blocks", choices=["gpt", "llama"], default="gpt")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="on for --model, else off")
    options = parser.parse_args()

    shape = MODELS[options.model] if options.model else Shape(12, 768, 12, 1024, 4, VOCAB)
    shape = dataclasses.replace(shape, llama=options.blocks == "llama")
    if options.layers:
        shape = dataclasses.replace(shape, layers=options.layers)
    if options.micro_batch:
        shape = dataclasses.replace(shape, batch=options.micro_batch)
    if options.model and not torch.cuda.is_available():
        sys.exit("torch_step.py: --model is for a GPU, and PyTorch finds none")
    if options.model and not options.micro_batch and torch.cuda.get_device_properties(0).total_memory < 100 << 30:
        shape = dataclasses.replace(shape, batch=shape.batch // 2)  # as in train_bench
    if options.compile is None:
        options.compile = options.model is not None
    if options.gemms and (options.model or shape.llama):
        sys.exit("torch_step.py: --gemms is for a CPU, without --model, and for GPT's blocks")
    (measure_gemms if options.gemms else measure_on_gpu if options.model else measure_on_cpu)(options, shape)


if __name__ == "__main__":
    main()

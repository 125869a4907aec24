#!/usr/bin/env python3
"""Makes tests/golden/fp8_gpt.json: the small GPT of make_golden.py in bf16 with linear layers in FP8 (HYBRID, per-tensor
current scaling), in PyTorch: losses and gradient norms of ten steps, and the codes of every operand of the first step.

    python3 tests/golden/make_fp8_gpt_golden.py        # needs PyTorch and NumPy; never run by the tests

Numbers are rounded to bf16 where Trivet stores them, and to FP8, with PyTorch's own types, where it quantises.
Everything in between is float64, so that sums add no rounding of their own.
"""
import json
import math
import os

import torch
import torch.nn.functional as F

from make_golden import ADAM_EPS, BATCH, BETA1, BETA2, CLIP, DECAY, EPS, H, HEADS, L, LR, SEQ, STEPS, VOCAB, make_params, tokens_of

codes = {}  # of the first step: by layer and operand
probabilities = None  # rounds attention's probabilities, as instruction sets with bf16 do, or returns them unchanged


def bf16(x):
    return x.float().bfloat16().double()


class Stored(torch.autograd.Function):
    """A tensor stored, like its gradient, in the model's dtype."""
    forward = staticmethod(lambda ctx, x: bf16(x))
    backward = staticmethod(lambda ctx, g: bf16(g))


class Weight(torch.autograd.Function):
    """The model's copy of a main weight; weight gradients stay fp32."""
    forward = staticmethod(lambda ctx, x: bf16(x))
    backward = staticmethod(lambda ctx, g: g)


def quantise(x, dtype, name):
    amax = x.abs().max().item()
    scale = 2.0 ** math.floor(math.log2(torch.finfo(dtype).max / amax))
    values = (x * scale).float().to(dtype)
    flat = values if x.dim() == 2 else values.transpose(0, 1)  # [s, b, n]
    codes.setdefault(name, flat.contiguous().view(torch.uint8).flatten().tolist())
    return values.double() / scale


class Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, name):
        ctx.name = name
        w = quantise(w, torch.float8_e4m3fn, name + ".w")
        x = quantise(x, torch.float8_e4m3fn, name + ".x")
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        d = quantise(dy, torch.float8_e5m2, ctx.name + ".dy")
        return d @ w, d.flatten(0, 1).T @ x.flatten(0, 1), None


class Attention(torch.autograd.Function):
    """FlashAttention with one tile. q, k, v: [b, heads, s, d]."""
    @staticmethod
    def forward(ctx, q, k, v):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + torch.full((SEQ, SEQ), -math.inf).triu(1)
        p = (scores - scores.amax(-1, keepdim=True)).exp()
        out = bf16(probabilities(p) @ v / p.sum(-1, keepdim=True))
        ctx.save_for_backward(q, k, v, scores.softmax(-1), out)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, p, out = ctx.saved_tensors
        ds = probabilities(p * (dout @ v.transpose(-1, -2) - (dout * out).sum(-1, keepdim=True)))
        scale = 1 / math.sqrt(q.shape[-1])
        return scale * ds @ k, scale * ds.transpose(-1, -2) @ q, probabilities(p).transpose(-1, -2) @ dout


def forward(p, tokens):
    p = {name: Weight.apply(value) for name, value in p.items()}

    def norm(x, name):
        return Stored.apply(F.layer_norm(x, (H,), p[name + ".weight"], p[name + ".bias"], EPS))

    x = Stored.apply(p["embedding.word_embeddings.weight"][tokens[:, :-1]] + p["embedding.position_embeddings.weight"])
    for i in range(L):
        base = f"decoder.layers.{i}."

        def linear(x, name, residual=None):
            y, bias = Fp8Linear.apply(x, p[base + name + ".weight"], base + name), p[base + name + ".bias"]
            return Stored.apply(y + bias if residual is None else Stored.apply(y) + bias + residual)

        qkv = linear(norm(x, base + "input_layernorm"), "self_attention.linear_qkv")
        q, k, v = (qkv.view(BATCH, SEQ, HEADS, 3, H // HEADS)[:, :, :, j].transpose(1, 2) for j in range(3))
        a = Stored.apply(Attention.apply(q, k, v).transpose(1, 2).reshape(BATCH, SEQ, H))
        x = linear(a, "self_attention.linear_proj", x)
        act = Stored.apply(F.gelu(linear(norm(x, base + "pre_mlp_layernorm"), "mlp.linear_fc1"), approximate="tanh"))
        x = linear(act, "mlp.linear_fc2", x)
    logits = Stored.apply(norm(x, "decoder.final_layernorm") @ p["output_layer.weight"].T)
    return F.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))


def run():
    codes.clear()
    p = {name: bf16(value.detach()).requires_grad_() for name, value in make_params(False, False, False).items()}
    decayed, plain = ([v for v in p.values() if v.dim() == dim] for dim in (2, 1))
    adam = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}],
                             lr=LR, betas=(BETA1, BETA2), eps=ADAM_EPS)
    golden = {"losses": [], "grad_norms": []}
    for step in range(STEPS):
        loss = forward(p, tokens_of(step))
        adam.zero_grad()
        loss.backward()
        golden["losses"].append(loss.item())
        golden["grad_norms"].append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP).item())
        adam.step()
    print(golden)
    return golden | {"codes": {name: bytes(values).hex() for name, values in codes.items()}}


golden = {}
for name, probabilities in (("bf16", bf16), ("fp32", lambda p: p)):
    golden[name] = run()
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fp8_gpt.json"), "w") as f:
    json.dump(golden, f, indent=1)
    f.write("\n")

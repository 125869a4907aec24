#!/usr/bin/env python3
"""Makes tests/golden/{gpt_tied,gpt_untied,llama,qwen3}.json: losses, gradient norms and gradients of a small GPT, a small
Llama and one with Qwen3's QK norms, in PyTorch.

    python3 tests/golden/make_golden.py        # needs PyTorch and NumPy; never run by the tests

The models are written here from their definitions (pre-layer-norm GPT-2, tanh GELU; Llama 3.1's RMSNorm, scaled RoPE,
SwiGLU and query groups; Megatron's QKV order within a group), in float64, so that the golden numbers carry no rounding
of their own. Weights and tokens are the same pure functions as in engine/model/init.h and tests/engine/golden_test.cc,
rounded to float32 as there. Ten AdamW steps with clipping, weight decay on matrices only.
"""
import json
import math
import os

import numpy as np
import torch
import torch.nn.functional as F

L, H, HEADS, FFN, SEQ, VOCAB, BATCH, STEPS = 2, 16, 2, 64, 12, 50, 2, 10
STD, SEED, EPS = 0.02, 1234, 1e-5
# The Llama's sizes
LLAMA_HEADS, GROUPS, WIDTH, LLAMA_FFN = 4, 2, 6, 24
ROPE = {"base": 10_000, "factor": 8, "low": 1, "high": 4, "original": 8192}
LR, BETA1, BETA2, ADAM_EPS, DECAY, CLIP = 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0
MASK64 = (1 << 64) - 1


def philox(counter, key):
    c = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def init_key(name):
    h = 0xCBF29CE484222325 ^ (SEED * 0x9E3779B97F4A7C15 & MASK64)
    for ch in name.encode():
        h = (h ^ ch) * 0x100000001B3 & MASK64
    return h


def normal(name, shape, std):
    n = int(np.prod(shape))
    out = np.empty((n + 3) // 4 * 4, dtype=np.float32)
    key = init_key(name)
    for block in range(len(out) // 4):
        w = philox(block, key)
        for pair in (0, 1):
            u, angle = (w[2 * pair] + 0.5) / 2**32, 2 * math.pi * ((w[2 * pair + 1] + 0.5) / 2**32)
            r = math.sqrt(-2 * math.log(u))
            out[4 * block + 2 * pair] = r * math.cos(angle)
            out[4 * block + 2 * pair + 1] = r * math.sin(angle)
    return (np.float32(std) * out[:n]).reshape(shape)


def make_params(tied, llama, qk_norm):
    p = {}
    out_std = np.float32(STD) * (np.float32(1) / np.sqrt(np.float32(2 * L)))

    def add(name, value):
        p[name] = torch.tensor(np.asarray(value, dtype=np.float64), requires_grad=True)

    def linear(name, out, inp, std):
        add(name + ".weight", normal(name + ".weight", (out, inp), std))
        if not llama:
            add(name + ".bias", np.zeros(out))

    def norm(name, width=H):
        add(name + ".weight", np.ones(width))
        if not llama:
            add(name + ".bias", np.zeros(H))

    for name, rows in (("embedding.word_embeddings.weight", VOCAB), ("embedding.position_embeddings.weight", SEQ)):
        if not llama or rows == VOCAB:
            add(name, normal(name, (rows, H), STD))
    qkv, attention = ((LLAMA_HEADS + 2 * GROUPS) * WIDTH, LLAMA_HEADS * WIDTH) if llama else (3 * H, H)
    fc1, fc2 = (2 * LLAMA_FFN, LLAMA_FFN) if llama else (FFN, FFN)
    for i in range(L):
        base = f"decoder.layers.{i}."
        norm(base + "input_layernorm")
        linear(base + "self_attention.linear_qkv", qkv, H, STD)
        for part in "qk" if qk_norm else "":
            norm(base + f"self_attention.{part}_layernorm", WIDTH)
        linear(base + "self_attention.linear_proj", H, attention, out_std)
        norm(base + "pre_mlp_layernorm")
        linear(base + "mlp.linear_fc1", fc1, H, STD)
        linear(base + "mlp.linear_fc2", H, fc2, out_std)
    norm("decoder.final_layernorm")
    if not tied:
        add("output_layer.weight", normal("output_layer.weight", (VOCAB, H), STD))
    return p


def tokens_of(step):
    """[BATCH, SEQ + 1]: the same integers as in golden_test.cc."""
    return torch.tensor([[(step * 131 + b * 17 + i * i * 7 + i * 3 + 5) % VOCAB for i in range(SEQ + 1)]
                         for b in range(BATCH)])


def forward(p, tokens):
    x = p["embedding.word_embeddings.weight"][tokens[:, :-1]] + p["embedding.position_embeddings.weight"]
    for i in range(L):
        base = f"decoder.layers.{i}."

        def linear(x, name):
            return F.linear(x, p[base + name + ".weight"], p[base + name + ".bias"])

        def norm(x, name):
            return F.layer_norm(x, (H,), p[base + name + ".weight"], p[base + name + ".bias"], EPS)

        qkv = linear(norm(x, "input_layernorm"), "self_attention.linear_qkv").view(BATCH, SEQ, HEADS, 3, H // HEADS)
        q, k, v = (qkv[:, :, :, j].transpose(1, 2) for j in range(3))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, SEQ, H)
        x = x + linear(a, "self_attention.linear_proj")
        x = x + linear(F.gelu(linear(norm(x, "pre_mlp_layernorm"), "mlp.linear_fc1"), approximate="tanh"),
                       "mlp.linear_fc2")
    x = F.layer_norm(x, (H,), p["decoder.final_layernorm.weight"], p["decoder.final_layernorm.bias"], EPS)
    head = p.get("output_layer.weight", p["embedding.word_embeddings.weight"])
    return F.cross_entropy(F.linear(x, head).reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))


def rope(x):
    """x: [BATCH, heads, SEQ, WIDTH]; columns i and i + WIDTH / 2 rotate by pair i's angle (Meta's apply_scaling)."""
    angles = []
    for i in range(WIDTH // 2):
        f = ROPE["base"] ** (-2 * i / WIDTH)
        wavelength = 2 * math.pi / f
        if wavelength > ROPE["original"] / ROPE["low"]:
            f /= ROPE["factor"]
        elif wavelength > ROPE["original"] / ROPE["high"]:
            smooth = (ROPE["original"] / wavelength - ROPE["low"]) / (ROPE["high"] - ROPE["low"])
            f = (1 - smooth) * f / ROPE["factor"] + smooth * f
        angles.append(torch.arange(SEQ, dtype=torch.float64) * f)
    angles = torch.stack(angles, dim=1).repeat(1, 2)
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-b, a), dim=-1) * angles.sin()


def forward_llama(p, tokens):
    def norm(x, name):
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * p[name + ".weight"]

    x = p["embedding.word_embeddings.weight"][tokens[:, :-1]]
    members = LLAMA_HEADS // GROUPS
    for i in range(L):
        base = f"decoder.layers.{i}."
        qkv = F.linear(norm(x, base + "input_layernorm"), p[base + "self_attention.linear_qkv.weight"])
        qkv = qkv.view(BATCH, SEQ, GROUPS, members + 2, WIDTH)
        q, k = qkv[:, :, :, :members].reshape(BATCH, SEQ, LLAMA_HEADS, WIDTH), qkv[:, :, :, members]
        if base + "self_attention.q_layernorm.weight" in p:
            q, k = norm(q, base + "self_attention.q_layernorm"), norm(k, base + "self_attention.k_layernorm")
        q, k = rope(q.transpose(1, 2)), rope(k.transpose(1, 2)).repeat_interleave(members, dim=1)
        v = qkv[:, :, :, members + 1].transpose(1, 2).repeat_interleave(members, dim=1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, SEQ, -1)
        x = x + F.linear(a, p[base + "self_attention.linear_proj.weight"])
        gate, up = F.linear(norm(x, base + "pre_mlp_layernorm"), p[base + "mlp.linear_fc1.weight"]).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, p[base + "mlp.linear_fc2.weight"])
    head = p.get("output_layer.weight", p["embedding.word_embeddings.weight"])
    logits = F.linear(norm(x, "decoder.final_layernorm"), head)
    return F.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))


def run(name, tied, llama=False, qk_norm=False):
    p = make_params(tied, llama, qk_norm)
    decayed = [v for v in p.values() if v.dim() == 2]
    plain = [v for v in p.values() if v.dim() == 1]
    adam = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}],
                             lr=LR, betas=(BETA1, BETA2), eps=ADAM_EPS)
    golden = {"losses": [], "grad_norms": [], "first_gradients": {}}
    for step in range(STEPS):
        loss = (forward_llama if llama else forward)(p, tokens_of(step))
        adam.zero_grad()
        loss.backward()
        if step == 0:
            golden["first_gradients"] = {k: [float(f"{g:.9g}") for g in v.grad.flatten().tolist()] for k, v in p.items()}
        golden["losses"].append(loss.item())
        golden["grad_norms"].append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP).item())
        adam.step()
    name = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".json")
    with open(name, "w") as f:
        json.dump(golden, f)
        f.write("\n")
    print(name, golden["losses"][0], "->", golden["losses"][-1])


if __name__ == "__main__":
    run("gpt_tied", True)
    run("gpt_untied", False)
    run("llama", False, llama=True)
    run("qwen3", True, llama=True, qk_norm=True)

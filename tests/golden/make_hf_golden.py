#!/usr/bin/env python3
"""Makes tests/golden/hf_gpt2/: a tiny GPT-2 as Hugging Face's transformers saves it, and the logits it computes.

    python3 tests/golden/make_hf_golden.py     # needs PyTorch and transformers; never run by the tests

    python3 tests/golden/make_hf_golden.py FOLDER CHECKPOINT TRIVET
                                               # compares an exported FOLDER with a CHECKPOINT converted from it

Every weight and bias is random and large, so that a wrong order of rows, a missing transpose or a forgotten bias moves
the logits by more than rounding does.
"""
import json
import os
import subprocess
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hf_gpt2")
TOKENS = [3, 1, 39, 17, 8, 25]


def make():
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=12, n_embd=8, n_layer=2, n_head=2,
                                       bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if ".ln_" in name and name.endswith("weight") else 0.0))
    model.save_pretrained(HERE)
    os.remove(os.path.join(HERE, "generation_config.json"))
    with torch.no_grad():
        logits = model.double()(torch.tensor([TOKENS])).logits[0]
    with open(os.path.join(HERE, "logits.json"), "w") as f:
        json.dump({"tokens": TOKENS, "logits": [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]}, f)
        f.write("\n")


def check(folder, checkpoint, trivet):
    model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    model = model.eval()
    said = subprocess.run([trivet, "generate", checkpoint, "--prompt-tokens", ",".join(map(str, TOKENS)), "--temperature",
                           "0", "--tokens", "6", "--set", "precision.dtype=fp32"],
                          check=True, capture_output=True, text=True).stdout
    tokens = torch.tensor([TOKENS])
    with torch.no_grad():
        for _ in range(6):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert [int(t) for t in said.split(",")] == tokens[0].tolist(), (said, tokens)
    print("the same", tokens[0].tolist())


check(*sys.argv[1:]) if len(sys.argv) > 1 else make()

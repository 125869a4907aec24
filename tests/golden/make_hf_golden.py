#!/usr/bin/env python3
"""Makes tests/golden/hf_MODEL/: a tiny model as Hugging Face's transformers saves it, and the logits it computes in fp64.
Never run by the tests; needs PyTorch and transformers.

    make_hf_golden.py make gpt2|llama|mistral|qwen2 [FOLDER]
    make_hf_golden.py logits FOLDER             # adds logits.json to an exported folder, whose text.txt is the tokens' text
    make_hf_golden.py check FOLDER CHECKPOINT TRIVET
                                                # compares greedy tokens of a FOLDER and a CHECKPOINT converted from or to it

Every weight and bias is random and large, so that a wrong order of rows, a missing transpose or a forgotten bias moves
the logits by more than rounding does. hf_gpt2 and hf_llama (in shards) were saved by transformers 4.57.6, hf_qwen2 by
5.23.0, whose config.json has rope_parameters. `Convert.GivesTheLogitsOfHuggingFace` also reads the folders that the
environment variable TRIVET_HF_MODELS lists, and prints the largest difference.
"""
import json
import os
import subprocess
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = [3, 1, 39, 17, 8, 25]
IDS = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 0}
SIZES = {"max_position_embeddings": 12, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False, **IDS}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}


def config_of(kind):
    five = transformers.__version__ >= "5"
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}} if five else {"rope_theta": 500.0}
    scaled = {"rope_parameters": {**ROPE, "rope_theta": 500.0}} if five else {"rope_scaling": ROPE, "rope_theta": 500.0}
    return {"gpt2": lambda: transformers.GPT2Config(n_positions=12, n_embd=8, n_layer=2, n_head=2, **IDS),
            "llama": lambda: transformers.LlamaConfig(head_dim=8, rms_norm_eps=1e-5, **SIZES, **scaled),
            "mistral": lambda: transformers.MistralConfig(head_dim=4, sliding_window=None, **SIZES, **theta),
            "qwen2": lambda: transformers.Qwen2Config(**SIZES, **theta)}[kind]()


def write_logits(folder, model, tokens):
    with torch.no_grad():
        logits = model.double()(torch.tensor([tokens])).logits[0]
    with open(os.path.join(folder, "logits.json"), "w") as f:
        json.dump({"tokens": tokens, "logits": [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]}, f)
        f.write("\n")


def make(kind, folder=None):
    folder = folder or os.path.join(HERE, "hf_" + kind)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config_of(kind)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_norm = "norm" in name or ".ln_" in name
            weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if is_norm and name.endswith("weight") else 0.0))
    model.save_pretrained(folder, **({"max_shard_size": "16KB"} if kind == "llama" else {}))
    os.remove(os.path.join(folder, "generation_config.json"))
    write_logits(folder, model, TOKENS)


def loaded(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def logits(folder):
    with open(os.path.join(folder, "text.txt")) as f:
        tokens = AutoTokenizer.from_pretrained(folder)(f.read(), add_special_tokens=False).input_ids
    model = loaded(folder)
    write_logits(folder, model, tokens[:min(128, model.config.max_position_embeddings)])
    print(f"transformers {transformers.__version__}: {type(model).__name__}, {len(tokens)} tokens")


def check(folder, checkpoint, trivet):
    model = loaded(folder)
    said = subprocess.run([trivet, "generate", checkpoint, "--prompt-tokens", ",".join(map(str, TOKENS)), "--temperature",
                           "0", "--tokens", "6", "--set", "precision.dtype=fp32"],
                          check=True, capture_output=True, text=True).stdout
    tokens = torch.tensor([TOKENS])
    with torch.no_grad():
        for _ in range(6):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert [int(t) for t in said.split(",")] == tokens[0].tolist(), (said, tokens)
    print("the same", tokens[0].tolist())


{"make": make, "logits": logits, "check": check}[sys.argv[1]](*sys.argv[2:])

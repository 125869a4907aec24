#!/usr/bin/env python3
"""Makes tests/golden/hf_MODEL/: a tiny model as Hugging Face's transformers saves it, and the logits it computes in fp64.
Never run by the tests; needs PyTorch and transformers.

    make_hf_golden.py make gpt2|llama|mistral|qwen2|qwen3 [FOLDER]
    make_hf_golden.py check FOLDER CHECKPOINT TRIVET
                                                # compares greedy tokens of a FOLDER and a CHECKPOINT converted from or to it
    make_hf_golden.py trial TEXT FOLDER TRIVET ENGINE_TEST
                                                # everything with this version of transformers, in a new FOLDER

Every weight and bias is random and large, so that a wrong order of rows, a missing transpose or a forgotten bias moves
the logits by more than rounding does. hf_gpt2, hf_llama (in shards) and hf_qwen3 were saved by transformers 4.57.6,
hf_qwen2 by 5.23.0, whose config.json contains rope_parameters.

A trial trains a small Llama with TEXT's BPE, exports it in shards, and compares with transformers the ids of TEXT,
greedy tokens, and, by `Convert.GivesTheLogitsOfHuggingFace` over the folders in TRIVET_HF_MODELS, the logits of this
and of random models. On the first 6 MB of GCIDE, with 4.57.6 and 5.23.0 alike:

    trained: 590,464 parameters in 14 tensors of run/checkpoints/step-00000040, fp32, in 0.02 s
    not carried: the optimizer's state and the counts of step 40
    the same [3, 1, 39, 17, 8, 25, 2, 14, 261, 267, 280, 282]
    transformers 5.23.0: the same 107071 ids
    trained: logits differ by 4.4e-07 of the largest
    llama: logits differ by 2.4e-07 of the largest
    mistral: logits differ by 5.8e-07 of the largest
    qwen2: logits differ by 3.3e-07 of the largest
    qwen3: logits differ by 1.1e-06 of the largest
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
            "qwen2": lambda: transformers.Qwen2Config(**SIZES, **theta),
            "qwen3": lambda: transformers.Qwen3Config(head_dim=6, **SIZES, **theta)}[kind]()


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


def trial(text, folder, trivet, tools_test):
    os.makedirs(folder)
    run = lambda *arguments: subprocess.run(arguments, check=True, capture_output=True, text=True, cwd=folder).stdout
    text = os.path.abspath(text)
    run(trivet, "data", "prepare", "--input", text, "--tokenizer", "bpe", "--vocab-size", "2048", "--output", "data")
    sets = {"data.path": "data", "train.run_dir": "run", "train.train_iters": 40, "train.eval_interval": 0,
            "model.num_layers": 2, "model.hidden_size": 128, "model.num_query_groups": 2, "precision.dtype": "fp32",
            "batch.global_batch_size": 16, "parallel.tensor_model_parallel_size": 1,
            "parallel.sequence_parallel": "false", "parallel.pipeline_model_parallel_size": 1}
    run(trivet, "train", os.path.join(HERE, "../../configs/llama_tiny.yaml"), "--ranks", "1",
        *(word for key, value in sets.items() for word in ("--set", f"{key}={value}")))
    print(run(trivet, "checkpoint", "convert", "run", "trained", "--to", "hf", "--max-shard-size", "500KB").strip())
    trained = os.path.join(folder, "trained")
    check(trained, os.path.join(folder, "run"), trivet)

    # The ids of TEXT's beginning as one document; Trivet's ids end with one end-of-document token.
    tokenizer = AutoTokenizer.from_pretrained(trained)
    with open(text, newline="") as f:
        whole = f.read(300_000)
    with open(os.path.join(folder, "part.txt"), "w", newline="") as f:
        f.write(whole)
    run(trivet, "data", "prepare", "--input", "part.txt", "--tokenizer", "bpe", "--model", "trained/tokenizer.json",
        "--eod-token", tokenizer.eos_token, "--output", "part")
    with open(os.path.join(folder, "part.bin"), "rb") as f:
        ours = memoryview(f.read()).cast("H").tolist()
    theirs = tokenizer(whole, add_special_tokens=False).input_ids
    assert ours == theirs + [tokenizer.eos_token_id], (len(ours), len(theirs))
    print(f"transformers {transformers.__version__}: the same {len(theirs)} ids")

    write_logits(trained, loaded(trained), theirs[:128])
    kinds = ["llama", "mistral", "qwen2", "qwen3"]
    for kind in kinds:
        make(kind, os.path.join(folder, kind))
    os.environ["TRIVET_HF_MODELS"] = " ".join(["trained", *kinds])
    for line in run(tools_test, "--gtest_filter=Convert.GivesTheLogitsOfHuggingFace").splitlines():
        if "differ" in line:
            print(line)


{"make": make, "check": check, "trial": trial}[sys.argv[1]](*sys.argv[2:])

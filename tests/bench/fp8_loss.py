#!/usr/bin/env python3
"""The loss of FP8 against bf16: a small GPT and a small Llama, some seeds, a pair of runs each. Prints a table.

    tests/bench/fp8_loss.py build/trivet --data data/gcide

A run's loss is the mean over its last tenth of steps; the runs of a pair share samples and initial weights."""
import argparse
import json
import pathlib
import subprocess
import tempfile

MODELS = {
    "GPT": "configs/tiny.yaml",
    "Llama": "configs/llama_tiny.yaml",
}
RECIPES = {
    "hybrid": {"precision.fp8": "hybrid"},
    "blockwise": {"precision.fp8": "e4m3", "precision.fp8_recipe": "blockwise", "device.kind": "cpu"},
}
SMALL = {
    "model.num_layers": 2, "model.hidden_size": 64, "model.num_attention_heads": 4, "model.seq_length": 64,
    "parallel.tensor_model_parallel_size": 1, "parallel.pipeline_model_parallel_size": 1,
    "parallel.sequence_parallel": "false", "batch.micro_batch_size": 4, "batch.global_batch_size": 4,
    "optimizer.lr": 2e-3, "train.eval_interval": 0, "checkpoint.save_interval": 0, "checkpoint.keep_last": 0,
    "device.threads_per_rank": 1,
}


def loss_of(args, folder, model, seed, recipe):
    run = folder / f"{model}_{seed}_{recipe}"
    sets = dict(SMALL) | {"train.train_iters": args.steps, "train.seed": seed, "data.path": args.data,
                          "train.run_dir": run} | RECIPES.get(recipe, {})
    if model == "Llama":
        sets["model.num_query_groups"] = 2
    command = [args.trivet, "train", MODELS[model]]
    for key, value in sets.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = [record["loss"] for record in records if "loss" in record and "step" in record]
    last = losses[-max(1, args.steps // 10):]
    return sum(last) / len(last)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trivet", type=pathlib.Path)
    parser.add_argument("--data", default="data/gcide")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipe", choices=RECIPES, default="hybrid")
    args = parser.parse_args()
    print(f"| model | seed | bf16 | {args.recipe} | difference |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            for seed in range(1, args.seeds + 1):
                bf16, fp8 = (loss_of(args, pathlib.Path(folder), model, seed, how) for how in ("bf16", args.recipe))
                print(f"| {model} | {seed} | {bf16:.4f} | {fp8:.4f} | {100 * (fp8 / bf16 - 1):+.3f} % |", flush=True)


main()

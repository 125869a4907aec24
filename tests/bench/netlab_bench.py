#!/usr/bin/env python3
"""Data-parallel training over real links (launch/netlab): Trivet without and with overlap and, if --torch names a
Python with PyTorch, its DDP and FSDP over gloo (torch_ddp.py) on the same links, cores, model and batch.

One rank per host, one thread each, fp32, 14 million parameters, 4 samples of 256 tokens per rank per step. Each round
runs every program once. Ratios are taken within a round; the median and the range over the rounds are printed. Needs
root, as netlab does.

    netlab_bench.py [--ranks N] [--gbps X] [--rounds R] [--steps K] [--torch PYTHON] [--trivet PROGRAM]
"""
import argparse
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = {"layers": 8, "hidden": 384, "seq": 256, "batch": 4, "vocab": 257}
WARM_UP = 2

RUN = """
model: {{num_layers: {layers}, hidden_size: {hidden}, num_attention_heads: {heads}, seq_length: {seq}, vocab_size: {vocab}}}
batch: {{micro_batch_size: {batch}}}
parallel: {{bucket_size: 1000000}}
optimizer: {{lr: 1.0e-4}}
data: {{path: {folder}/data, split: "100,0,0"}}
train: {{train_iters: {steps}, run_dir: {folder}/run}}
device: {{threads_per_rank: 1, peak_tflops: 1}}
"""
OPTIM = "parallel.data_parallel_sharding_strategy=optim"
REDUCE, GATHER = "overlap.overlap_grad_reduce=true", "overlap.overlap_param_gather=true"


def on_netlab(options, command, environment=()):
    lab = [str(ROOT / "launch/netlab/netlab.sh"), "--ranks", str(options.ranks), "--gbps", str(options.gbps), "--"]
    assigned = [argument for name in environment for argument in ("-x", name)]
    done = subprocess.run(lab + assigned + [str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"netlab_bench: exit code {done.returncode}: {' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def trivet(options, folder, *sets):
    shutil.rmtree(folder / "run", ignore_errors=True)
    command = [options.trivet, "train", folder / "run.yaml"]
    for setting in sets:
        command += ["--set", setting]
    on_netlab(options, command)
    steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return statistics.median(step["step_seconds"] for step in steps[WARM_UP:] if "step_seconds" in step)


def pytorch(options, *arguments):
    # mpirun sets these on every rank; a netlab's first host has the first address.
    environment = ["MASTER_ADDR=10.77.0.1", "GLOO_SOCKET_IFNAME=eth0"]
    command = [options.torch, ROOT / "tests/bench/torch_ddp.py", "--steps", options.steps, *arguments]
    for name, size in MODEL.items():
        command += ["--" + name, size]
    return statistics.median(json.loads(on_netlab(options, command, environment).splitlines()[-1])["seconds"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gbps", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--torch", help="a Python with PyTorch; without it only Trivet is measured")
    parser.add_argument("--trivet", default=ROOT / "build/trivet")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="trivet-netlab-bench-") as name:
        folder = pathlib.Path(name)
        random.seed(1)
        (folder / "text").write_bytes(bytes(random.choices(range(32, 127), k=1 << 18)))
        subprocess.run([options.trivet, "data", "prepare", "--input", folder / "text", "--tokenizer", "bytes", "--output",
                        folder / "data"], check=True, stdout=subprocess.DEVNULL)
        (folder / "run.yaml").write_text(
            RUN.format(folder=folder, steps=options.steps, heads=MODEL["hidden"] // 64, **MODEL))

        ways = {
            "Trivet, no_shard": lambda: trivet(options, folder),
            "Trivet, no_shard, overlap_grad_reduce": lambda: trivet(options, folder, REDUCE),
            "Trivet, optim": lambda: trivet(options, folder, OPTIM),
            "Trivet, optim, both overlaps": lambda: trivet(options, folder, OPTIM, REDUCE, GATHER),
            "Trivet, optim_grads_params, both overlaps": lambda: trivet(
                options, folder, "parallel.data_parallel_sharding_strategy=optim_grads_params",
                "parallel.bucket_size=auto", REDUCE, GATHER),
        }
        if options.torch:
            ways["PyTorch DDP, buckets of 25 MB"] = lambda: pytorch(options, "--how", "ddp")
            ways["PyTorch DDP, buckets of 4 MB"] = lambda: pytorch(options, "--how", "ddp", "--bucket-mb", 4)
            ways["PyTorch FSDP (fully_shard)"] = lambda: pytorch(options, "--how", "fsdp")
        rounds = []
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            order = list(ways) if number % 2 == 0 else list(ways)[::-1]
            rounds.append({way: ways[way]() for way in order})

    print(f"{options.ranks} ranks at {options.gbps:g} Gbit/s, {options.rounds} rounds of {options.steps} steps, the "
          f"first {WARM_UP} not measured")
    print("| | step, ms | over no overlap | over optim with both |\n|---|---|---|---|")
    for way in ways:
        cells = [f"{1e3 * statistics.median(r[way] for r in rounds):.0f}"]
        for other in ("Trivet, no_shard", "Trivet, optim, both overlaps"):
            ratios = [r[way] / r[other] for r in rounds]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
        print(f"| {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The planner against runs on this machine's CPUs: predicted and measured seconds per step.

    plan_cpu.py            ratios of some thirty configurations and their mean, median, largest and bias, separately for
                           ranks with cores of their own and for ranks that share them
    plan_cpu.py --regret   four-rank layouts over emulated links: how much slower the planner's choice is than the
                           fastest of them; then the same for the layout that --search finds among all layouts

Run nothing else here. `trivet plan --calibrate` writes the system spec that --system names. A measured time is
the median of a run's steps after the first two. Each round (--rounds) runs every configuration once; the fastest round
counts.

    plan_cpu.py [--system NAME|FILE] [--steps K] [--rounds R] [--only PART] [--csv FILE] [--trivet PROGRAM]
"""
import argparse
import csv
import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WARM_UP = 2

RUN = """
model: {{num_layers: 8, hidden_size: 256, num_attention_heads: 4, seq_length: 256, vocab_size: 1024}}
batch: {{micro_batch_size: 1, global_batch_size: 8}}
optimizer: {{lr: 1.0e-4}}
data: {{path: {folder}/data, split: "100,0,0"}}
train: {{train_iters: {steps}, run_dir: {folder}/run}}
device: {{kind: cpu, threads_per_rank: 1, peak_tflops: 1}}
"""

BF16 = {"precision.dtype": "bf16"}
SEQUENCE = {"parallel.sequence_parallel": "true"}
OVERLAP = {"overlap.overlap_grad_reduce": "true", "overlap.overlap_param_gather": "true"}
BUCKETS = {"parallel.bucket_size": 1_000_000}
ZERO1 = {"parallel.data_parallel_sharding_strategy": "optim"}
ZERO3 = {"parallel.data_parallel_sharding_strategy": "optim_grads_params"}
LLAMA = {"model.normalization": "RMSNorm", "model.swiglu": "true", "model.position_embedding_type": "rope",
         "model.add_bias_linear": "false", "model.untie_embeddings_and_output_weights": "true"}


def micro(samples):
    return {"batch.micro_batch_size": samples}


def cut(t=1, p=1, v=None, schedule=None):
    sets = {"parallel.tensor_model_parallel_size": t, "parallel.pipeline_model_parallel_size": p}
    if v:
        sets["parallel.virtual_pipeline_model_parallel_size"] = v
    if schedule:
        sets["parallel.pipeline_schedule"] = schedule
    return sets


def link(gbps, latency_us, kind=""):
    return {f"comm.{kind}link_gbps": gbps, f"comm.{kind}link_latency_us": latency_us}


# Name, ranks, settings.
CASES = [
    ("1 rank", 1, {}),
    ("1 rank, bf16", 1, BF16),
    ("1 rank, b4", 1, micro(4)),
    ("1 rank, full recompute", 1, {"model.recompute_granularity": "full", "model.recompute_method": "uniform",
                                   "model.recompute_num_layers": 1}),
    ("1 rank, h 384, s 128, b4", 1, micro(4) | {"model.hidden_size": 384, "model.num_attention_heads": 6,
                                                "model.seq_length": 128}),
    ("1 rank, Llama, b2", 1, micro(2) | LLAMA),
    ("1 rank, 2 threads", 1, {"device.threads_per_rank": 2}),
    ("1 rank, 2 threads, b4, bf16", 1, BF16 | micro(4) | {"device.threads_per_rank": 2}),
    ("d2", 2, {}),
    ("d2, b4, bf16", 2, BF16 | micro(4)),
    ("d2, 1 Gbit/s", 2, link(1, 100)),
    ("d2, ZeRO-1, 1 Gbit/s", 2, ZERO1 | link(1, 100)),
    ("d2, ZeRO-1, overlap, 1 Gbit/s", 2, ZERO1 | OVERLAP | BUCKETS | link(1, 100)),
    ("d2, ZeRO-3, overlap, 4 Gbit/s", 2, micro(4) | ZERO3 | OVERLAP | link(4, 100)),
    ("t2", 2, cut(t=2)),
    ("t2, b2, sequence parallel, 4 Gbit/s", 2, cut(t=2) | micro(2) | SEQUENCE | link(4, 50)),
    ("t2, b2, bulk overlap, 4 Gbit/s", 2,
     cut(t=2) | micro(2) | SEQUENCE | link(4, 50) | {"overlap.tp_comm_overlap": "bulk"}),
    ("t2, b2, ring overlap, 4 Gbit/s", 2,
     cut(t=2) | micro(2) | SEQUENCE | link(4, 50) | {"overlap.tp_comm_overlap": "ring"}),
    ("p2, 1f1b", 2, cut(p=2)),
    ("p2, gpipe, b2", 2, cut(p=2, schedule="gpipe") | micro(2)),
    ("p2, interleaved v2", 2, cut(p=2, v=2, schedule="interleaved")),
    ("p2, zb-h1", 2, cut(p=2, schedule="zb-h1")),
    ("p2, 1f1b, 0.5 Gbit/s, 5 ms", 2, cut(p=2) | link(0.5, 5000)),
    ("p2, interleaved v4, 1 Gbit/s, 1 ms", 2, cut(p=2, v=4, schedule="interleaved") | link(1, 1000)),
    ("p2, 1f1b, no overlap, 1 Gbit/s", 2, cut(p=2) | link(1, 1000) | {"overlap.overlap_p2p_comm": "false"}),
    ("d4", 4, {}),
    ("d4, ZeRO-1, overlap, 1 Gbit/s", 4, ZERO1 | OVERLAP | BUCKETS | link(1, 100)),
    ("t4, b2, 8 Gbit/s", 4, cut(t=4) | micro(2) | SEQUENCE | link(8, 20)),
    ("t2 d2, b2, 4 Gbit/s", 4, cut(t=2) | micro(2) | link(4, 50)),
    ("t2 p2, 1f1b", 4, cut(t=2, p=2)),
    ("p2 d2, 1f1b, overlap, 1 Gbit/s, one port", 4,
     cut(p=2) | ZERO1 | OVERLAP | BUCKETS | link(1, 100) | {"comm.shared_port": "true"}),
    ("p4, 1f1b", 4, cut(p=4)),
    ("p4, interleaved v2, 1 Gbit/s, 1 ms", 4, cut(p=4, v=2, schedule="interleaved") | link(1, 1000)),
    ("p4, zb-h1", 4, cut(p=4, schedule="zb-h1")),
    ("t2 p2 d2, 4 Gbit/s", 8, cut(t=2, p=2) | micro(2) | link(4, 50)),
    ("d8", 8, {}),
]

LINKS = link(8, 20, "tensor_") | link(1, 200, "pipeline_") | link(1, 200, "data_")


def layouts_of_four():
    """The layouts that --regret studies."""
    def name(*parts):
        return ", ".join(part for part in parts if part)

    overlaps = [("", {}), ("overlap", OVERLAP | BUCKETS)]
    for b, (how, overlap) in itertools.product((1, 2), overlaps):
        yield name("d4", "ZeRO-1", f"b{b}", how), 4, micro(b) | ZERO1 | overlap | LINKS
    for b, reduces in itertools.product((1, 2), ("false", "true")):
        yield name("d4", f"b{b}", "overlap" if reduces == "true" else ""), 4, (
            micro(b) | BUCKETS | {"overlap.overlap_grad_reduce": reduces} | LINKS)
    for b, (how, overlap) in itertools.product((1, 2, 4), overlaps):
        yield name("t2 d2", f"b{b}", how), 4, cut(t=2) | micro(b) | SEQUENCE | ZERO1 | overlap | LINKS
    pipelines = [("gpipe", None), ("1f1b", None), ("interleaved", 2), ("zb-h1", None)]
    for (kind, v), b, (how, overlap) in itertools.product(pipelines[1:], (1, 2), overlaps):
        yield name("p2 d2", kind, f"b{b}", how), 4, cut(p=2, v=v, schedule=kind) | micro(b) | ZERO1 | overlap | LINKS
    for (kind, v), b in itertools.product(pipelines[1:], (1, 2)):
        yield name("t2 p2", kind, f"b{b}"), 4, cut(t=2, p=2, v=v, schedule=kind) | micro(b) | SEQUENCE | LINKS
    for (kind, v), b in itertools.product(pipelines, (1, 2)):
        yield name("p4", kind, f"b{b}"), 4, cut(p=4, v=v, schedule=kind) | micro(b) | LINKS
    for b in (1, 4):
        yield name("t4", f"b{b}"), 4, cut(t=4) | micro(b) | SEQUENCE | LINKS


def call(options, *arguments):
    done = subprocess.run([options.trivet, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"plan_cpu: exit code {done.returncode}: {' '.join(map(str, arguments))}\n{done.stderr[-2000:]}")
    return done.stdout


def arguments_of(folder, ranks, sets):
    arguments = [folder / "run.yaml", "--ranks", ranks]
    for key, value in sets.items():
        arguments += ["--set", f"{key}={value}"]
    return arguments


def measured(options, folder, ranks, sets):
    return measured_run(options, folder, arguments_of(folder, ranks, sets))


def measured_run(options, folder, arguments):
    shutil.rmtree(folder / "run", ignore_errors=True)
    call(options, "train", *arguments)
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return statistics.median([line["step_seconds"] for line in lines if "step_seconds" in line][WARM_UP:])


def predicted(options, folder, ranks, sets):
    plan = call(options, "plan", *arguments_of(folder, ranks, sets), "--system", options.system, "--json")
    return json.loads(plan)["step_seconds"]


def print_regret(what, chosen, best):
    print(f"{what}: {chosen['name']}, {chosen['measured']:.4f} s; best: {best['name']}, {best['measured']:.4f} s; "
          f"regret {100 * (chosen['measured'] / best['measured'] - 1):.1f} %")


def searched(options, folder):
    """The planner's best among all four-rank layouts, as a row."""
    found = call(options, "plan", *arguments_of(folder, 4, LINKS), "--system", options.system, "--search", "--json",
                 "--search-out", folder / "best.yaml")
    runs = [measured_run(options, folder, [folder / "best.yaml", "--ranks", 4]) for _ in range(options.rounds)]
    return {"name": ", ".join(json.loads(found)["best"][0]["set"]), "measured": min(runs)}


def summarize(title, rows):
    if not rows:
        return
    ratios = [row["predicted"] / row["measured"] for row in rows]
    errors = [100 * abs(ratio - 1) for ratio in ratios]
    print(f"{title}: {len(rows)} configurations, error mean {statistics.mean(errors):.1f} %, median "
          f"{statistics.median(errors):.1f} %, largest {max(errors):.1f} %, bias {100 * (statistics.mean(ratios) - 1):+.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="cpu")
    parser.add_argument("--regret", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="configurations whose name contains this")
    parser.add_argument("--csv", help="write the rows to this file")
    parser.add_argument("--trivet", default=str(ROOT / "build/trivet"))
    options = parser.parse_args()
    cases = [case for case in (layouts_of_four() if options.regret else CASES) if options.only in case[0]]
    if not cases:
        sys.exit(f"plan_cpu: --only {options.only}: no configuration has that in its name")
    cores = len(os.sched_getaffinity(0))

    rows = []
    with tempfile.TemporaryDirectory(prefix="trivet-plan-cpu-") as name:
        folder = pathlib.Path(name)
        random.seed(1)
        (folder / "text").write_bytes(bytes(random.choices(range(32, 127), k=1 << 18)))
        call(options, "data", "prepare", "--input", folder / "text", "--tokenizer", "bytes", "--output", folder / "data")
        (folder / "run.yaml").write_text(RUN.format(folder=folder, steps=options.steps))
        for each in range(options.rounds):
            print(f"round {each + 1} of {options.rounds}", file=sys.stderr, flush=True)
            seconds = [measured(options, folder, ranks, sets) for _, ranks, sets in cases]
            least = [min(pair) for pair in zip(least, seconds)] if each else seconds
        for (name, ranks, sets), seconds in zip(cases, least):
            threads = ranks * sets.get("device.threads_per_rank", 1)
            row = {"name": name, "ranks": ranks, "shared": threads > cores,
                   "predicted": predicted(options, folder, ranks, sets), "measured": seconds}
            rows.append(row)
            print(f"{name:44} {row['predicted']:8.4f} {seconds:8.4f} s  {row['predicted'] / seconds:6.3f}", flush=True)

        search = searched(options, folder) if options.regret else None

    summarize("cores alone", [row for row in rows if not row["shared"]])
    summarize("cores shared", [row for row in rows if row["shared"]])
    if options.regret:
        chosen, best = (min(rows, key=lambda row: row[key]) for key in ("predicted", "measured"))
        print_regret("chosen", chosen, best)
        print_regret("searched", search, best)
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

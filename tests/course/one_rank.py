#!/usr/bin/env python3
"""docs/course/one_rank.cc and the engine train the same run: the losses and gradient norms of 20 steps agree within 1e-5,
over more than two epochs of data. Also, one_rank's own gradients agree with finite differences.

    one_rank.py --source CHECKOUT --trivet PROGRAM --one-rank PROGRAM
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

kSteps = 20
kTolerance = 1e-5
kFp32Check = 0.005  # finite differences in fp32 agree within 0.001; a wrong backward pass is off by more than 0.01


def run(*command, cwd):
    ended = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250)
    if ended.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {ended.returncode}:\n{ended.stdout[-3000:]}")
    return ended.stdout


def main():
    parser = argparse.ArgumentParser()
    for name in ("--source", "--trivet", "--one-rank"):
        parser.add_argument(name, type=pathlib.Path, required=True)
    options = parser.parse_args()
    course = options.source / "docs/course"
    source = (course / "one_rank.cc").read_text()
    failures = []
    if source.count("\n") >= 700:
        failures.append(f"one_rank.cc has {source.count(chr(10))} lines, expected fewer than 700")
    with tempfile.TemporaryDirectory(prefix="one-rank-") as folder:
        (pathlib.Path(folder) / "text.txt").write_text(source[:9000])
        run(options.trivet, "data", "prepare", "--input", "text.txt", "--document", "paragraph", "--tokenizer", "bytes",
            "--output", "data/one_rank", cwd=folder)
        run(options.trivet, "train", course / "one_rank.yaml", "--set", f"train.train_iters={kSteps}",
            "--set", "device.peak_tflops=1", cwd=folder)  # skips measuring it
        records = [json.loads(line) for line in open(f"{folder}/runs/one_rank/metrics.jsonl")]
        engine = [record for record in records if "loss" in record and "step_seconds" in record]
        output = run(options.one_rank, "data/one_rank", str(kSteps), "draw", cwd=folder).splitlines()
        check = run(options.one_rank, "data/one_rank", "check", cwd=folder).splitlines()[1:]

    rows = [list(map(float, line.split())) for line in output[1:kSteps + 1]]
    if len(engine) != kSteps:
        raise SystemExit(f"the engine made {len(engine)} steps, expected {kSteps}")
    for (step, loss, norm, rate, _), record in zip(rows, engine):
        for name, ours, theirs in (("loss", loss, record["loss"]), ("gradient norm", norm, record["grad_norm"]),
                                   ("learning rate", rate, record["learning_rate"])):
            tolerance = 1e-4 if name == "learning rate" else kTolerance  # five digits are printed
            if not abs(ours - theirs) <= tolerance * abs(theirs):
                failures.append(f"step {step:.0f}: the {name} of one_rank is {ours}, of the engine {theirs}")
    picture = output[kSteps + 1:]
    if len(picture) != 32 or not all(re.fullmatch(r"\S ( \|.{32}){3} \|", line) for line in picture):
        failures.append("the picture of attention is not 32 rows of three heads")
    if len(check) != 28:
        failures.append(f"gradients of {len(check)} parameters were checked, expected 28")
    failures += [f"check: {line}" for line in check if not float(line.split()[-1]) <= kFp32Check]
    print("\n".join(failures[:12]) or f"{kSteps} steps agree within {kTolerance:g}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

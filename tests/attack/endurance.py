"""A long run of a tiny model: once the run has settled, memory, descriptors and threads do not grow, and its files grow
per step by no more than the docs say, or not at all.
"""
import os
import time

from fixtures import losses_of
from sandbox import expect

BYTES_A_STEP = 2048  # limit for metrics.jsonl, one line per step
SAMPLES = 60


def usage_of(pid):
    """(resident KiB, descriptors, threads)"""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return int(status["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])


def size_of(folder, leave_out):
    return sum(os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(folder) for name in names
               if name not in leave_out)


def endurance(case):
    steps = case.attack.endurance_steps
    ranks = 1 + case.index % 2
    case.base.write_run("run.yaml", "run", folder=case.folder, model=[("num_layers", "1"), ("hidden_size", "8"),
                        ("seq_length", "8")], batch=[("global_batch_size", str(ranks))],
                        optimizer=[("lr_decay_iters", "auto")],
                        checkpoint=[("save_interval", str(max(1, steps // 50))), ("keep_last", "2")],
                        train=[("train_iters", str(steps)), ("eval_interval", str(max(1, steps // 25))),
                               ("eval_iters", "2"), ("log_interval", str(max(1, steps // 100)))])
    process = case.start("train", "run.yaml", "--ranks", str(ranks))
    metrics, samples, limit = case.folder / "run" / "metrics.jsonl", [], 120 + steps / 50
    while not process.ended():
        expect(time.monotonic() - process.begin < limit, f"{steps} steps take more than {limit:.0f} s")
        time.sleep(0.05 if steps < 10000 else 0.5)
        try:
            samples.append((metrics.stat().st_size, *usage_of(process.pid), size_of(case.folder / "run", {"metrics.jsonl"})))
        except (OSError, KeyError):
            continue  # the file or process does not exist yet, or is gone
    result = process.result(process.code)
    expect(result.code == 0, "the run fails", result)
    expect(len(losses_of(metrics)) == steps, "steps are missing", result)
    size = metrics.stat().st_size
    expect(size <= BYTES_A_STEP * steps, f"metrics.jsonl has {size / steps:.0f} bytes a step")
    settled = [sample for sample in samples if sample[0] > size / 5]  # after a fifth of the run
    expect(len(settled) >= 4, f"{len(settled)} samples: too short a run")
    row = f"{steps:,} steps, {ranks} rank{'s' * (ranks > 1)}"
    half = len(settled) // 2
    for index, (name, slack) in enumerate([("KiB resident", 1024), ("descriptors", 2), ("threads", 1),
                                           ("bytes of other files", 65536)], 1):
        first = max(sample[index] for sample in settled[:half])
        last = max(sample[index] for sample in settled[half:])
        case.tally.most("endurance", row, name, last)
        expect(last <= first + slack, f"{name} grow: {first} in the first half, {last} in the second", result)
    case.tally.most("endurance", row, "bytes of metrics.jsonl a step", round(size / steps))
    case.tally.most("endurance", row, "steps/s", round(steps / result.seconds))

"""Ranks on hosts with different copies of a file: the last of three MPI ranks runs in another folder, where a relative
path names another file. The run ends with 65 before training and names the rank and the file; equal copies train.
  other_data.py TRIVET MPIRUN…
"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

trivet, mpirun = sys.argv[1], sys.argv[2:]
RUN = """model: {num_layers: 2, hidden_size: 16, num_attention_heads: 4, seq_length: 16}
batch: {global_batch_size: 12}
device: {kind: cpu, threads_per_rank: 1, peak_tflops: 1}
"""


def reverse_lengths(folder, prefix):
    path = folder / f"{prefix}.idx"
    data = path.read_bytes()
    magic, (count, starts) = data[:18], struct.unpack_from("<QQ", data, 18)
    lengths = struct.unpack_from(f"<{count}i", data, 34)[::-1]
    size = struct.unpack_from("<q", data, 34 + 4 * count + 8)[0] // lengths[-1]  # bytes per token
    offsets = [size * sum(lengths[:i]) for i in range(count)]
    path.write_bytes(magic + struct.pack(f"<QQ{count}i{count}q", count, starts, *lengths, *offsets) + data[34 + 12 * count:])


def copy(folder, prefix, source):
    for suffix in (".bin", ".idx", ".json"):
        shutil.copy(folder / (source + suffix), folder / (prefix + suffix))


def write_other_tokens(folder, prefix):
    """Keeps the size and changes one byte."""
    data = bytearray((folder / f"{prefix}.bin").read_bytes())
    data[len(data) // 2 & ~1] ^= 1
    (folder / f"{prefix}.bin").write_bytes(data)


def change_checkpoint(folder):
    """Replaces the checkpoint with another run's checkpoint of the same step."""
    shutil.rmtree(folder / "begun")
    shutil.copytree(folder / "stale", folder / "begun")


SPLIT = ["data.split=100,0,0"]
PARTS = ["data.path=", "data.train_path=a", "data.valid_path=b", "data.test_path=c", "train.eval_interval=2",
         "train.eval_iters=1"]
# The change to rank 2's files, the arguments, and the text expected in the message.
CASES = {
    "other tokens": (lambda f: write_other_tokens(f, "a"), SPLIT, "dataset data.path a:"),
    "reversed lengths": (lambda f: reverse_lengths(f, "a"), SPLIT, "dataset data.path a:"),
    "half of the documents": (lambda f: copy(f, "a", "half"), SPLIT, "dataset data.path a:"),
    "other validation data": (lambda f: write_other_tokens(f, "b"), PARTS, "dataset data.valid_path b:"),
    "other test data": (lambda f: copy(f, "c", "half"), PARTS, "dataset data.test_path c:"),
    "another source of a blend": (lambda f: reverse_lengths(f, "c"), ["data.path=0.3,a,0.7,c", *SPLIT], "dataset data.path c:"),
    "another PREFIX.json": (lambda f: (f / "a.json").write_text((f / "a.json").read_text().replace('"eod": 256', '"eod": 0')),
                            SPLIT, "dataset data.path a:"),
    "another tokenizer": (lambda f: shutil.copy(f / "other.model", f / "pieces.model"),
                          ["data.path=plain", "data.tokenizer_model=pieces.model", *SPLIT], "tokenizer pieces.model:"),
    "another checkpoint": (change_checkpoint, ["--resume=begun", *SPLIT], "checkpoint begun/"),
}


def arguments(more):
    return [word for text in more for word in ([text] if text.startswith("--") else ["--set", text])]


def run(*command, folder):
    result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.returncode, result.stdout


def must(*command, folder, code=0):
    found, text = run(*map(str, command), folder=folder)
    if found != code:
        sys.exit(f"$ {' '.join(map(str, command))}\nexit code {found}, expected {code}\n{text}")
    return text


def make(folder):
    folder.mkdir()
    (folder / "run.yaml").write_text(RUN)
    lines = [f"{i * i % 97} words of line {i}" for i in range(1000)]
    for name, part in (("a", lines), ("half", lines[:500]), ("b", lines[::-1]), ("c", lines[300:])):
        (folder / f"{name}.txt").write_text("\n\n".join(part) + "\n")
        must(trivet, "data", "prepare", "--input", f"{name}.txt", "--output", name, "--tokenizer", "bytes", "--document",
             "paragraph", folder=folder)
    for name, size in (("plain", 300), ("other", 310)):
        must(trivet, "data", "prepare", "--input", "a.txt", "--output", name, "--tokenizer", "sentencepiece", "--vocab-size",
             size, folder=folder)
    shutil.move(folder / "plain.model", folder / "pieces.model")
    (folder / "plain.json").unlink()
    for name, seed in (("begun", 1), ("stale", 2)):
        must(trivet, "train", "run.yaml", *arguments(["data.path=a", "train.train_iters=1", "checkpoint.save_interval=1",
             "batch.global_batch_size=12", f"train.seed={seed}", f"train.run_dir={name}", *SPLIT]), folder=folder)


def main():
    with tempfile.TemporaryDirectory() as top:
        mine, theirs = pathlib.Path(top) / "mine", pathlib.Path(top) / "theirs"
        make(mine)
        tried = []  # arguments already run with equal copies
        for name, (change, more, text) in CASES.items():
            for changed in (True,) if more in tried else (False, True):
                shutil.rmtree(theirs, ignore_errors=True)
                shutil.copytree(mine, theirs)
                if changed:
                    change(theirs)
                out = mine / "out"
                command = [trivet, "train", "run.yaml", *arguments(["data.path=a", "train.train_iters=2", *more,
                           f"train.run_dir={out}", "checkpoint.save_interval=0",
                           "optimizer.override_opt_param_scheduler=true"])]
                output = must(*mpirun, "-n", "2", "-wdir", mine, *command, ":", "-n", "1", "-wdir", theirs, *command, folder=top,
                              code=65 if changed else 0)
                trained = (out / "metrics.jsonl").exists() and '"loss"' in (out / "metrics.jsonl").read_text()
                shutil.rmtree(out, ignore_errors=True)
                wanted = [text, "rank 2 on ", "found ", "expected "] if changed else ["2/2"]
                missing = [word for word in wanted if word not in output]
                if missing or trained == changed:
                    sys.exit(f"{name}: no {missing}, trained: {trained}, changed: {changed}\n{output}")
            tried.append(more)
            print(f"{name}: found")
        # Each rank saves its part of a checkpoint, so a run folder that is not shared ends the run before training.
        command = [trivet, "train", "run.yaml", *arguments(["data.path=a", "train.train_iters=2", "train.run_dir=out",
                   "checkpoint.save_interval=2", *SPLIT])]
        output = must(*mpirun, "-n", "2", "-wdir", mine, *command, ":", "-n", "1", "-wdir", theirs, *command, folder=top, code=74)
        if "rank 2: train.run_dir: rank 0 wrote a file in out/checkpoints that is not here" not in output:
            sys.exit(output)


main()

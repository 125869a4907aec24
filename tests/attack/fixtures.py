"""The files that the attack breaks: a small text, datasets, a tokenizer, runs with checkpoints, traces and flight
dumps, converted weights, a study, a schedule. The program itself creates them once; afterwards they are only read.
"""
import json
import random
import re
import shutil
import struct

from mutation import yaml_text
from sandbox import Broken, Case

STEPS, SAVED = 8, 6  # the straight run's steps; the base run stops at SAVED

MODEL = [("num_layers", "2"), ("hidden_size", "16"), ("num_attention_heads", "2"), ("seq_length", "16")]
DEVICE = [("kind", "cpu"), ("threads_per_rank", "1"), ("peak_tflops", "1")]


def sections_of_run(data, run_dir, **more):
    """The sections of a run's file; `more`: section = [(key, value)]."""
    sections = {"model": list(MODEL), "parallel": [], "overlap": [], "batch": [("global_batch_size", "4")],
                "optimizer": [("lr", "1e-3"), ("lr_decay_iters", str(STEPS)), ("clip_grad", "1")],
                "precision": [("dtype", "fp32")], "data": [("path", data), ("split", '"90,10,0"')],
                "comm": [("timeout_s", "600")], "checkpoint": [("save_interval", "3")],
                "train": [("train_iters", str(STEPS)), ("run_dir", run_dir)], "device": list(DEVICE)}
    for section, keys in more.items():
        sections[section] = [pair for pair in sections[section] if pair[0] not in dict(keys)] + keys
    return [(name, keys) for name, keys in sections.items() if keys]


def make_text(seed):
    draw = random.Random(seed)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randrange(1, 9))) for _ in range(300)]
    return "\n\n".join(" ".join(draw.choices(words, k=draw.randrange(3, 40))) + "." for _ in range(1500)) + "\n"


def llmc_model(draw, layers=2, channels=16, positions=16, vocab=40, padded=128):
    """An llm.c model_*.bin: a header and the weights in fp32."""
    header = [20240326, 3, positions, vocab, layers, 2, channels, padded]
    count = (padded + positions) * channels + layers * (12 * channels**2 + 13 * channels) + 2 * channels
    return struct.pack(f"<256i{count}f", *header, *[0] * 248, *(draw.gauss(0, 0.02) for _ in range(count)))


STUDY = """name: attacked
base: run.yaml
ranks: 1
launcher: threads
design: grid
factors:
  - key: data.prefetch
    levels: [1, 2]
  - name: batch
    levels: {small: {batch.micro_batch_size: 1}, large: {batch.micro_batch_size: 2}}
repeats: 1
steps: 3
warmup_steps: 1
budget_minutes: 5
timeout_minutes: 1
metric: step_seconds
agree: off
out: study
"""


class Base(Case):
    """The folder of the fixtures."""

    def __init__(self, attack):
        attack.base = self
        super().__init__(attack, "base", 0)

    def must(self, *arguments, code=0, **options):
        result = self.run(*arguments, **options)
        if result.code != code:
            raise Broken(f"the attack cannot begin: expected exit code {code}\n{result.text()}")
        return result

    def make(self):
        text = make_text(self.attack.seed)
        (self.folder / "text.txt").write_text(text)
        (self.folder / "text.jsonl").write_text("".join(json.dumps({"text": line, "id": i}) + "\n"
                                                        for i, line in enumerate(text.split("\n\n")[:60])))
        prepare = ["data", "prepare", "--input", "text.txt", "--document", "paragraph"]
        self.must(*prepare, "--tokenizer", "bytes", "--output", "bytes")
        self.must(*prepare, "--tokenizer", "sentencepiece", "--vocab-size", "300", "--output", "pieces")
        self.must(*prepare, "--tokenizer", "bpe", "--vocab-size", "300", "--output", "bpe")
        self.must(*prepare[:3], "text.jsonl", "--tokenizer", "bytes", "--output", "lines")
        self.make_runs()
        self.must("checkpoint", "convert", "run", "hf", "--to", "hf")
        (self.folder / "model.bin").write_bytes(llmc_model(random.Random(self.attack.seed)))
        (self.folder / "study.yaml").write_text(STUDY)
        self.must("study", "study.yaml")
        schedule = self.must("schedule", "--kind", "zb-h1", "--pipeline", "3", "--microbatches", "4", "--text").out
        (self.folder / "schedule.txt").write_text(schedule)
        self.keys = {}  # {section: [(key, [the words that it accepts])]}
        for line in self.must("config", "--keys").out.splitlines():
            if not line.startswith(" "):
                section = line.strip()
            else:
                words = re.search(r"one of ([^()]*?)(?:  | \()", line)
                self.keys.setdefault(section, []).append((line.split()[0], words.group(1).split(", ") if words else []))

    def make_runs(self):
        self.write_run("run.yaml", "run", data="bytes", train=[("trace", "true")])
        self.must("train", "run.yaml", "--ranks", "2", "--set", "train.run_dir=straight")
        self.must("train", "run.yaml", "--ranks", "2", "--set", f"train.train_iters={SAVED}")
        self.must("train", "run.yaml", "--ranks", "2", "--set", "train.run_dir=failed", "--inject", "throw:1:3", code=70)
        # A copy for inputs.py's report().
        shutil.copytree(self.folder / "run", self.folder / "measured")

    def write_run(self, name, run_dir, data="bytes", folder=None, **more):
        path = (folder or self.folder) / name
        path.write_text(yaml_text(sections_of_run(str(self.folder / data), run_dir, **more)))
        return path


def losses_of(metrics, key="loss"):
    """[(step, the digits of the loss)] from a metrics.jsonl, none of whose lines may be torn."""
    found = []
    for number, line in enumerate(metrics.read_text().split("\n")):
        if not line:
            continue
        try:
            record = json.loads(line, parse_float=str)
        except ValueError:
            raise Broken(f"{metrics}: line {number + 1} is torn: {line[:200]}") from None
        if key in record:
            found.append((record["step"], record[key]))
    return found

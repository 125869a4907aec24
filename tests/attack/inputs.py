"""Broken inputs: every file that a user gives to a command, with random changes to its structure. The command ends with
a documented exit code and one message that names the file or the key, in bounded time and memory, and writes nothing;
or the input is still valid.
"""
import gzip
import json
import lzma
import re
import shutil
import subprocess

import mutation
from fixtures import SAVED, STEPS, losses_of, sections_of_run
from sandbox import DOCUMENTED_CODES, expect, expect_sound_end

# 64 usage or configuration, 65 data, 74 I/O. No input may end a command in any other way.
REFUSED = {0, 64, 65, 74}
KEY = r"\b[a-z_]+\.[a-z_0-9]+\b"


def note(case, target, result):
    outcome = "accepted" if result.code == 0 else f"exit {result.code}"
    case.tally.add("inputs", target, outcome)
    case.tally.most("inputs", target, "ms", round(1000 * result.seconds))
    case.tally.most("inputs", target, "MiB", result.memory >> 20)


def read(case, target, *arguments, mentions, codes=REFUSED, writes=()):
    """Runs a command on a broken input. If it fails, it leaves none of its output behind."""
    before = case.listing()
    result = case.run(*arguments)
    note(case, target, result)
    expect_sound_end(result, codes, mentions)
    after = case.listing()
    if result.code != 0 or not writes:
        expect(set(after) <= set(before), f"written all the same: {sorted(set(after) - set(before))}", result)
    changed = [name for name in before if before[name] != after.get(name) and name not in writes]
    expect(not changed, f"changed: {changed}", result)
    return result


def train(case, target, *arguments, mentions, run_dir="out"):
    """Like read(), but a run that starts before it detects the damage leaves a folder with an outcome.json."""
    result = case.run("train", *arguments, "--set", f"train.run_dir={run_dir}")
    note(case, target, result)
    expect_sound_end(result, REFUSED | {93}, mentions)
    folder = case.folder / run_dir
    if result.code != 0 and folder.exists() and (folder / "metrics.jsonl").exists():
        expect((folder / "outcome.json").exists(), "no outcome.json", result)
    return result


# ---- targets: each breaks one kind of file


def run_file(case):
    """A run's YAML. train refuses what config refuses; the resolved form of an accepted file resolves to itself."""
    sections = sections_of_run(str(case.base.folder / "bytes"), "out")
    path = case.folder / "run.yaml"
    path.write_bytes(mutation.mutate_yaml(case.random, sections, case.base.keys))
    mentions = [r"run\.yaml", KEY]
    ranks = case.random.choice([[], ["--ranks", "2"]])
    shown = read(case, "run.yaml", "config", "run.yaml", *ranks, mentions=mentions)
    if shown.code != 0:
        trained = read(case, "run.yaml", "train", "run.yaml", *ranks, mentions=mentions)
        expect(trained.code != 0, "config refuses it, train does not", trained)
        return
    resolved = read(case, "run.yaml", "config", "run.yaml", *ranks, "--yaml", mentions=mentions)
    (case.folder / "again.yaml").write_text(resolved.out, errors="surrogateescape")
    again = read(case, "run.yaml", "config", "again.yaml", *ranks, "--yaml", mentions=mentions)
    expect(again.code == 0 and again.out == resolved.out, "what it resolves to is not the same again", again)


def arguments(case):
    """Values on the command line."""
    draw = case.random
    (case.folder / "run.yaml").write_text(mutation.yaml_text(sections_of_run(str(case.base.folder / "bytes"), "out")))
    value = draw.choice([str(mutation.number(draw)), draw.choice(mutation.TEXTS)]).replace("\0", "")
    value = value.encode("utf-8", "replace").decode("utf-8", "replace")
    section = draw.choice(list(case.base.keys))
    commands = [
        ["config", "run.yaml", "--set", f"{section}.{draw.choice(case.base.keys[section])[0]}={value}"],
        ["config", "run.yaml", "--ranks", value],
        ["config", value],
        ["schedule", draw.choice(["--pipeline", "--microbatches", "--chunks", "--group-size", "--depth", "--latency",
                                  "--bandwidth", "--bytes", "--columns", "--costs", "--kind", "--unit"]), value],
        ["generate", str(case.base.folder / "run"), "--prompt-tokens", "1",
         draw.choice(["--temperature", "--top-k", "--top-p", "--seed", "--tensor-parallel", "--pipeline-parallel",
                      "--ranks", "--prompt-tokens", "--tokenizer"]), value],
        ["train", "run.yaml", "--inject", draw.choice([value, f"nan:{value}:1", f"nan:0:{value}", f"slow={value}:0:1"])],
        ["train", "run.yaml", "--resume", value if value not in ("auto", "none") else "x"],
        ["data", "prepare", "--input", str(case.base.folder / "text.txt"), "--output", "x", "--tokenizer",
         draw.choice([value, "sentencepiece"]), draw.choice(["--vocab-size", "--threads", "--train-bytes"]), value],
        [value], ["data", value], ["flight", value], ["checkpoint", "inspect", value], ["data", "inspect", value]]
    command = draw.choice(commands)
    result = case.run(*command)
    note(case, "arguments", result)
    # CLI11's messages lack our prefix.
    codes = REFUSED | ({70, 93} if command[0] == "train" else set())
    expect(result.code in codes, f"exit code {result.code}", result)
    if result.code != 0:
        expect(result.err.strip() != "", "no message", result)
        expect(len(result.err) < 20000, f"a message of {len(result.err)} bytes", result)


def dataset(case):
    draw = case.random
    name = draw.choice(["bytes", "pieces"])
    for suffix in (".bin", ".idx", ".json", ".model"):
        if (case.base.folder / (name + suffix)).exists():
            shutil.copy(case.base.folder / (name + suffix), case.folder / ("data" + suffix))
    suffix = draw.choice([".idx", ".idx", ".idx", ".bin", ".json"] + [".model"] * (name == "pieces"))
    path = case.folder / ("data" + suffix)
    data = path.read_bytes()
    if suffix == ".idx":
        data = mutation.mutate_bytes(draw, data, mutation.index_fields(data))
    elif suffix == ".json":
        data = mutation.mutate_json(draw, data.decode())
    else:
        data = mutation.mutate_bytes(draw, data)
    path.write_bytes(data)
    mentions = [r"data\.(bin|idx|json|model)", r"\bdata\b", KEY]
    shown = read(case, f"dataset {suffix}", "data", "inspect", "data", mentions=mentions)
    if data != (case.base.folder / (name + suffix)).read_bytes() and suffix == ".bin":
        expect(shown.code != 0, "another .bin is taken for the one that was written", shown)
    run = case.base.write_run("run.yaml", "out", folder=case.folder, data=case.folder / "data",
                              train=[("train_iters", "2")])
    train(case, f"dataset {suffix}", run.name, *draw.choice([[], ["--generate", "once upon"]]), mentions=mentions)


def other_data(case):
    """One MPI rank runs in another folder, which contains a different dataset: the run trains no step."""
    if not case.attack.mpirun:
        return
    draw = case.random
    for folder in ("mine", "theirs"):
        (case.folder / folder).mkdir()
        for suffix in (".bin", ".idx", ".json"):
            shutil.copy(case.base.folder / ("bytes" + suffix), case.folder / folder / ("data" + suffix))
    kind = draw.choice(["a byte", "lengths", "another dataset", "an empty folder"])
    theirs = case.folder / "theirs" / "data"
    if kind == "a byte":
        data = bytearray(theirs.with_suffix(".bin").read_bytes())
        data[draw.randrange(len(data) // 2) * 2] ^= 1  # a token's low byte: gives another valid token
        theirs.with_suffix(".bin").write_bytes(data)
    elif kind == "lengths":
        data = theirs.with_suffix(".idx").read_bytes()
        theirs.with_suffix(".idx").write_bytes(mutation.swap_lengths(draw, data))
    else:
        for suffix in (".bin", ".idx", ".json"):
            theirs.with_suffix(suffix).unlink()
            if kind == "another dataset":
                shutil.copy(case.base.folder / ("lines" + suffix), theirs.with_suffix(suffix))
    run = case.base.write_run("run.yaml", str(case.folder / "out"), folder=case.folder, data="data",
                              batch=[("global_batch_size", "6")])
    run.write_text(run.read_text().replace(str(case.base.folder / "data"), "data"))
    command, ranks = [case.trivet, "train", run], [draw.randrange(1, 3), 1]
    words = [["-n", str(n), "-wdir", case.folder / f, *command] for n, f in zip(ranks, ("mine", "theirs"))]
    if draw.random() < 0.5:
        words.reverse()
    result = case.start(launcher=[*case.attack.mpirun, *words[0], ":", *words[1][:-3]], *words[1][-2:]).wait()
    note(case, f"other data per rank: {kind}", result)
    expect(result.code in ({64, 65} if kind == "an empty folder" else {65}), f"exit code {result.code}", result)
    expect(re.search(r"^\[rank \d\] .*\bdata\b", result.err, re.M), "no message names a rank and the dataset", result)
    expect(not (case.folder / "out" / "metrics.jsonl").exists(), "trained all the same", result)


def corpus(case):
    draw, name = case.random, case.random.choice(["text.jsonl", "text.jsonl", "text.txt", "text.jsonl.gz"])
    data = (case.base.folder / name.removesuffix(".gz")).read_bytes()
    if name.endswith(".gz"):
        data = mutation.mutate_bytes(draw, gzip.compress(data))
    elif name == "text.jsonl":
        lines = data.split(b"\n")
        at = draw.randrange(len(lines) - 1)
        lines[at] = mutation.mutate_json(draw, lines[at].decode())
        data = b"\n".join(lines)
    else:
        data = mutation.mutate_bytes(draw, data)
    (case.folder / name).write_bytes(data)
    read(case, "corpus " + name, "data", "prepare", "--input", name, "--tokenizer", "bytes", "--output", "made",
         mentions=[name.replace(".", r"\.")], writes=["made.bin", "made.idx", "made.json"])


BOMB = 66 << 20  # bytes; growth is limited only beyond 64 MiB of output
BOMB_MEMORY = 300 << 20


def bomb(case):
    """Small inputs that expand: files that decompress to zeros, holes in archives, texts with no place to split."""
    draw = case.random
    kind = draw.choice(["gz", "xz", "tar", "tar.gz", "word", "marks"])
    path = case.folder / f"bomb.{kind if kind not in ('word', 'marks') else 'txt'}"
    if kind == "gz":
        path.write_bytes(gzip.compress(bytes(BOMB), 6))
    elif kind == "xz":
        path.write_bytes(lzma.compress(bytes(BOMB), preset=0))
    elif kind == "word":
        unit = draw.choice(["a", " ", "\u4eba", "\0", "<|endoftext|>"])
        path.write_text(unit * (draw.randrange(3 << 20, 5 << 20) // len(unit.encode())))
    elif kind == "marks":
        path.write_text("a" + "\u0301\u0316" * draw.randrange(100_000, 400_000))
    else:
        with open(case.folder / "hole.txt", "wb") as hole:
            hole.truncate(BOMB)
        subprocess.run(["tar", "-caSf", path.name, "hole.txt"], cwd=case.folder, check=True)
    model = ["--tokenizer", "bytes"]
    if draw.random() < 0.7:
        file = json.loads((case.base.folder / "bpe.tokenizer.json").read_text())
        file["normalizer"] = draw.choice([None, {"type": "NFC"}])
        (case.folder / "tokenizer.json").write_text(json.dumps(file))
        model = ["--tokenizer", "bpe", "--model", "tokenizer.json", "--eod-token", "<|endoftext|>"]
    files = ["made.bin", "made.idx", "made.json", "made.tokenizer.json", "made.tokenizer_config.json"]
    result = read(case, f"bomb {kind}", "data", "prepare", "--input", path.name, *model, "--threads", "1", "--output",
                  "made", mentions=[rf"{re.escape(path.name)}.*500 times its size"], writes=files)
    expect((result.code == 0) == (path.suffix == ".txt"), "a bomb is taken for text, or a text for one", result)
    expect(result.memory <= BOMB_MEMORY, f"took {result.memory >> 20} MiB of memory", result)


def pattern(case):
    """A tokenizer.json whose pattern is changed at random."""
    draw = case.random
    file = json.loads((case.base.folder / "bpe.tokenizer.json").read_text())
    text = draw.choice([
        r"(?i:'s|'t|'re|'ll)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s",
        r"[\p{Lu}\p{M}]*[\p{Ll}\p{Lo}]+|[A-Z]?[a-z]{2,}$|.+", r"(a|b|ab)*c|[[a-c]d]e|\P{L}{2}+"])
    for _ in range(draw.randrange(3)):
        at = draw.randrange(len(text))
        new = draw.choice(["", "(", ")", "[", "]", "+", "*", "?", "{1,300}", "\\", "|", "^", "$", "\u00e9", "(?:"])
        text = text[:at] + new + text[at + draw.randrange(3):]
    behavior = draw.choice(["Isolated", "Removed"])
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": text}, "behavior": behavior, "invert": True},
        {**file["pre_tokenizer"], "use_regex": False}]}
    (case.folder / "tokenizer.json").write_text(json.dumps(file))
    read(case, "pattern", "data", "prepare", "--input", str(case.base.folder / "text.txt"), "--tokenizer", "bpe", "--model",
         "tokenizer.json", "--eod-token", "<|endoftext|>", "--output", "made", mentions=["pattern"],
         writes=["made.bin", "made.idx", "made.json", "made.tokenizer.json", "made.tokenizer_config.json"])


def tokenizer(case):
    path = case.folder / "broken.model"
    path.write_bytes(mutation.mutate_bytes(case.random, (case.base.folder / "pieces.model").read_bytes()))
    read(case, "tokenizer", "data", "prepare", "--input", str(case.base.folder / "text.jsonl"), "--tokenizer",
         "sentencepiece", "--model", path.name, "--output", "made", mentions=[r"broken\.model"],
         writes=["made.bin", "made.idx", "made.json", "made.model"])


def checkpoint(case):
    """A file of a run's last checkpoint. Any change to a file named in the manifest is detected."""
    draw = case.random
    shutil.copytree(case.base.folder / "run", case.folder / "run")
    step = case.folder / "run" / "checkpoints" / f"step-{SAVED:08d}"
    name = draw.choice(sorted(file.name for file in step.iterdir()) + ["manifest.json", "latest"])
    path = step / name if name != "latest" else step.parent / name
    before = path.read_bytes()
    after = break_file(case, path, before)
    target = "checkpoint " + ("shard" if name.startswith("rank-") else name)
    mentions = [r"checkpoints", name.replace(".", r"\.")]
    verified = read(case, target, "checkpoint", "verify", str(step), mentions=mentions)
    if after != before and name not in ("latest", "manifest.json"):
        expect(verified.code in (65, 74), f"{name} is another, and taken for sound", verified)
    read(case, target, "checkpoint", "inspect", "run", *draw.choice([[], ["--tensors"]]), mentions=mentions)
    read(case, target, "generate", "run", "--prompt-tokens", "1,2", "--tokens", "3", mentions=mentions, codes=REFUSED | {93})
    # The run falls back to the previous checkpoint and trains to the same losses.
    case.base.write_run("run.yaml", "run", folder=case.folder)
    resumed = train(case, target, "run.yaml", "--ranks", "2", mentions=mentions, run_dir="run")
    if resumed.code == 0:
        expected = dict(losses_of(case.base.folder / "straight" / "metrics.jsonl"))
        found = dict(losses_of(case.folder / "run" / "metrics.jsonl"))
        expect(found == expected, f"found the losses {found}, expected {expected}", resumed)


def break_file(case, path, data):
    """Changes or deletes the file, or replaces it with a folder. Returns its content, or None if it is not a file."""
    draw = case.random
    if draw.random() < 0.15:
        path.unlink()
        if draw.random() < 0.5:
            path.mkdir()
        return None
    if path.name.endswith(".safetensors"):
        data = mutation.mutate_safetensors(draw, data)
    elif path.name.endswith(".json"):
        data = mutation.mutate_json(draw, data.decode())
    elif path.name.endswith(".yaml"):
        data = mutation.mutate_lines(draw, data)
    else:
        data = draw.choice([mutation.mutate_bytes(draw, data), b"step-00000003\n", b"step-00000004\n", b"../../x\n"])
    path.write_bytes(data)
    return data


def conversion(case):
    """Weights in the format of Hugging Face or llm.c."""
    draw, to = case.random, case.random.choice(["trivet", "hf"])
    if draw.random() < 0.5:
        source, target = "model.bin", "llm.c weights"
        data = (case.base.folder / source).read_bytes()
        (case.folder / source).write_bytes(mutation.mutate_bytes(draw, data, [(4 * i, 4) for i in range(8)]))
    else:
        source, target = "hf", "Hugging Face weights"
        shutil.copytree(case.base.folder / source, case.folder / source)
        path = case.folder / source / draw.choice(["config.json", "model.safetensors"])
        broken = mutation.mutate_json if path.suffix == ".json" else mutation.mutate_safetensors
        path.write_bytes(broken(draw, path.read_bytes()))
    before = case.listing()
    result = case.run("checkpoint", "convert", source, "made", "--to", to)
    note(case, target, result)
    expect_sound_end(result, REFUSED, [source.replace(".", r"\."), "model", "config"])
    made = set(case.listing()) - set(before)
    expect(result.code == 0 or not made, f"written all the same: {sorted(made)}", result)
    if result.code == 0 and to == "trivet":
        expect(case.run("checkpoint", "verify", "made").code == 0, "it made a damaged checkpoint", result)


def study(case):
    """A study's file, or its results."""
    draw = case.random
    shutil.copy(case.base.folder / "run.yaml", case.folder / "run.yaml")
    text = (case.base.folder / "study.yaml").read_bytes()
    if draw.random() < 0.6:
        (case.folder / "study.yaml").write_bytes(mutation.mutate_lines(draw, text))
        read(case, "study.yaml", "study", "study.yaml", "--plan", mentions=[r"study\.yaml", r"run\.yaml", KEY])
        return
    (case.folder / "study.yaml").write_bytes(text)
    shutil.copytree(case.base.folder / "study", case.folder / "study")
    path = case.folder / "study" / "results.jsonl"
    lines = path.read_bytes().split(b"\n")
    at = draw.randrange(len(lines) - 1)
    lines[at] = mutation.mutate_json(draw, lines[at].decode())
    path.write_bytes(b"\n".join(lines))
    result = case.run("study", "study.yaml", draw.choice(["--best", "--report", "--plan"]))
    note(case, "study results", result)
    expect_sound_end(result, REFUSED, [r"results\.jsonl", r"study"])


def schedule(case):
    data = mutation.mutate_lines(case.random, (case.base.folder / "schedule.txt").read_bytes())
    (case.folder / "schedule.txt").write_bytes(data)
    read(case, "schedule file", "schedule", "--file", "schedule.txt", mentions=[r"schedule\.txt", "schedule"])


def report(case):
    """The files that read-only commands read from a run's folder: metrics, trace, flight dumps."""
    draw = case.random
    if draw.random() < 0.5:
        shutil.copytree(case.base.folder / "measured", case.folder / "run")
        path = case.folder / "run" / draw.choice(["metrics.jsonl", "trace.json", "config.resolved.yaml"])
        path.write_bytes(mutation.mutate_lines(draw, path.read_bytes()))
        if path.name == "trace.json" and draw.random() < 0.7:  # one event per line, after a comma
            lines = (case.base.folder / "measured" / path.name).read_bytes().split(b"\n")
            at = draw.randrange(1, len(lines) - 1)
            lines[at] = b"," + mutation.mutate_json(draw, lines[at].lstrip(b",").decode())
            path.write_bytes(b"\n".join(lines))
        read(case, f"measured {path.name}", "schedule", "--measured", "run", mentions=[r"run\b"])
        return
    shutil.copytree(case.base.folder / "failed", case.folder / "run")
    path = draw.choice(sorted((case.folder / "run" / "flight").glob("*.json")))
    path.write_bytes(mutation.mutate_json(draw, path.read_text()))
    read(case, "flight dumps", "flight", "run", mentions=[r"run\b"], codes=DOCUMENTED_CODES - {70})


TARGETS = [run_file] * 5 + [arguments] * 3 + [dataset] * 4 + [other_data] + [corpus] * 2 + [tokenizer] + [checkpoint] * 4 + \
          [conversion] * 3 + [study] * 2 + [schedule] * 2 + [report] * 2 + [bomb] * 2 + [pattern] * 2


def inputs(case):
    TARGETS[case.index % len(TARGETS)](case)

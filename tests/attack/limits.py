"""Full disks, too little memory, too few files and threads, missing permissions, streams without a reader. A run then
saves and trains, or ends with a documented code and a message; its committed checkpoints stay valid.
"""
import fcntl
import os
import re
import resource
import shutil
import signal
import subprocess
import time

from fixtures import STEPS, losses_of
from sandbox import FORBIDDEN, SECONDS, Broken, expect, send

NOBODY = 65534
MOUNT = ["unshare", "--mount", "bash", "-c"]
# 64: too little memory or too few threads for the layout. 127 (see limited()): too few resources for the loader.
ENDS = {0, 64, 65, 74, 93}


def can_mount():
    return shutil.which("unshare") and subprocess.run([*MOUNT, "mount -t tmpfs none /mnt"],
                                                      stderr=subprocess.DEVNULL).returncode == 0


def check_end(case, row, result, codes=ENDS):
    case.tally.add("limits", row, f"exit {result.code}")
    expect(result.code in codes, f"exit code {result.code}, expected one of {sorted(codes)}", result)
    if result.code not in (0, 127):
        expect(not FORBIDDEN.search(result.err), f"a message of the library's: {FORBIDDEN.search(result.err)}", result)
        expect("trivet: " in result.err, "no message", result)


def check_run(case, result, folder):
    """The latest checkpoint, if there is one, is intact, and the losses are those of the straight run."""
    latest = folder / "checkpoints" / "latest"
    if latest.exists():
        verified = case.run("checkpoint", "verify", str(folder / "checkpoints" / latest.read_text().strip()))
        expect(verified.code == 0, "the latest checkpoint is damaged", verified)
    if (folder / "metrics.jsonl").exists():
        expected = dict(losses_of(case.base.folder / "straight" / "metrics.jsonl"))
        for step, loss in losses_of(folder / "metrics.jsonl"):
            expect(expected[step] == loss, f"step {step}: found the loss {loss}, expected {expected[step]}", result)


def write_run(case, run_dir="run"):
    case.base.write_run("run.yaml", run_dir, folder=case.folder, checkpoint=[("save_interval", "1"), ("keep_last", "1")])
    return ["train", "run.yaml", "--ranks", "2"]


def full_disk(case):
    """The run's folder is on a file system with few blocks or few inodes."""
    draw = case.random
    room = draw.choice([f"size={4 * draw.randrange(1, 120)}k", f"nr_inodes={draw.randrange(2, 30)}"])
    (case.folder / "disk").mkdir()
    command = write_run(case, "disk/run")
    # The files are copied out, because the mount disappears with its namespace.
    script = f'mount -t tmpfs -o {room} none disk; "$@"; code=$?; cp -r disk/. kept; exit $code'
    result = case.start(*command, launcher=[*MOUNT, script, "bash"]).wait()
    check_end(case, f"a disk of {room.split('=')[0]}", result, {0, 74})
    check_run(case, result, case.folder / "kept" / "run")
    prepare = ["data", "prepare", "--input", str(case.base.folder / "text.txt"), "--tokenizer", "bytes", "--output"]
    script = f'mount -t tmpfs -o {room} none disk; "$@"; code=$?; ls disk >left; exit $code'
    result = case.start(*prepare, "disk/made", launcher=[*MOUNT, script, "bash"]).wait()
    check_end(case, "data prepare on it", result, {0, 74})
    left = (case.folder / "left").read_text().split()
    expect(result.code == 0 or not left, f"left on the full disk: {left}", result)


def injected_fault(case):
    """Disk faults that the program injects itself; also replaces full_disk() where mounting is not possible."""
    command = write_run(case)
    fault = case.random.choice(["enospc", "eio", "torn_write"])
    result = case.run(*command, "--inject", f"{fault}:{case.random.randrange(2)}:{case.random.randrange(1, STEPS)}:save")
    check_end(case, f"injected {fault}", result, {0, 74})
    check_run(case, result, case.folder / "run")


LIMITS = {  # kind, unit, lowest and highest value
    "RLIMIT_AS": (resource.RLIMIT_AS, 1 << 20, 60, 1500), "RLIMIT_DATA": (resource.RLIMIT_DATA, 1 << 20, 1, 300),
    "RLIMIT_FSIZE": (resource.RLIMIT_FSIZE, 1 << 10, 0, 200), "RLIMIT_NOFILE": (resource.RLIMIT_NOFILE, 1, 3, 40),
    "RLIMIT_NPROC": (resource.RLIMIT_NPROC, 1, 1, 12), "RLIMIT_STACK": (resource.RLIMIT_STACK, 1 << 10, 256, 4096)}


def limited(case):
    row = case.random.choice(sorted(LIMITS))
    kind, unit, least, most = LIMITS[row]
    value = unit * case.random.randrange(least, most)
    options = {"limits": [(kind, value)]}
    if kind == resource.RLIMIT_NPROC:  # counts all processes of a user; does not limit root
        if os.getuid() != 0:
            return
        options["user"] = 100_000 + case.index  # a user without other processes
        os.chown(case.folder, options["user"], -1)
    prepare = ["data", "prepare", "--input", str(case.base.folder / "text.txt"), "--tokenizer", "bytes", "--output", "made"]
    if case.random.random() < 0.5:  # a word too long for one piece, under the same limit
        (case.folder / "word.txt").write_text("a" * (5 << 20))
        prepare[3:6] = ["word.txt", "--tokenizer", "bpe", "--model", str(case.base.folder / "bpe.tokenizer.json"),
                        "--eod-token", "<|endoftext|>"]
    for name, command in (("", write_run(case)), (" on data prepare", prepare)):
        result = case.run(*command, **options)
        # Before main(), the dynamic loader reports that it ran short.
        early = result.code == 127 and "error while loading shared libraries" in result.err
        check_end(case, row + name, result, ENDS | ({127} if early else set()))
    check_run(case, result, case.folder / "run")
    left = [path.name for path in case.folder.glob("made*")]
    expect(result.code == 0 or not left, f"left by data prepare: {left}", result)


def forbidden(case):
    """A user who may not read the data or write to the folder; root may do anything, so it runs as another user."""
    draw = case.random
    command = write_run(case, "mine/run")
    mine, data = case.folder / "mine", case.folder / "data"
    mine.mkdir()
    for suffix in (".bin", ".idx", ".json"):
        shutil.copy(case.base.folder / ("bytes" + suffix), f"{data}{suffix}")
    what = draw.choice(["run_dir", "data", "run.yaml"])
    paths = {"run_dir": mine, "data": case.folder / f"data{draw.choice(['.bin', '.idx'])}", "run.yaml": case.folder / "run.yaml"}
    if os.getuid() == 0:
        for path in (case.folder, mine, case.folder / "run.yaml"):
            os.chown(path, NOBODY, NOBODY)
    os.chmod(paths[what], 0o555 if what == "run_dir" else 0)
    result = case.run(*command, "--set", f"data.path={data}", user=NOBODY if os.getuid() == 0 else None)
    os.chmod(paths[what], 0o755)
    check_end(case, f"no permission: {what}", result, {64, 65, 74})
    expect("ermission denied" in result.err and paths[what].name in result.err, "the message names no path", result)
    expect(not (mine / "run").exists(), "a run's folder was made", result)


def streams(case):
    """Standard output and error that are closed, full, or a pipe without a reader."""
    draw = case.random
    kind = draw.choice(["full output", "closed output", "closed error", "both closed", "reader gone"])
    command = write_run(case)
    redirection = {"full output": ">/dev/full", "closed output": ">&-", "closed error": "2>&-",
                   "both closed": ">&- 2>&-", "reader gone": "2>&1 | head -n 1"}[kind]
    script = f'set -o pipefail; "$@" {redirection}'
    result = case.start(*command, launcher=["bash", "-c", script, "bash"]).wait()
    case.tally.add("limits", f"streams: {kind}", f"exit {result.code}")
    expect(result.code == 0, "the run does not train on", result)
    check_run(case, result, case.folder / "run")
    steps = [step for step, _ in losses_of(case.folder / "run" / "metrics.jsonl")]
    expect(steps == list(range(1, STEPS + 1)), f"found the steps {steps}", result)


def start_endless(case, **options):
    """Starts a run that trains until it is stopped, and waits for its first steps."""
    command = write_run(case)[:2 if options.get("launcher") else None]  # without --ranks
    process = case.start(*command, "--set", "train.train_iters=1000000", "--set", "checkpoint.save_interval=1000000",
                         **options)
    metrics, deadline = case.folder / "run" / "metrics.jsonl", time.monotonic() + SECONDS
    while not metrics.exists() or len(losses_of(metrics)) < 300:
        if process.ended() or time.monotonic() > deadline:
            process.kill_all()
            raise Broken(f"makes no steps:\n{process.result(124).text()}")
        time.sleep(0.05)
    return process, metrics


def stopped_reader(case):
    """A pager that is paused, and one that reads slowly."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    streams = {"stdout": os.fdopen(writer, "wb")}
    if case.index % 2 == 0:
        if case.random.random() < 0.5:
            streams["stderr"] = subprocess.STDOUT
        process, metrics = start_endless(case, **streams)
        send(process.pid, case.random.choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]))
        result = process.wait()
        case.tally.add("limits", "streams: stopped reader", f"exit {result.code}")
        latest = case.folder / "run" / "checkpoints" / "latest"
        expect(result.code == 75 and latest.exists(), "a signal does not save", result)
        expect(latest.read_text() == f"step-{losses_of(metrics)[-1][0]:08d}\n", "latest is not the last step", result)
    else:
        process = case.start(*write_run(case), "--set", "train.train_iters=200", "--set", "checkpoint.save_interval=200", **streams)
        text = b""
        while piece := os.read(reader, 97):
            text += piece
            time.sleep(0.0005)
        result = process.wait()
        case.tally.add("limits", "streams: slow reader", f"exit {result.code}")
        steps = [int(step) for step in re.findall(rb"^ *(\d+)/200 ", text, re.M)]
        expect(result.code == 0 and steps == list(range(1, 201)), f"a slow reader found the steps {steps}", result)
    os.close(reader)


def lost_lock(case):
    """Another run has taken over the folder: this one ends and writes nothing more."""
    mpi = case.attack.mpirun if case.random.random() < 0.5 else []
    process, _ = start_endless(case, launcher=[*mpi, *(["-n", "2"] if mpi else [])])
    folder = case.folder / "run"
    (case.folder / "other").write_text("another's")
    (case.folder / "other").rename(folder / "lock")
    result = process.wait()
    case.tally.add("limits", "lost lock", f"exit {result.code}")
    expect(result.code == 64 and "taken the folder over" in result.err, "the run does not end as it should", result)
    expect((folder / "lock").read_text() == "another's", "the other's lock is gone", result)
    for name in ("outcome.json", "checkpoints/latest", "flight/rank-0.json", "flight/rank-1.json"):
        expect(not (folder / name).exists(), f"{name} was written", result)


def links(case):
    """Names that a run or data prepare writes, as links to an unrelated file."""
    name = case.random.choice(["metrics.jsonl", "metrics.jsonl.tmp", "config.resolved.yaml", "config.resolved.yaml.tmp", "lock",
                               "log", "outcome.json", "trace.json", "trace.rank0.json", "checkpoints/latest",
                               "checkpoints/latest.tmp", "flight/ranks.json.tmp", "made.bin.tmp", "made.json.tmp"])
    victim, link = case.folder / "victim", case.folder / ("" if name.startswith("made") else "run") / name
    victim.write_text("precious")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    prepare = ["data", "prepare", "--input", str(case.base.folder / "text.txt"), "--tokenizer", "bytes", "--output", "made"]
    command = prepare if name.startswith("made") else [*write_run(case), "--set", "train.trace=true"]
    result = case.start(*command).wait()
    check_end(case, "links", result, {0, 64, 65, 74})
    expect(victim.read_text() == "precious", f"{name}: the link was followed", result)


ATTACKS = [full_disk, full_disk, injected_fault, limited, limited, limited, forbidden, streams, stopped_reader, lost_lock, links]


def limits(case):
    attack = ATTACKS[case.index % len(ATTACKS)]
    if attack is full_disk and not case.attack.can_mount:
        attack = injected_fault
    attack(case)

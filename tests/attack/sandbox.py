"""A case of the attack: its own folder, commands that run in it under time and memory limits, and the requirements
on every command. A requirement that is not met raises Broken.
"""
import contextlib
import dataclasses
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter

DOCUMENTED_CODES = {0, 64, 65, 70, 74, 75, 93, 124} | {128 + n for n in range(1, 32)}
SECONDS = 300  # per command, on a machine with other load
MEMORY = 1 << 30  # resident bytes; the inputs are only a few kilobytes
TAG = "TRIVET_ATTACK_CASE"

# Text that only a programmer understands, or that comes from an uncaught exception.
FORBIDDEN = re.compile(
    r"terminate called|std::|basic_string|vector::|json\.exception|yaml-cpp|bad_alloc|AddressSanitizer|runtime error:|"
    r"Assertion|internal error|locale::facet|stoi|stoll")


class Broken(Exception):
    """A promise that did not hold."""


@dataclasses.dataclass
class Result:
    command: list
    code: int  # 128 + n for signal n
    out: str
    err: str
    seconds: float
    memory: int

    def text(self):
        return f"$ {' '.join(map(str, self.command))}\n{self.out[-3000:]}{self.err[-3000:]}exit code {self.code}"


class Tally:
    """Counts for the whole attack, by table, row and column. Thread-safe."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {}

    def add(self, table, row, column, n=1):
        with self.lock:
            self.counts.setdefault((table, row), Counter())[column] += n

    def most(self, table, row, column, value):
        with self.lock:
            counts = self.counts.setdefault((table, row), Counter())
            counts[column] = max(counts[column], value)

    def rows(self, table):
        return {row: counts for (t, row), counts in sorted(self.counts.items()) if t == table}


def processes_of(tag):
    """{pid: program name} for all processes started for the case, which are recognised by their environment."""
    found = {}
    wanted = f"{TAG}={tag}\0".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                if wanted not in file.read():
                    continue
            with open(f"/proc/{entry.name}/stat") as file:
                name, state = re.match(r"\d+ \((.*)\) (.)", file.read()).groups()
            if state not in "ZX":
                found[int(entry.name)] = name
        except (OSError, AttributeError):
            continue
    return found


class Process:
    """A running command. Its output goes to files, so that it never waits for a reader."""

    def __init__(self, case, command, limits=(), user=None, **options):
        self.case, self.command = case, [str(word) for word in command]
        self.log = case.folder / f"output-{case.next_number()}"
        self.begin = time.monotonic()

        def prepare():
            for kind, value in limits:
                resource.setrlimit(kind, (value, value))
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)

        streams = {"stdin": subprocess.DEVNULL, "stdout": open(f"{self.log}.out", "wb"),
                   "stderr": open(f"{self.log}.err", "wb"), **options}
        self.popen = subprocess.Popen(self.command, env=case.environment, cwd=case.folder, start_new_session=True,
                                      preexec_fn=prepare if limits or user is not None else None, **streams)
        for name in ("stdout", "stderr"):
            if hasattr(streams[name], "close"):
                streams[name].close()
        self.pid, self.code, self.usage = self.popen.pid, None, None

    def ended(self):
        if self.code is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid != 0:
                self.popen.returncode = os.waitstatus_to_exitcode(status)  # so Popen does not wait again
                self.code = self.popen.returncode if self.popen.returncode >= 0 else 128 - self.popen.returncode
                self.usage = usage
        return self.code is not None

    def wait(self, seconds=SECONDS):
        deadline, pause = time.monotonic() + seconds, 0.001
        while not self.ended():
            if time.monotonic() > deadline:
                self.kill_all()
                raise Broken(f"has not ended after {seconds} s:\n{self.result(124).text()}")
            time.sleep(pause)
            pause = min(pause * 1.2, 0.02)
        return self.result(self.code)

    def result(self, code):
        def read(suffix):
            try:
                return pathlib.Path(f"{self.log}.{suffix}").read_bytes().decode("utf-8", "surrogateescape")
            except FileNotFoundError:
                return ""

        return Result(self.command, code, read("out"), read("err"), time.monotonic() - self.begin,
                      self.usage.ru_maxrss << 10 if self.usage else 0)

    def kill_all(self):
        for _ in range(100):
            left = processes_of(self.case.tag)
            if not left:
                break
            for pid in left:
                send(pid, signal.SIGKILL)
            time.sleep(0.05)
        with contextlib.suppress(ChildProcessError):
            while not self.ended():
                time.sleep(0.01)


def send(pid, signal_number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)


class Case:
    def __init__(self, attack, kind, index):
        self.attack, self.kind, self.index = attack, kind, index
        self.name = f"{kind}:{index}"
        self.random = random.Random(f"{attack.seed}:{self.name}")
        self.folder = attack.scratch / f"{kind}-{index}"
        self.tag = f"{os.getpid()}-{kind}-{index}"
        self.shared_memory = attack.shared_memory / f"{kind}-{index}"
        self.numbers = 0
        self.trivet, self.base, self.tally = attack.trivet, attack.base, attack.tally
        self.environment = {**attack.environment, TAG: self.tag,
                            "OMPI_MCA_btl_vader_backing_directory": str(self.shared_memory)}

    def __enter__(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.shared_memory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind, error, trace):
        for pid in processes_of(self.tag):
            send(pid, signal.SIGKILL)
        shutil.rmtree(self.shared_memory, ignore_errors=True)
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def next_number(self):
        self.numbers += 1
        return self.numbers

    def start(self, *arguments, launcher=(), **options):
        return Process(self, [*launcher, self.trivet, *arguments], **options)

    def run(self, *arguments, seconds=SECONDS, **options):
        return self.start(*arguments, **options).wait(seconds)

    def expect_no_process_left(self, seconds=15):
        deadline = time.monotonic() + seconds
        while left := processes_of(self.tag):
            if time.monotonic() > deadline:
                raise Broken(f"processes are left: {left}")
            time.sleep(0.01)

    def listing(self, path=None):
        """{path: (size, modification time), None for a folder} for everything below `path` except command outputs."""
        top = pathlib.Path(path or self.folder)
        found = {}
        for folder, folders, files in os.walk(top):
            for name in folders + files:
                if re.fullmatch(r"output-\d+\.(out|err)", name):
                    continue
                full = os.path.join(folder, name)
                status = os.lstat(full)
                found[os.path.relpath(full, top)] = None if name in folders else (status.st_size, status.st_mtime_ns)
        return found


def expect(condition, what, result=None):
    if not condition:
        raise Broken(what + (f"\n{result.text()}" if result else ""))


def expect_sound_end(result, codes, mentions=()):
    """Requires an exit code in `codes` and, on failure, one message that a user understands and that matches one of the
    regular expressions in `mentions`."""
    expect(result.code in codes, f"exit code {result.code}, expected one of {sorted(codes)}", result)
    expect(result.memory <= MEMORY, f"took {result.memory >> 20} MiB of memory", result)
    if result.code == 0:
        return
    message = result.err
    expect(not FORBIDDEN.search(message), f"a message of the library's: {FORBIDDEN.search(message)}", result)
    expect(len(re.findall(r"^trivet: ", message, re.M)) == 1, "expected one message that begins with 'trivet: '", result)
    expect(len(message) < 20000, f"a message of {len(message)} bytes", result)
    expect(not re.search(r"[^\n\t\x20-\x7e\x80-\U0010ffff]|[\udc80-\udcff]", message),
           "a message with control characters or bytes that are not UTF-8", result)
    if mentions:
        expect(any(re.search(name, message) for name in mentions), f"the message names none of {mentions}", result)

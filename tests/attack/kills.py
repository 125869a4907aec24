"""Kills: a run with a random layout is killed repeatedly, at random moments and by any signal, and resumed after
each kill. Its final state must equal, bit for bit, that of the same run without kills.
"""
import filecmp
import json
import os
import re
import shutil
import signal
import time

from fixtures import losses_of, sections_of_run
from mutation import yaml_text
from sandbox import Broken, expect, processes_of, send

STEPS = 24
KILLS = 7  # per run, at most

# What a user or a scheduler does to a run. After the signals in ASKED, the run saves and ends with 75.
ASKED = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGHUP": signal.SIGHUP, "SIGUSR1": signal.SIGUSR1,
         "SIGUSR2": signal.SIGUSR2, "SIGXCPU": signal.SIGXCPU}
THREAD_KILLS = ["SIGKILL", "SIGKILL", "SIGKILL", "SIGTERM", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2",
                "SIGXCPU", "SIGTERM twice", "SIGSTOP, SIGKILL", "SIGSTOP, SIGTERM, SIGCONT"]
MPI_KILLS = ["SIGKILL of a rank", "SIGKILL of a rank", "SIGKILL of all", "SIGKILL of mpirun", "SIGTERM to a rank",
             "SIGUSR1 to mpirun", "SIGTERM to mpirun", "SIGSTOP, SIGKILL of a rank"]


class Layout:
    """A run's configuration keys, and how it is started."""

    def __init__(self, case):
        draw, self.mpi = case.random, case.attack.mpirun and case.random.random() < 0.3
        t, p, d = draw.choice([(1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 1)] +
                              ([] if self.mpi else [(1, 4, 1), (2, 2, 2), (1, 1, 4)]))
        self.ranks = t * p * d
        schedules = ["1f1b"] if p == 1 else ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"]
        schedule = draw.choice(schedules)
        whole = not schedule.startswith("zb")
        shardings = ["no_shard"] if d == 1 else ["no_shard", "optim"] + ["optim_grads", "optim_grads_params"] * whole
        sharding = draw.choice(shardings)
        chunks = 2 if schedule in ("interleaved", "zb-v") else 1
        model = [("num_layers", str(p * chunks * draw.choice([1, 2] if p * chunks < 4 else [1]))),
                 ("hidden_size", "16"), ("num_attention_heads", "2"), ("seq_length", "16")]
        parallel = [("pipeline_schedule", schedule), ("tensor_model_parallel_size", t),
                    ("pipeline_model_parallel_size", p), ("data_parallel_sharding_strategy", sharding)]
        overlap = []
        if schedule == "interleaved":
            parallel.append(("virtual_pipeline_model_parallel_size", 2))
        if t > 1 and draw.random() < 0.5:
            parallel.append(("sequence_parallel", "true"))
        if d > 1 and draw.random() < 0.5:
            overlap.append(("overlap_grad_reduce", "true"))
            if sharding != "no_shard":
                overlap.append(("overlap_param_gather", "true"))
        if draw.random() < 0.3:
            model.append(("hidden_dropout", "0.1"))
        if draw.random() < 0.3:
            model += [("recompute_granularity", "full"), ("recompute_method", "uniform"), ("recompute_num_layers", 1)]
        if draw.random() < 0.3:
            model.append(("untie_embeddings_and_output_weights", "true"))
        self.save_interval, self.keep_last = draw.choice([1, 2, 3, 7]), draw.choice([0, 1, 2, 3])
        self.sections = dict(
            model=model, parallel=[(key, str(value)) for key, value in parallel], overlap=overlap,
            batch=[("micro_batch_size", "1"), ("global_batch_size", str(4 * d))],
            precision=[("dtype", draw.choice(["fp32", "fp32", "bf16"]))],
            checkpoint=[("save_interval", str(self.save_interval)), ("keep_last", str(self.keep_last)),
                        ("async_save", draw.choice(["true", "false"]))],
            train=[("train_iters", str(STEPS)), ("eval_interval", draw.choice(["3", "8"])),
                   ("eval_iters", draw.choice(["2", "20"]))])

    def launcher(self, case):
        return [*case.attack.mpirun, "-n", str(self.ranks)] if self.mpi else []

    def start(self, case, run_dir):
        arguments = ["train", "run.yaml", "--set", f"train.run_dir={run_dir}"]
        return case.start(*arguments, *([] if self.mpi else ["--ranks", str(self.ranks)]), launcher=self.launcher(case))


def kills(case):
    layout = Layout(case)
    sections = sections_of_run(str(case.base.folder / "bytes"), "straight", **layout.sections)
    (case.folder / "run.yaml").write_text(yaml_text(sections))
    straight = layout.start(case, "straight").wait()
    expect(straight.code == 0, "the run that nobody kills fails", straight)
    run = Killed(case, layout, straight.seconds)
    while run.attempt():
        pass
    run.expect_the_same_end()


class Killed:
    """The run that is killed, over all attempts."""

    def __init__(self, case, layout, seconds):
        self.case, self.layout, self.seconds = case, layout, seconds
        self.folder = case.folder / "killed"
        self.checkpoints = self.folder / "checkpoints"
        self.metrics = self.folder / "metrics.jsonl"
        self.kills = 0

    def latest(self):
        """The step from which a run would resume."""
        try:
            name = (self.checkpoints / "latest").read_text()
        except FileNotFoundError:  # the first checkpoint may already have its final name
            return max([int(path.name[5:]) for path in self.checkpoints.glob("step-????????")], default=0)
        expect(re.fullmatch(r"step-\d{8}\n", name), f"checkpoints/latest holds {name!r}")
        expect((self.checkpoints / name.strip() / "manifest.json").exists(), f"latest names {name!r}, which is not whole")
        return int(name[5:])

    def last_step(self):
        return losses_of(self.metrics)[-1][0] if self.metrics.exists() and losses_of(self.metrics) else 0

    def attempt(self):
        """Returns False once the run has finished."""
        before = self.latest()
        process = self.layout.start(self.case, "killed")
        kill, moment = "none", "none"
        if self.kills < KILLS:
            kill = self.case.random.choice(MPI_KILLS if self.layout.mpi else THREAD_KILLS)
            moment = self.wait_for_a_moment(process, "load" if before else "start")
            if moment is None or not self.deliver(process, kill):
                kill = "none"
        result = process.wait()
        self.case.expect_no_process_left()
        # Open MPI's shared memory is removed when mpirun ends, unless mpirun itself was killed.
        left = list(self.case.shared_memory.iterdir())
        expect(not left or kill in ("SIGKILL of all", "SIGKILL of mpirun"), f"shared memory is left: {left}", result)
        for path in left:
            path.unlink()
        if kill == "none":
            expect(result.code == 0, "a run that nobody kills fails", result)
        else:
            self.kills += 1
            self.case.tally.add("kills", kill, moment)
            self.case.tally.add("kills", kill, f"exit {result.code}" if result.code in (0, 75) else "died")
        self.check_attempt(result, kill, before)
        return result.code != 0

    def wait_for_a_moment(self, process, first):
        """Sleeps until a random moment and returns its name; None if the run ended before it."""
        draw = self.case.random
        moment = draw.choice([first, "any", "any", "save", "save", "evaluation"])
        if moment == first:
            end = time.monotonic() + draw.uniform(0, 0.3 * self.seconds)
        elif moment == "any":
            left = 1 - self.latest() / STEPS  # fraction of the straight run's time
            end = time.monotonic() + draw.uniform(0, (0.1 + 0.9 * left) * self.seconds)
        else:
            wanted = draw.randrange(1, 4)  # the first time it occurs, or a later one
            end = self.wait_for(process, self.is_saving if moment == "save" else self.is_evaluating, wanted)
            end += draw.uniform(0, draw.choice([0.001, 0.01, 0.05]))
        while time.monotonic() < end:
            if process.ended():
                return None
            time.sleep(0.0005)
        return None if process.ended() else moment

    def wait_for(self, process, condition, times):
        was = True
        while times > 0 and not process.ended():
            now = condition()
            times -= now and not was
            was = now
            time.sleep(0.0005)
        return time.monotonic()

    def is_saving(self):
        try:
            return any(".tmp" in name for name in os.listdir(self.checkpoints))
        except FileNotFoundError:
            return False

    def is_evaluating(self):
        try:
            with open(self.metrics, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 3000))
                record = json.loads(file.read().split(b"\n")[-2])
        except (OSError, ValueError, IndexError):
            return False
        interval = int(dict(self.layout.sections["train"])["eval_interval"])
        return "loss" in record and record["step"] % interval == 0

    def deliver(self, process, kill):
        """Returns False if there was no rank to kill."""
        draw = self.case.random
        if not self.layout.mpi:
            pids = [process.pid]
        else:
            ranks = [pid for pid, name in processes_of(self.case.tag).items() if name == self.case.trivet.name[:15]]
            if kill.endswith("all"):
                pids = list(processes_of(self.case.tag))
            elif kill.endswith("mpirun"):
                pids = [process.pid]
            elif not ranks:
                return False  # no rank has started yet, or all have ended
            else:
                pids = [draw.choice(ranks)]
        names = re.findall(r"SIG\w+", kill)
        for number, name in enumerate(names):
            if number > 0:
                time.sleep(draw.uniform(0, 0.2))
            for pid in pids:
                send(pid, getattr(signal, name))
        if kill.endswith("twice"):
            send(-process.pid, signal.SIGTERM)  # like timeout(1) and schedulers: to the process and its group
        return True

    def check_attempt(self, result, kill, before):
        latest, last = self.latest(), self.last_step()
        began = re.search(rf"^ +\d+/{STEPS} ", result.out, re.M)  # has completed a step
        if before == 0 and not self.metrics.exists():
            return  # killed before it began
        expect(latest >= before, f"latest was step {before}, is {latest}", result)
        asked = result.code == 75
        if asked:
            expect(latest == last > 0, f"saved, as it says, but latest is step {latest} after step {last}", result)
        if "SIGKILL" not in kill and kill != "none" and result.code not in (0, 75):
            # A signal before the first step ends the run; mpirun gives its ranks little time.
            expect(not began or kill == "SIGTERM to mpirun", f"{kill}: not saved, exit code {result.code}", result)
        expect(result.code in (0, 75, 137, 143, 129, 130, 138) or self.layout.mpi, f"{kill}: unexpected exit code", result)
        self.check_resumed_from(before, began, result)
        if self.case.random.random() < 0.3 and latest > 0:
            verified = self.case.run("checkpoint", "verify", "killed")
            expect(verified.code == 0, f"after {kill} a checkpoint is damaged", verified)

    def check_resumed_from(self, before, began, result):
        with open(self.metrics) as file:
            records = [json.loads(line) for line in file if line.endswith("\n")]
        resumed = [r["step"] for r in records if r.get("event") == "resume"]
        if "resumed from" in result.out and (began or result.code in (0, 75)):  # else the kill may precede the record
            expect(resumed and resumed[-1] == before, f"resumed from step {resumed}, expected {before}", result)
        elif before > 0 and began:
            raise Broken(f"steps without a resume, with a checkpoint of step {before}\n{result.text()}")

    def expect_the_same_end(self):
        straight = self.case.folder / "straight"
        for key in ("loss", "validation_loss"):
            expected, found = losses_of(straight / "metrics.jsonl", key), losses_of(self.metrics, key)
            expect(dict(found) == dict(expected) and set(found) == set(expected),
                   f"{key}: found {sorted(set(found) - set(expected))}, expected {sorted(set(expected) - set(found))}")
        expect(self.latest() == STEPS, f"the last checkpoint is step {self.latest()}")
        name = f"step-{STEPS:08d}"
        for shard in (straight / "checkpoints" / name).glob("*.safetensors"):
            expect(filecmp.cmp(shard, self.checkpoints / name / shard.name, shallow=False), f"{shard.name}: other bits")
        names = sorted(os.listdir(self.checkpoints))
        left = [n for n in names if n != "latest" and not re.fullmatch(r"step-\d{8}", n)]
        expect(not left, f"left among the checkpoints: {left}")
        if self.layout.keep_last > 0:  # one more if killed just after the last commit; the next save would remove it
            expect(len(names) - 1 <= self.layout.keep_last + 1, f"keep_last is {self.layout.keep_last}, found {names}")
        # Records of an attempt without a checkpoint are set aside; ranks that outlive mpirun print to a file.
        left = sorted(name for name in set(os.listdir(self.folder)) - set(os.listdir(straight))
                      if not re.fullmatch(r"metrics\.\d+\.jsonl" + r"|output\.log" * bool(self.layout.mpi), name))
        expect(not left, f"left in the run's folder: {left}")
        outcome = json.loads((self.folder / "outcome.json").read_text())
        expect(outcome["status"] == "done" and outcome["last_committed_step"] == STEPS, f"outcome.json: {outcome}")
        shutil.rmtree(self.folder)

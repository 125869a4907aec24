#!/usr/bin/env python3
"""Executes every command block of README.md, docs/*.md and docs/course/*.md, in order, in a scratch copy of the checkout,
and compares the output that the page shows with the actual output by shape: numbers, hashes and generated text may
differ.

    commands.py --source CHECKOUT --trivet PROGRAM [--only FOLDER | --without FOLDER] [--keep DIR]

A block is indented by four spaces. Its lines that begin with a program in kPrograms, or with "$ ", are commands; a
command's output follows it and may omit lines. An HTML comment before a block may contain a mark: "not run:
REASON" if the test cannot run it (the programs that it names must still exist); "ends with: CODE" for an exit code
other than 0; "output of: COMMAND" for the output of an earlier command, identified by its beginning.

Commands run as written, except that `trivet train` runs a hundredth of its steps, on small batches, unless the run is
one of the course's, which are small. Also checks that links have targets and FILE:SYMBOL names a symbol in that file.
"""
import argparse
import glob
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

kPrograms = ("build", "launch/", "tests/", "mpirun ", "sudo ", "cmake ", "chrt ", "export ", "sbatch ", "tar ", "trivet ",
             "source ", "for ", "c++ ")
kLimit = 300  # seconds per command

# `trivet train` with a hundredth of the steps, and of the intervals counted in steps.
kWrapper = """#!/usr/bin/env bash
real={program}
[[ ${{1-}} == train && $* != *--help* && $* != *docs/course/* ]] || exec "$real" "$@"
arguments=() iters='' save='' evaluation=''
for argument in "$@"; do
  if [[ $argument =~ ^(train\\.train_iters|checkpoint\\.save_interval|train\\.eval_interval)=([0-9]+)$ ]]; then
    value=$((BASH_REMATCH[2] / 100)) least=4
    [[ ${{BASH_REMATCH[1]}} == train.train_iters ]] || least=1
    ((BASH_REMATCH[2] == 0)) || argument=${{BASH_REMATCH[1]}}=$((value < least ? least : value))
    case $argument in train.t*) iters=1 ;; ch*) save=1 ;; *) evaluation=1 ;; esac
  fi
  arguments+=("$argument")
done
[[ $iters ]] || arguments+=(--set train.train_iters=10)
[[ $save ]] || arguments+=(--set checkpoint.save_interval=5)
[[ $evaluation ]] || arguments+=(--set train.eval_interval=5)
[[ $* != *--generate\\ * ]] || arguments+=(--generate-tokens 8)
exec "$real" "${{arguments[@]}}" --set batch.micro_batch_size=1 --set batch.global_batch_size=8 --set train.eval_iters=1
"""


class Block:
    def __init__(self, page, line, mark):
        self.page, self.line, self.mark, self.lines = page, line, mark, []

    def parts(self):
        """[(command or None, [lines of its output])]"""
        parts, open_command = [], False
        for line in self.lines:
            if open_command:
                parts[-1][0] += "\n" + line
            elif line.startswith("$ ") or line.startswith(kPrograms):
                parts.append([line.removeprefix("$ "), []])
            elif parts:
                parts[-1][1].append(line)
            else:
                parts.append([None, [line]])
            open_command = parts[-1][0] is not None and not parts[-1][1] and line.endswith("\\")
        return parts


def blocks_of(path, page):
    blocks, mark, block, fenced = [], "", None, False
    previous = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fenced ^= line.startswith("```")
        indented = line.startswith("    ") and line.strip() and not fenced
        if indented and block is None and previous == "":
            block = Block(page, number, mark)
            blocks.append(block)
        if indented and block is not None:
            block.lines.append(line[4:])
        elif line.strip():
            block = None
            found = re.fullmatch(r"<!-- (.*) -->", line)
            mark = found[1] if found else ""
        elif block is not None:
            block.lines.append("")
        previous = line.strip()
    for block in blocks:
        while block.lines and not block.lines[-1]:
            block.lines.pop()
    return blocks


def shape(line):
    line = re.sub(r"\s+", " ", line.strip())
    line = re.sub(r"\b(?=\w*[0-9])[0-9a-f]{8,}\b", "#", line)
    return re.sub(r"[-+]?[0-9][0-9,.:%]*(e[-+][0-9]+)?", "#", line)


def matches(expected, found, prompt):
    if prompt and expected.startswith(prompt):
        return found.startswith(prompt)
    pattern = re.escape(shape(expected)).replace("…", ".*")
    return re.fullmatch(pattern, shape(found)) is not None


def prompt_of(command):
    words = shlex.split(command, comments=True)
    for option in ("--prompt", "--generate"):
        if option in words:
            return words[words.index(option) + 1]
    return "A house is" if "demo.sh" in command else ""


def missing_line(expected, output, prompt):
    """The first line of `expected` that is missing from `output`, in order; None if none is."""
    left = iter(output)
    for line in expected:
        if line.strip() in ("", "…"):
            continue
        if not any(matches(line, found, prompt) for found in left):
            return line
    return None


def scratch_of(source, program, folder):
    for entry in source.iterdir():
        if entry.name not in ("data", "runs", ".git") and not entry.name.startswith("build"):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").mkdir()
    for suffix in ("bin", "idx"):  # a Megatron dataset has no other files
        (folder / f"PREFIX.{suffix}").symlink_to(folder / f"data/gcide.{suffix}")
    wrapper = folder / "build" / "trivet"
    wrapper.write_text(kWrapper.format(program=shlex.quote(str(program))))
    wrapper.chmod(0o755)


def check_not_run(block, source, build):
    """Checks that the programs named in a block that is not run exist."""
    for command, _ in block.parts():
        for word in re.findall(r"(?<![\w/.-])(?:build|launch|tests)/[\w./-]+", command or ""):
            name = word.removeprefix("build/")
            places = [source / word, build / name, build / "tests" / name]
            if word.startswith("build/tests/"):
                places.append(source / "tests" / "bench" / (pathlib.Path(word).name + ".cc"))
            if not any(place.exists() for place in places):
                raise SystemExit(f"{block.page}:{block.line}: there is no {word}")


def broken_links(source, pages):
    """Links from a page to a missing file, or to a heading that the target page does not have."""
    def anchors(page):
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    broken = []
    for page in pages:
        for link in re.findall(r"\]\(([^)]+)\)", (source / page).read_text()):
            path, _, anchor = link.partition("#")
            target = (source / page).parent / path if path else source / page
            if not re.match("[a-z]+:", link) and (not target.exists() or (anchor and anchor not in anchors(target))):
                broken.append(f"{page}: the link {link} leads nowhere")
    return broken


def missing_symbols(source, pages):
    """Each FILE:SYMBOL whose file does not exist or does not contain the symbol."""
    missing = []
    for page in pages:
        for path, symbol in re.findall(r"\b((?:\w+/)+\w+\.(?:h|cc)):([A-Za-z_]\w*(?:::\w+)*)", (source / page).read_text()):
            file = source / path
            if not file.exists() or not re.search(rf"\b{symbol}\b", file.read_text()):
                missing.append(f"{page}: there is no {path}:{symbol}")
    return missing


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--trivet", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="the folder whose pages are executed; the others still are checked")
    parser.add_argument("--without", help="the folder whose pages are only checked")
    parser.add_argument("--keep", type=pathlib.Path, help="the scratch folder, which then stays")
    options = parser.parse_args()
    temporary = None if options.keep else tempfile.TemporaryDirectory(prefix="docs-commands-")
    scratch = options.keep or pathlib.Path(temporary.name)
    scratch.mkdir(parents=True, exist_ok=True)
    scratch_of(options.source.resolve(), options.trivet.resolve(), scratch)
    environment = dict(os.environ, TRIVET="build/trivet", OMP_WAIT_POLICY="passive", CUDA_VISIBLE_DEVICES="")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        environment.pop(name, None)  # a page must export what its commands need
    exports, outputs, failures, executed = [], {}, [], 0
    pages = ["README.md"] + [page for folder in ("docs", "docs/course")
                             for page in sorted(glob.glob(f"{folder}/*.md", root_dir=options.source))]
    failures += broken_links(options.source, pages)
    failures += missing_symbols(options.source, pages + ["docs/course/one_rank.cc"])
    pages.sort(key=lambda page: page not in ("README.md", "docs/train.md"))  # readers begin with these
    for page in pages:
        if not page.startswith(options.only) or options.without and page.startswith(options.without):
            continue
        for block in blocks_of(options.source / page, page):
            at = f"{page}:{block.line}"
            if options.only and block.mark == "not run: README.md runs it":
                block.mark = ""  # README.md is not executed here
            if block.mark.startswith("not run: "):
                check_not_run(block, options.source, options.trivet.parent)
                continue
            if block.mark.startswith("output of: "):
                command = block.mark.removeprefix("output of: ")
                earlier = [out for ran, out in outputs.items() if ran.startswith(command)]
                if options.only and not earlier:  # the command is on another page
                    continue
                missing = missing_line(block.lines, earlier[-1], prompt_of(command)) if earlier else "the command itself"
                if missing is not None:
                    failures.append(f"{at}: not in the output of {command}: {missing}")
                continue
            if block.mark and not block.mark.startswith("ends with: "):
                raise SystemExit(f"{at}: unknown mark: {block.mark}")
            for command, expected in block.parts():
                if command is None:
                    continue
                if command.startswith("export "):
                    exports.append(command.split("  #")[0])
                    continue
                begin = time.monotonic()
                ended = subprocess.run(["bash", "-c", "\n".join(exports + [command])], cwd=scratch, env=environment,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=kLimit)
                executed += 1
                output = ended.stdout.splitlines()
                outputs[command] = output
                print(f"{time.monotonic() - begin:6.1f} s  {at}  {command}", flush=True)
                if ended.returncode != int(block.mark.removeprefix("ends with: ") if block.mark else 0):
                    failures.append(f"{at}: exit code {ended.returncode}: {command}\n" + "\n".join(output[-30:]))
                    continue
                missing = missing_line(expected, output, prompt_of(command))
                if missing is not None:
                    failures.append(f"{at}: not in the output of {command}: {missing}\n" + "\n".join(output[-60:]))
    print("\n".join(failures) or f"{executed} commands ran as written")
    if executed < 20:
        raise SystemExit("expected at least 20 commands")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

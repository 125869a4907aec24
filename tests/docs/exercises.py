#!/usr/bin/env python3
"""The course's exercises: launch/exercise.sh lists the same ones as the table in their README.md, and the places in
the engine that they name as FILE or FILE:SYMBOL exist.

    exercises.py CHECKOUT
"""
import pathlib
import re
import subprocess
import sys

source = pathlib.Path(sys.argv[1]).resolve()
folder = source / "docs/course/exercises"
problems, places = [], 0
for page in [folder / "README.md", *sorted(folder.rglob("*.h")), *sorted(folder.rglob("*.cc"))]:
    for path, symbol in re.findall(r"(?<![\w/<])((?:\w+/)+\w+\.(?:h|cc|cuh?|sh))(?::(\w+))?", page.read_text()):
        places += 1
        file = folder / path if (folder / path).exists() else source / path
        if path.split("/")[0] == "answers" or "/NAME" in path:
            continue
        if not file.exists() or (symbol and not re.search(rf"\b{symbol}\b", file.read_text())):
            problems.append(f"{page.relative_to(source)}: there is no {path}{':' + symbol if symbol else ''}")

table = re.findall(r"^\| (\d+) .*\| \[`(\w+)`\]\(\2\.h\) \| (\d+) \|", (folder / "README.md").read_text(), re.MULTILINE)
script = source / "launch/exercise.sh"
listed = re.findall(r"^chapter +(\d+)  (\w+) +(\d+) minutes", subprocess.check_output([script], text=True), re.MULTILINE)
if sorted(table) != sorted(listed) or len(listed) != len(list(folder.glob("*.h"))):
    problems.append(f"the table of README.md is not what launch/exercise.sh lists: {set(table) ^ set(listed)}")
wrong = subprocess.run([script, "ring_of_fire"], stderr=subprocess.PIPE, text=True)
if wrong.returncode != 64 or "did you mean ring_all_reduce ring_merge?" not in wrong.stderr:
    problems.append(f"launch/exercise.sh ring_of_fire: exit code {wrong.returncode}, {wrong.stderr}")
print("\n".join(problems) or f"{len(listed)} exercises, and {places} places that they name")
sys.exit(1 if problems or places < 100 else 0)

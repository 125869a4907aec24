#!/usr/bin/env python3
"""The museum of bugs (docs/course/museum) shows mistakes that exist: each exhibit names a patch in tests/mutants and
the laws in its header, cites a public issue number, and is in the table; docs/learn.md states the number of patches.

    museum.py CHECKOUT
"""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
folder, patches = source / "docs/course/museum", source / "tests/mutants"
problems, rows, numbers = [], [], []


def expect(ok, what):
    if not ok:
        problems.append(what)


table = (folder / "README.md").read_text()
for page in sorted(folder.glob("*.md")):
    if page.name == "README.md":
        continue
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
        at = f"{page.name}: {section.splitlines()[0]}"
        number, title = re.match(r"([0-9]+)\. (.*)", section).groups()
        numbers.append(int(number))
        signed = re.search(r"^\*([^*]+)\.\*", section, re.MULTILINE)
        end = re.search(r"^Patch: \[`(\w+)`\]\(../../../tests/mutants/(\w+)\.patch\)\. Laws?: (.*)\.$", section, re.MULTILINE)
        if not signed or not end:
            problems.append(f"{at}: does not begin with *OWNER/REPOSITORY #NUMBER.*, or has no line \"Patch: … Law: …\"")
            continue
        name, laws = end[1], re.findall("`([^`]+)`", end[3])
        expect(all(re.search(r"^[\w.-]+/[\w.-]+ (PR )?#[0-9]+|^(PR )?#[0-9]+", one) for one in signed[1].split(", ")),
               f"{at}: no public number in {signed[1]}")
        file = patches / f"{name}.patch"
        if not file.exists() or name != end[2]:
            problems.append(f"{at}: there is no {file.name}, or its link leads elsewhere")
            continue
        stated = re.findall(r"^Law: (.*)$", file.read_text(), re.MULTILINE)
        expect(laws == stated, f"{at}: names the laws {laws}, {file.name} {stated}")
        rows.append(f"`{name}` | " + ", ".join(f"`{law}`" for law in laws))
        row = re.search(rf"^\| {number} \| \[{re.escape(title)}\]\({page.name}#.*$", table, re.MULTILINE)
        expect(row and f"| {signed[1]} | {rows[-1]} |" in row[0], f"README.md has no row of {at}, or another one")

expect(sorted(numbers) == list(range(1, len(numbers) + 1)) and len(numbers) >= 25, f"the exhibits are {sorted(numbers)}")
expect(len(set(rows)) == len(rows), "a patch is exhibited twice")
expect(f"\n{len(rows)} mistakes " in table, f"README.md does not count {len(rows)} mistakes")
count = len(list(patches.glob("*.patch")))
expect(f"`tests/mutants`: {count} changes" in (source / "docs/learn.md").read_text(), f"docs/learn.md does not count {count} patches")
print("\n".join(problems) or f"{len(rows)} exhibits")
sys.exit(1 if problems else 0)

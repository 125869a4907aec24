#!/usr/bin/env python3
"""Makes engine/data/unicode_table.h: the code points that the regular expressions of `tokenizers` take for letters
(\\p{L}), numbers (\\p{N}) and white space (\\s).

    pip install tokenizers==0.23.3 unicodedata2==16.0.0 && python3 tests/golden/make_unicode_table.py

unicodedata2, whose version is Unicode's, must agree.
"""
import os
import textwrap

import tokenizers
import unicodedata2
from tokenizers import Regex, pre_tokenizers

VERSION, TOKENIZERS = "16.0.0", "0.23.3"
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engine/data/unicode_table.h")
# White_Space of Unicode: no change since version 6.3.
SPACES = [*range(9, 14), 32, 0x85, 0xa0, 0x1680, *range(0x2000, 0x200b), 0x2028, 0x2029, 0x202f, 0x205f, 0x3000]


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = []
    for begin in range(0, 0x110000, 4096):
        text = "".join(chr(c) for c in range(begin, begin + 4096) if not 0xd800 <= c < 0xe000)
        found += [ord(c) for piece, _ in split.pre_tokenize_str(text) for c in piece]
    return found


def runs(points):
    """The distance to each run from the end of the last one, and its length."""
    numbers, end = [], 0
    for c in points:
        if c == end and numbers:
            numbers[-1] += 1
        else:
            numbers += [c - end, 1]
        end = c + 1
    return numbers


def main():
    assert tokenizers.__version__ == TOKENIZERS and unicodedata2.unidata_version == VERSION
    out = [f"// Letters, numbers and white space of Unicode {VERSION}, as `tokenizers` {TOKENIZERS} has them; by",
           "// tests/golden/make_unicode_table.py. Runs of code points: the distance from the end of the last run, the length.",
           "#pragma once", "", "#include <cstdint>", "", "namespace trivet {", "", "// clang-format off"]
    for name, pattern, initial in (("Letter", r"\p{L}", "L"), ("Number", r"\p{N}", "N"), ("Space", r"\s", None)):
        points = members(pattern)
        assert points == (SPACES if initial is None else
                          [c for c in range(0x110000) if unicodedata2.category(chr(c))[0] == initial]), name
        print(f"{len(points)} code points {pattern}")
        lines = textwrap.wrap(", ".join(map(str, runs(points))), 148)
        out += [f"inline constexpr uint32_t k{name}Runs[] = {{"] + ["    " + s.replace(", ", ",") for s in lines] + ["};"]
    with open(PATH, "w", encoding="ascii") as file:
        file.write("\n".join(out + ["// clang-format on", "", "}  // namespace trivet", ""]))


if __name__ == "__main__":
    main()

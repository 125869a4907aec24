#!/usr/bin/env python3
"""Makes engine/data/unicode_table.h: the general category of every code point, as defined by the regular expressions of
`tokenizers` (\\p{L}, \\p{Lu}, …; also \\d and \\s).

    pip install tokenizers==0.23.3 unicodedata2==16.0.0 && python3 tests/golden/make_unicode_table.py

unicodedata2, whose version is that of Unicode, must agree.
"""
import os

import tokenizers
import unicodedata2
from tokenizers import Regex, pre_tokenizers

VERSION, TOKENIZERS = "16.0.0", "0.23.3"
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engine/data/unicode_table.h")
NAMES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
DIGITS = "".join(chr(c) for c in range(ord("#"), 0x7f) if chr(c) != "\\")
ALTERNATING = 30  # Lu and Ll in turn; 31: Ll and Lu


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for begin in range(0, 0x110000, 4096):
        text = "".join(chr(c) for c in range(begin, begin + 4096) if not 0xd800 <= c < 0xe000)
        found.update(ord(c) for piece, _ in split.pre_tokenize_str(text) for c in piece)
    return found


def runs(categories):
    """Runs of one category, or of two in turn, each as 32 * (length - 1) + category."""
    found = []
    for category in categories:
        if found and found[-1][0] == category:
            found[-1][1] += 1
        else:
            found.append([category, 1])
    numbers, at = [], 0
    while at < len(found):
        end = at
        while end < len(found) and found[end][1] == 1 and found[end][0] == (found[at][0] ^ (end - at) & 1) < 2:
            end += 1
        if end - at > 2:
            numbers.append(32 * (end - at - 1) + ALTERNATING + found[at][0])
            at = end
        else:
            numbers.append(32 * (found[at][1] - 1) + found[at][0])
            at += 1
    return numbers


def digits(number):
    """`number` in base 45, in the characters from # on without the backslash; all digits but the last are 45 higher."""
    rest = "" if number < 45 else "".join(DIGITS[45 + ord(c)] for c in base(number // 45))
    return rest + DIGITS[number % 45]


def base(number):
    return (base(number // 45) if number >= 45 else "") + chr(number % 45)


def main():
    assert tokenizers.__version__ == TOKENIZERS and unicodedata2.unidata_version == VERSION
    names = [unicodedata2.category(chr(c)) for c in range(0x110000)]
    for pattern in [*(rf"\p{{{name}}}" for name in [*NAMES, *"LMNPSZC"]), r"\d", r"\s"]:
        name = "Nd" if pattern == r"\d" else pattern[3:-1]
        assert members(pattern) == {c for c in range(0x110000) if names[c] != "Cs" and (
            names[c].startswith(name) if pattern != r"\s" else names[c][0] == "Z" or c in (*range(9, 14), 0x85))}, pattern
    numbers = runs([NAMES.index(name) for name in names])
    print(f"{len(numbers)} runs")
    text = "".join(digits(number) for number in numbers)
    out = [f"// The general categories of Unicode {VERSION}, as `tokenizers` {TOKENIZERS} has them; by",
           "// tests/golden/make_unicode_table.py.", "#pragma once", "", "#include <string_view>", "", "namespace trivet {", "",
           f'inline constexpr std::string_view kCategoryNames = "{"".join(NAMES)}";', "",
           "// Runs of code points from 0 on, each 32 times its length less 1 plus its category by place in kCategoryNames; or plus",
           "// 30 where Lu and Ll alternate, 31 where Ll and Lu do. To base 45: see digits() there.", "// clang-format off",
           "inline constexpr std::string_view kCategoryRuns =",
           *(f'    "{text[i:i + 150]}"' + ";" * (i + 150 >= len(text)) for i in range(0, len(text), 150)),
           "// clang-format on", "", "}  // namespace trivet", ""]
    with open(PATH, "w", encoding="ascii") as file:
        file.write("\n".join(out))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes tests/golden/bpe/{gpt2,llama3,qwen2}.json, tokenizers trained on corpus.txt; ids.json, their ids for hard
texts; and shapes.json, a vocabulary whose tokens cross any boundary, with the sections of other models' files and
hashes of the resulting ids.

    pip install tokenizers==0.23.3 && python3 tests/golden/make_bpe_golden.py     # never run by the tests

    python3 tests/golden/make_bpe_golden.py random TEXT PREFIX      # writes TEXT, 10 MB of random Unicode, for compare
    python3 tests/golden/make_bpe_golden.py compare TEXT PREFIX     # PREFIX, a dataset of TEXT as one document
    python3 tests/golden/make_bpe_golden.py shape NAME FOLDER       # writes a shape's tokenizer.json and configuration
"""
import array
import json
import os
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bpe")
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" \
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {"gpt2": None, "llama3": CONTRACTION % "{1,3}", "qwen2": CONTRACTION % ""}
SPECIAL = {"gpt2": ["<|endoftext|>"],
           "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|end", "<|end_of_text", "of_text|>", "spe cial"],
           "qwen2": ["<|endoftext|>", "<|im_start|>"]}

TEXTS = [
    "", " ", "  ", "   ", "\n", "\r\n", " \n", "\n ", " \n \n  ", "\t\tx", "a", " a", "  a", "a  ", "a \n\n  b",
    "Hello, world! It's 2024; they're 100,000.5 we'LL I'D 'S 'tis 'rest ''s x's's", "'\u017f '\u017ft \u017f's 'K \u212a's",
    "word\u00a0word\u3000word\u2003\u2003word\u1680\u180eword\u200bword\ufeffword\u0085word\u2028word\x1cword",
    "1 12 123 1234 12345 \u00bd \u2167 \u0663\u0664 \u0e52\u0e53 \U0001d7d8 x1y22z333 3.14159 1e-5 \u3007\u4e00",
    "tabs\tand\x0b\x0c\r\rlines\r\n\r\n\nend\x85\n", "\x00a\x00\x01\x1f \x7f\x80\x9f", "nul\x00", "....!!!???---\n\n\n///\r\n\r\n x",
    "e\u0301 \u00e9 \u1e9b\u0323 A\u030a \u212b \ufb01 \uac00\u1100\u1161\u11a8 \u0344 q\u0307\u0323 \u0958 \u2126 \u037e;",
    "\U0001f600\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f #\ufe0f\u20e3",
    "\U0001e900\U0001e922 \U00016ea0 \U0001e5d0\U0001e5f1 \U00010d4a \U00010d40 \U00011bc0 \ua7cb \u1c89 \U0001ccf0 \U000105c0",
    "\ue000\uf8ff \U000f0000 \U0010ffff \ufffe\uffff \ufdd0 \u0378 \U000e0001 \ud7ff\ufffd",
    "<|endoftext|><|begin_of_text|>a<|end_of_text|>b<|end_of_tex<|end|><|end_of_text<|end_of_text|><|end_of_text||>of_text|>",
    " <|endoftext|> <|im_start|>user\nspe cial spe cia spe cial<|endoftext", "tokwort worttok wortwort twort",
    "if (x == 0) {\n\treturn;\n    }\n\n\n  // done\n", "aaaa aaaaaaaaaaa abab abcabc bcbc ababababa cabab",
    "  def f(self):\n        return None  \n\n", "a" * 1000, " " * 1000 + "x", "\n" * 1000 + " x", "ab" * 500, "'" * 100 + "s",
    "\u0301" * 50, "x\u0301\u0323" * 20, "\U0001f600" * 100, "0123456789" * 20, " \n" * 100 + "x", "-" * 333 + "\n" * 5,
] + open(os.path.join(HERE, "corpus.txt"), encoding="utf-8", newline="").read().split("\n")
LONG = [("a", 1000000, ""), (" ", 1000000, ""), (" ", 1000000, "x"), ("\n", 1000000, " x"), ("ab", 500000, ""),
        ("7", 1000000, ""), ("\u00e9", 300000, ""), ("!", 1000000, "\n"), ("it's ", 200000, "")]

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = {**LEVEL, "use_regex": False}


def cuts(*splits, last=BYTES):
    """A Sequence of Splits, each a pattern or (pattern, behavior, invert), and then `last`, a ByteLevel."""
    parts = []
    for split in splits:
        pattern, behavior, invert = split if isinstance(split, tuple) else (split, "Isolated", False)
        pattern = pattern if isinstance(pattern, dict) else {"Regex": pattern}
        parts.append({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*parts, last]}}


def digits(individual, last=LEVEL):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": individual}, last]}}


def added(content, normalized, special):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized,
            "special": special}


ENDING = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORD = r"[^\r\n\p{L}\p{N}]?"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
NFC = {"normalizer": {"type": "NFC"}}
SHAPES = {  # sections as in those models' files
    "GPT-2": {"pre_tokenizer": LEVEL, "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst",
                                                     "stride": 0},
              "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                          "pad_type_id": 0, "pad_token": "!"}},
    "Sequences": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [LEVEL]},
                  "normalizer": {"type": "Sequence", "normalizers": []},
                  "decoder": {"type": "Sequence", "decoders": [LEVEL, {"type": "Fuse"}]}},
    "GPT-NeoX": {"pre_tokenizer": LEVEL, **NFC, "added_tokens": [
        *(added(" " * n, True, False) for n in range(6, 1, -1)), added("<|pad|>", False, True),
        added("e\u0301t", True, False), added("K\u212a", True, False)]},
    "RoBERTa": {"pre_tokenizer": {**LEVEL, "add_prefix_space": True}},
    "SmolLM": digits(True),
    "Command-R": {**digits(True), "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
    "Digits and spaces": digits(False, {**LEVEL, "add_prefix_space": True}),
    "DeepSeek-V3": cuts(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
                        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    "DeepSeek-Coder": cuts("[\r\n]", "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u0370-\u0373]+",
                           "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
                           "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"),
    "o200k": cuts(f"{WORD}{UPPER}*{LOWER}+{SUFFIX}|{WORD}{UPPER}+{LOWER}*{SUFFIX}|\\p{{N}}{{1,3}}{ENDING}"),
    "Tekken": cuts((f"{WORD}{UPPER}*{LOWER}+|{WORD}{UPPER}+{LOWER}*|\\p{{N}}{ENDING}", "Removed", True)),
    "cl100k": cuts((CONTRACTION % "{1,3}", "Removed", True)),
    "cl100k of tiktoken": cuts(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
                               r"\s++$|\s*[\r\n]|\s+(?!\S)|\s"),
    "BLOOM": cuts((" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+", "Removed", True)),
    "spaces removed": cuts(({"String": " "}, "Removed", False), ({"String": "it's"}, "Isolated", False)),
    "letters of any case": cuts((r"(?i:[a-cK]x?|\.s|z{2})+|\P{L}\D", "Removed", True), last={**BYTES, "add_prefix_space": True}),
    "look-ahead": cuts(r"\p{L}+(?=\s)|[\S]{2,3}(?!x)|.\n?|a?+b*+c++"),
}
MORE = ["HTMLParser parseHTML XMLHttpRequest I'MFINE we'LLSee \u01c5ungla \u02b0a\u0301B iPhone12Pro", "SHOUT'S shout'S \u017f'\u017f K'LL",
        "\u4eba\u4eba1234\u3042\u30a2\u30fc\u3002\u300c\u6f22\u5b57\u300d\ud55c\uae00 12", "a.b.c ...abc!!! (word) [x] {y} \\path/to//x/\n/\n", "x  \n\n  y  \n", "end \t \n",
        "caf\u00e9t cafe\u0301t cafe\u0301 t K\u212a KK \u212aK", "1\u06f2\u0be73 \u00b2\u00b3x\u2460 \U00011de1\U00016ff4 12a34b567890", "it's it 's  it's", "a\u0301\u0316b\u0316\u0301c\u0323\u0307",
        "<|pad|>   x      y       z <|pad|><|pad|>", "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e20\u0e32\u0e29\u0e32 \u05e2\u05d1\u05e8\u05d9\u05ea\u060c \u06d4 \u0627\u0644\u0639\u064e\u0631", "abcKkzZzzAx.S.\u017f\u212ax bcx"]


def random_pieces(rng, count):
    """A text of random words that each matter to some pattern."""
    words = [" ", " ", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "'", "'s", "'LL", "'\u017f", "it's", "a", "b", "K", "\u212a",
             "abc", "The", "HTML", "zz", "1", "23", "4567", "\u0663", "\u00bd", "!", ".", "...", "/", "-", "(", "\u3002", "$", "\u20ac", "\u00e9", "e\u0301",
             "\u0301", "\u0323", "\u4eba\u4eba", "\u3042", "\uac00", "\u0939\u093f", "\u01c5", "\u02b0", "\u05d0", "\U0001f600", "\u200d", "\u0000", "\u0378", "\ue000",
             "<|pad|>", "x"]
    return "".join(rng.choice(words) for _ in range(count))


def shape_texts():
    rng = random.Random(7)
    return TEXTS + MORE + [random_pieces(rng, 25) for _ in range(40)]


def shape(name, base):
    """The JSON of the shape's tokenizer.json."""
    whole = {**base, **SHAPES[name]}
    if name == "GPT-2":
        whole["model"] = {key: value for key, value in base["model"].items() if key != "type"}
    first = len(base["model"]["vocab"])
    fresh = [token for token in whole["added_tokens"] if "id" not in token]
    whole["added_tokens"] = base["added_tokens"] + [{"id": first + i, **token} for i, token in enumerate(fresh)]
    return whole


def make_shapes():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.train_from_iterator([text.replace("<|pad|>", "") for text in shape_texts() if len(text) < 200], trainers.BpeTrainer(
        vocab_size=900, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    base = json.loads(made.to_str())
    golden = {"base": base, "texts": MORE + shape_texts()[len(TEXTS + MORE):], "shapes": []}
    for name in SHAPES:
        whole = shape(name, base)
        made = Tokenizer.from_str(json.dumps(whole))
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = False
        golden["shapes"].append({
            "name": name, "file": {key: value for key, value in whole.items() if value != base.get(key) and key != "model"},
            "ids": [hashed(made.encode(text, add_special_tokens=False).ids) % 2 ** 32 for text in shape_texts()]})
    with open(os.path.join(HERE, "shapes.json"), "w", encoding="ascii") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")


def write_shape(name, folder):
    base = json.load(open(os.path.join(HERE, "shapes.json")))["base"]
    json.dump(shape(name, base), open(os.path.join(folder, "tokenizer.json"), "w"))
    json.dump({"eos_token": "<|endoftext|>"}, open(os.path.join(folder, "tokenizer_config.json"), "w"))


def trained(name):
    made = Tokenizer(models.BPE())
    pattern = PATTERNS[name]
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if pattern is None else \
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    text = open(os.path.join(HERE, "corpus.txt"), encoding="utf-8", newline="").read()
    made.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=900, show_progress=False, special_tokens=SPECIAL[name],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    whole = json.loads(made.to_str())
    if name == "llama3":
        whole["model"]["ignore_merges"] = True
        made = Tokenizer.from_str(json.dumps(whole))
        made.add_tokens([AddedToken("wort", normalized=True), AddedToken("tokwor", normalized=True)])
    elif name == "qwen2":
        made.normalizer = normalizers.NFC()
    return made


def hashed(ids):
    value = 0
    for i in ids:
        value = (value * 31 + i) % 2 ** 64
    return value


def make():
    assert tokenizers.__version__ == "0.23.3"
    golden = {"texts": TEXTS, "ids": {}, "long": []}
    for name in PATTERNS:
        path = os.path.join(HERE, name + ".json")
        made = trained(name)
        made.save(path, pretty=False)
        made = Tokenizer.from_file(path)
        for key, as_text in ((name, False), (name + " special as text", True)):
            made.encode_special_tokens = as_text
            golden["ids"][key] = [made.encode(text, add_special_tokens=False).ids for text in TEXTS]
        made.encode_special_tokens = False
        for unit, count, end in LONG:
            ids = made.encode(unit * count + end, add_special_tokens=False).ids
            golden["long"].append({"tokenizer": name, "unit": unit, "count": count, "end": end, "tokens": len(ids),
                                   "hash": hashed(ids)})
    with open(os.path.join(HERE, "ids.json"), "w", encoding="ascii") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")
    make_shapes()


def random_text(path):
    rng = random.Random(1)
    pieces, size = [], 0
    while size < 10_000_000:
        kind = rng.randrange(7)
        if kind == 6:
            piece = random_pieces(rng, 20)
        elif kind == 0:
            piece = chr(rng.choice([rng.randrange(1, 0xd800), rng.randrange(0xe000, 0x110000)])) * rng.choice([1, 1, 1, 3])
        elif kind == 1:
            piece = rng.choice([" ", "  ", "\n", "\r\n", "\t", "'", "'s", "'LL", " \n", "\u00a0", "0", "12345"])
        else:
            block = rng.choice([0x20, 0x61, 0x61, 0xc0, 0x370, 0x410, 0x600, 0x900, 0xe00, 0x1100, 0x1e00, 0x3040, 0x4e00,
                                0xac00, 0x10400, 0x1d400, 0x1f600])
            piece = "".join(chr(block + rng.randrange(64)) for _ in range(rng.randrange(1, 9)))
        pieces.append(piece)
        size += len(piece.encode())
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write("".join(pieces))


def compare(path, prefix):
    text = open(path, encoding="utf-8", newline="").read()
    tokenizer = Tokenizer.from_file(prefix + ".tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    info = json.load(open(prefix + ".json"))
    found = array.array("H" if info["vocab_size"] < 65500 else "i")
    found.frombytes(open(prefix + ".bin", "rb").read())
    assert found.pop() == info["eod"]
    if "bos" in info:
        assert found.pop(0) == info["bos"]
    assert list(found) == ids, next(i for i, (a, b) in enumerate(zip(found, ids)) if a != b)
    print(f"{len(ids)} tokens of {len(text.encode())} bytes are equal")


if __name__ == "__main__":
    if sys.argv[1:2] == ["random"]:
        random_text(sys.argv[2])
    elif sys.argv[1:2] == ["compare"]:
        compare(*sys.argv[2:])
    elif sys.argv[1:2] == ["shape"]:
        write_shape(*sys.argv[2:])
    else:
        make()

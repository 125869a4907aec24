#!/usr/bin/env python3
"""Makes tests/golden/bpe/{gpt2,llama3,qwen2}.json, tokenizers trained on corpus.txt, and ids.json, their ids of hard
texts.

    pip install tokenizers==0.23.3 && python3 tests/golden/make_bpe_golden.py     # never run by the tests

    python3 tests/golden/make_bpe_golden.py random TEXT PREFIX      # writes TEXT, 10 MB of random Unicode; to compare
    python3 tests/golden/make_bpe_golden.py compare TEXT PREFIX     # PREFIX, a dataset of TEXT as one document
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


def random_text(path):
    rng = random.Random(1)
    pieces, size = [], 0
    while size < 10_000_000:
        kind = rng.randrange(6)
        if kind == 0:
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
    ids = Tokenizer.from_file(prefix + ".tokenizer.json").encode(text, add_special_tokens=False).ids
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
    else:
        make()

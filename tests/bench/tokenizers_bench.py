#!/usr/bin/env python3
"""Byte-level BPE against PyPI's `tokenizers` (pip install tokenizers==0.23.1), one thread each, by CPU time.

    tokenizers_bench.py --trivet build/trivet [--vocab-size 8192] [--pattern gpt2|llama3] [--rounds 3] FILE.jsonl

FILE.jsonl contains one document per line, {"text": …}. Each round trains a vocabulary on it per program and encodes all
of it with Trivet's vocabulary. Trivet also reads and writes files; `tokenizers` gets the text in memory. Checks that
both produce the same merges and ids, and prints user + system seconds and the ratio, lowest to highest over the rounds.
"""
import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

PATTERNS = {"gpt2": None,
            "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                      r"\s*[\r\n]+|\s+(?!\S)|\s+"}


def seconds(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def timed(run):
    before = seconds(resource.RUSAGE_SELF)
    result = run()
    return result, seconds(resource.RUSAGE_SELF) - before


def prepared(options, folder, name, *arguments):
    """CPU seconds of `trivet data prepare` with one thread."""
    before = seconds(resource.RUSAGE_CHILDREN)
    subprocess.run([options.trivet, "data", "prepare", "--input", options.file, "--output", f"{folder}/{name}", "--force",
                    "--threads", "1", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return seconds(resource.RUSAGE_CHILDREN) - before


def trained(options, texts):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    pattern = PATTERNS[options.pattern]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), level])
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=options.vocab_size, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(tokenizer.to_str())["model"]["merges"]


def stored_ids(prefix, vocab_size):
    with open(prefix + ".bin", "rb") as file:
        data = file.read()
    return struct.unpack(f"<{len(data) // 2}H", data) if vocab_size < 65500 else struct.unpack(f"<{len(data) // 4}i", data)


def main():
    parser = argparse.ArgumentParser(description="Byte-level BPE beside `tokenizers`; see the top of the file.")
    parser.add_argument("--trivet", required=True)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--pattern", choices=PATTERNS, default="gpt2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("file")
    options = parser.parse_args()
    import tokenizers
    with open(options.file, encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file if line.strip()]
    texts = [text for text in texts if text]
    size = sum(len(text.encode()) for text in texts)
    print(f"{options.file}: {len(texts)} documents, {size / 1e6:.1f} MB; vocabulary {options.vocab_size}, pattern "
          f"{options.pattern}; tokenizers {tokenizers.__version__}; CPU seconds of one thread", flush=True)
    train, encode = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            train_and_encode = prepared(options, folder, "trained", "--tokenizer", "bpe", "--vocab-size",
                                        str(options.vocab_size), "--pattern", options.pattern)
            theirs, their_train = timed(lambda: trained(options, texts))
            model = f"{folder}/trained.tokenizer.json"
            with open(model, encoding="utf-8") as file:
                ours = json.load(file)["model"]["merges"]
            if [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in ours] != [tuple(m) for m in theirs]:
                sys.exit("the merges differ")
            our_encode = prepared(options, folder, "encoded", "--tokenizer", "bpe", "--model", model, "--eod-token",
                                  "<|endoftext|>")
            tokenizer = tokenizers.Tokenizer.from_file(model)
            ids, their_encode = timed(lambda: [
                encoded.ids for i in range(0, len(texts), 1000)
                for encoded in tokenizer.encode_batch_fast(texts[i:i + 1000], add_special_tokens=False)])
            eod = tokenizer.token_to_id("<|endoftext|>")
            if stored_ids(f"{folder}/encoded", options.vocab_size) != tuple(t for i in ids for t in (*i, eod)):
                sys.exit("the ids differ")
            train.append((train_and_encode - our_encode, their_train))
            encode.append((our_encode, their_encode))
    for name, rows in (("training", train), ("encoding", encode)):
        ratios = sorted(theirs / ours for ours, theirs in rows)
        ours, theirs = (min(row[i] for row in rows) for i in (0, 1))
        print(f"{name:<9} trivet {ours:7.2f} s ({size / ours / 1e6:6.1f} MB/s)   tokenizers {theirs:7.2f} s "
              f"({size / theirs / 1e6:6.1f} MB/s)   faster by {ratios[0]:.2f} to {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()

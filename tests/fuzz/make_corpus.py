#!/usr/bin/env python3
"""Makes tests/fuzz/corpus/: valid files for each fuzz target, and named hostile ones.

    python3 tests/fuzz/make_corpus.py

A fuzzer's findings are added by hand, with a name that describes each.
"""
import gzip
import io
import json
import lzma
import os
import struct
import tarfile

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def put(target, name, data):
    os.makedirs(os.path.join(HERE, target), exist_ok=True)
    with open(os.path.join(HERE, target, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


# ---- safetensors: length, header, data

def tensors(header, data=b""):
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header)) + header + data


def one(shape="[2,2]", offsets="[0,16]", dtype="F32"):
    return '{"w":{"dtype":"%s","shape":%s,"data_offsets":%s}}' % (dtype, shape, offsets)


put("safetensors", "golden", tensors(one() + " " * 7, struct.pack("<4f", 1, 2, 3, 4)))
put("safetensors", "metadata", tensors('{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[],"data_offsets":'
                                       '[0,2]},"b":{"dtype":"U8","shape":[3,0],"data_offsets":[2,2]}}', b"xx"))
put("safetensors", "no_tensors", tensors("{}"))
put("safetensors", "empty_file", b"")
put("safetensors", "huge_length", b"\x10\0\0\0\0\xff\xff\xff{}")
put("safetensors", "no_header", b"\x3c" + bytes(7))
put("safetensors", "bad_utf8", tensors(b"\xff"))
put("safetensors", "only_a_brace", tensors("{"))
put("safetensors", "trailing_bytes", tensors(one(), bytes(20)))
put("safetensors", "missing_bytes", tensors(one(), bytes(14)))
put("safetensors", "shape_and_offsets_differ", tensors(one("[2,2]", "[0,4]"), bytes(4)))
put("safetensors", "shape_overflow", tensors(one("[2,18446744073709551614]"), bytes(16)))
put("safetensors", "shape_overflow_signed", tensors(one("[2,9223372036854775807]"), bytes(16)))
put("safetensors", "product_overflow", tensors(one("[281474976710655,281474976710655]"), bytes(16)))
put("safetensors", "overlap", tensors('{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":'
                                      '[4],"data_offsets":[2,6]}}', bytes(6)))
put("safetensors", "part_of_a_byte", tensors(one("[3]", "[0,1]", "F4"), bytes(1)))
put("safetensors", "duplicate", tensors('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\\u0061":{"dtype":"U8",'
                                        '"shape":[0],"data_offsets":[0,0]}}'))
put("safetensors", "zero_byte", tensors(b"{}\0{"))
put("safetensors", "deep", tensors('{"w":' + "[" * 64))

# ---- manifest, shard description, train state

slice_ = {"tensor": "w", "global_shape": [2, 2], "box": [0, 2, 0, 2], "range": [0, 4], "offset": 8, "xxh3_64": "0" * 16}
shard = {"file": "rank-00000.safetensors", "bytes": 24, "xxh3_128": "0" * 32, "pieces": [slice_]}
manifest = {"format": "trivet checkpoint", "version": [1, 0], "step": 3, "run": "r", "layout": "l",
            "block_bytes": 1 << 20, "files": [shard, {"file": "train_state.json", "bytes": 2, "xxh3_128": "0" * 32}]}


def changed(value, **members):
    return json.dumps({**value, **members})


def with_piece(**members):
    return changed(manifest, files=[{**shard, "pieces": [{**slice_, **members}]}])


put("manifest", "sound", json.dumps(manifest))
put("manifest", "shard", json.dumps(shard))
put("manifest", "state", json.dumps({"step": 1, "consumed_samples": 2, "consumed_tokens": 3, "skipped_steps": 0,
                                     "tokenizer": "bytes", "config": {"model.num_layers": "2"}}))
put("manifest", "newer", changed(manifest, version=[2, 0]))
put("manifest", "leaves_the_folder", changed(manifest, files=[{**shard, "file": "../x"}]))
put("manifest", "box_outside", with_piece(box=[1, 2, 0, 2]))
put("manifest", "box_overflow", with_piece(box=[1 << 40, 1 << 40, 1 << 40, 1 << 40]))
put("manifest", "range_outside", with_piece(range=[3, 2]))
put("manifest", "shape_overflow", with_piece(global_shape=[1 << 40, 1 << 40]))
put("manifest", "range_overflow", with_piece(global_shape=[1 << 40, 1 << 22], box=[0, 1 << 40, 0, 1 << 22],
                                             range=[1 << 62, 1 << 62], xxh3_64=""))
put("manifest", "behind_the_file", with_piece(offset=(1 << 63) - 1))
put("manifest", "hashes_missing", with_piece(xxh3_64=""))
put("manifest", "too_few_elements", with_piece(range=[0, 3]))

# ---- dataset: size of the .idx, .idx, .bin


def dataset(idx, data):
    return struct.pack("<H", len(idx)) + idx + data


def index(lengths, pointers, documents, code=8, sequences=None, starts=None, version=1, magic=b"MMIDIDX\0\0"):
    return (magic + struct.pack("<QBQQ", version, code, len(lengths) if sequences is None else sequences,
                                len(documents) if starts is None else starts) +
            b"".join(struct.pack("<i", n) for n in lengths) + b"".join(struct.pack("<q", n) for n in pointers) +
            b"".join(struct.pack("<q", n) for n in documents))


data = struct.pack("<5H", 1, 2, 3, 4, 5)
good = index([3, 2], [0, 6], [0, 1, 2])
put("indexed_dataset", "golden", dataset(good, data))
put("indexed_dataset", "modes", dataset(good + bytes(2), data))
put("indexed_dataset", "bytes", dataset(index([3, 2], [0, 3], [0, 1, 2], code=1), data[:5]))
put("indexed_dataset", "int32", dataset(index([1], [0], [0, 1], code=4), bytes(4)))
put("indexed_dataset", "no_sequences", dataset(index([], [], [0]), b""))
put("indexed_dataset", "cut_off", dataset(good[:-1], data))
put("indexed_dataset", "short_bin", dataset(good, data[:-1]))
put("indexed_dataset", "unknown_type", dataset(index([3, 2], [0, 6], [0, 1, 2], code=9), data))
put("indexed_dataset", "many_sequences", dataset(index([3, 2], [0, 6], [0, 1, 2], sequences=(1 << 64) - 1), data))
put("indexed_dataset", "many_documents", dataset(index([3, 2], [0, 6], [0, 1, 2], starts=(1 << 61)), data))
put("indexed_dataset", "negative_length", dataset(index([-3, 2], [0, 6], [0, 1, 2]), data))
put("indexed_dataset", "negative_pointer", dataset(index([3, 2], [0, -6], [0, 1, 2]), data))
put("indexed_dataset", "documents_descend", dataset(index([3, 2], [0, 6], [0, 2, 1, 2]), data))
put("indexed_dataset", "empty_documents", dataset(index([3, 2], [0, 6], [0, 0, 0, 2]), data))
put("indexed_dataset", "another_version", dataset(index([3, 2], [0, 6], [0, 1, 2], version=2), data))

# ---- tokenizer


def letters():
    """The files' alphabet: a printable character for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return [chr(b) for b in kept] + [chr(256 + i) for i in range(len(others))]


def tokenizer(merges, added=True, **members):
    vocab = {letter: i for i, letter in enumerate(letters())}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    special = {"id": len(vocab), "content": "<e>", "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
             "merges": [list(merge) for merge in merges]}
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special] if added else [],
            "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {**model, **members.pop("model", {})}, **members}
    return json.dumps(file, ensure_ascii=False, separators=(",", ":"))


put("tokenizer", "bytes", tokenizer([]))
put("tokenizer", "merges", tokenizer([("a", "b"), ("ab", "c"), ("\u0120", "t")]))
put("tokenizer", "nfc", tokenizer([("a", "b")], normalizer={"type": "NFC"}))
put("tokenizer", "whole_pieces", tokenizer([("e", "n"), ("en", "d")], model={"ignore_merges": True}))
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def cut_by(pattern, behavior="Isolated"):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": True}
    return {"type": "Sequence", "pretokenizers": [split, {"type": "Digits", "individual_digits": True}, LEVEL]}


put("tokenizer", "pattern", tokenizer([("e", "n")], pre_tokenizer=cut_by(
    r"[^\r\n\p{L}]?+[\p{Lu}\p{M}]*[\p{Ll}]++(?i:'s|'ll)?|\p{N}{1,3}| ?[^\s\d]+[\r\n/]*|\s+(?!\S)|\s+$|\s")))
put("tokenizer", "removed", tokenizer([], pre_tokenizer=cut_by(r"(a|b(?:c|.)?)+|[[^x-z]\-]", "Removed")))
put("tokenizer", "quadratic", tokenizer([], pre_tokenizer=cut_by(r"[\s\S]+(?=\.)|\S")))
put("tokenizer", "many_states", tokenizer([], pre_tokenizer=cut_by(r"[ab]*a[ab]{16}")))
put("tokenizer", "prefix_space", tokenizer([], pre_tokenizer={**LEVEL, "add_prefix_space": True}))
put("tokenizer", "unknown_merge", tokenizer([], model={"merges": [["a", "zz"]]}))
put("tokenizer", "no_byte", tokenizer([], model={"vocab": {"a": 0}}))
put("tokenizer", "id_twice", tokenizer([], added=False).replace('"\u0120":', '"\u0120\u0120":1,"\u0120":', 1))

# ---- config

good = ("model:\n  num_layers: 2\n  hidden_size: 8\n  num_attention_heads: 2\n  seq_length: 4\n  vocab_size: 100\n"
        "batch:\n  micro_batch_size: 1\n  global_batch_size: 2\noptimizer: {lr: 1e-3, clip_grad: .5}\n"
        "data:\n  path: \"a\\tb # c\"\ntrain:\n  train_iters: 1_000\n")
put("config", "sound", good)
put("config", "duplicate", good + "model:\n  num_layers: 3\n")
put("config", "list", "model: [1, 2]\n")
put("config", "anchor", "model: &a {num_layers: *a}\n")
put("config", "deep", "model: " + "[" * 40)
put("config", "two_documents", good + "---\n" + good)
put("config", "control", good + "#\x01\n")
put("config", "tag", "model: !!map {num_layers: !!int 3}\n")
put("config", "numbers", "model: {num_layers: 99999999999999999999, hidden_size: 1e400, seq_length: 0x10}\n")
put("config", "merge", "? {a: b}\n: {<<: {c: d}}\n")

# ---- weights: llm.c, Hugging Face


def llmc(version=3, positions=2, vocab=3, layers=1, heads=1, channels=2, padded=3, magic=20240326, values=None):
    c = channels
    count = padded * c + positions * c + layers * (12 * c * c + 13 * c) + 2 * c
    data = struct.pack("<%df" % count, *range(count)) if values is None else values
    header = [magic, version, positions, vocab, layers, heads, channels, padded]
    return b"L" + struct.pack("<256i", *header, *[0] * 248) + data


most = (1 << 31) - 1
put("weights", "llmc", llmc())
put("weights", "llmc_padded", llmc(padded=128))
put("weights", "llmc_bf16", llmc(version=5, values=bytes(2 * (6 + 4 + 48 + 26 + 4))))
put("weights", "llmc_cut_off", llmc()[:-1])
put("weights", "llmc_header", llmc()[:1000])
put("weights", "llmc_too_many", llmc(layers=most, values=b""))
put("weights", "llmc_largest", llmc(positions=10**7, vocab=10**9, layers=4, channels=10**6, padded=most, values=b""))
put("weights", "llmc_negative", llmc(channels=-1, values=b""))
put("weights", "llmc_padding", llmc(padded=-most - 1, values=b""))
put("weights", "llmc_heads", llmc(heads=3))


def hf_tensors(c=2, names=None):
    shapes = {"wte": [3, c], "wpe": [2, c], "ln_f": [c], "h.0.ln_1": [c], "h.0.ln_2": [c], "h.0.attn.c_attn": [c, 3 * c],
              "h.0.attn.c_proj": [c, c], "h.0.mlp.c_fc": [c, 4 * c], "h.0.mlp.c_proj": [4 * c, c]}
    all_of = {}
    for name, shape in shapes.items():
        all_of[name + ".weight"] = shape
        if not name.startswith("w"):
            all_of[name + ".bias"] = shape[-1:]
    return {name: shape for name, shape in all_of.items() if names is None or names(name)}


def hf_shard(shapes, dtype="F32"):
    header, at = {}, 0
    for name, shape in shapes.items():
        size = (4 if dtype == "F32" else 2) * int.__mul__(*([*shape, 1][:2]))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return tensors(json.dumps(header, separators=(",", ":")), bytes(i % 60 for i in range(at)))


def hf(config, index, first, second=b""):
    config, index = config.encode(), index.encode()
    return b"H" + struct.pack("<3H", len(config), len(index), len(first)) + config + index + first + second


gpt2 = {"model_type": "gpt2", "n_layer": 1, "n_embd": 2, "n_head": 1, "n_positions": 2, "vocab_size": 3}
whole = hf_shard(hf_tensors())
put("weights", "hf", hf(json.dumps(gpt2), "", whole))
put("weights", "hf_halves", hf(json.dumps(gpt2), "", hf_shard(hf_tensors(), "F16")))
put("weights", "hf_brain", hf(json.dumps(gpt2), "", hf_shard(hf_tensors(), "BF16")))
first, second = hf_tensors(names=lambda n: n < "h.0.m"), hf_tensors(names=lambda n: n >= "h.0.m")
places = {**{n: "1" for n in first}, **{n: "2" for n in second}}
put("weights", "hf_shards", hf(json.dumps(gpt2), json.dumps({"weight_map": places}), hf_shard(first), hf_shard(second)))
put("weights", "hf_leaves_the_folder", hf(json.dumps(gpt2), json.dumps({"weight_map": {"wte.weight": "../x"}}), whole))
put("weights", "hf_no_shard", hf(json.dumps(gpt2), json.dumps({"weight_map": {"wte.weight": "3"}}), whole))
put("weights", "hf_zero_in_name", hf(json.dumps(gpt2), '{"weight_map": {"a\\u0000b": "1"}}', whole))
put("weights", "hf_largest", hf(changed(gpt2, n_layer=4, n_embd=10**6, n_inner=4 * 10**6, n_head=1), "", whole))
put("weights", "hf_no_heads", hf(changed(gpt2, n_head=0), "", whole))
put("weights", "hf_untied", hf(changed(gpt2, tie_word_embeddings=False), "", whole))
put("weights", "hf_texts", hf(changed(gpt2, n_layer="1", layer_norm_epsilon=None), "", whole))

llama = {"model_type": "llama", "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2, "vocab_size": 3,
         "rope_theta": 500, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                                             "high_freq_factor": 4, "original_max_position_embeddings": 64}}
names = {"embed_tokens": [3, 4], "norm": [4], "layers.0.input_layernorm": [4], "layers.0.post_attention_layernorm": [4],
         "layers.0.self_attn.q_proj": [4, 4], "layers.0.self_attn.k_proj": [2, 4], "layers.0.self_attn.v_proj": [2, 4],
         "layers.0.self_attn.o_proj": [4, 4], "layers.0.mlp.gate_proj": [3, 4], "layers.0.mlp.up_proj": [3, 4],
         "layers.0.mlp.down_proj": [4, 3]}
llama_whole = {**{f"model.{n}.weight": shape for n, shape in names.items()}, "lm_head.weight": [3, 4]}
put("weights", "hf_llama", hf(json.dumps(llama), "", hf_shard(llama_whole)))
five = {k: v for k, v in llama.items() if k != "rope_scaling"} | {"rope_parameters": {**llama["rope_scaling"], "rope_theta": 500}}
put("weights", "hf_llama_five", hf(json.dumps(five), "", hf_shard(llama_whole, "BF16")))
put("weights", "hf_mistral", hf(changed(llama, model_type="mistral", sliding_window=2, head_dim=2), "", hf_shard(llama_whole)))
biases = {f"model.layers.0.self_attn.{n}_proj.bias": [2 if n != "q" else 4] for n in "qkv"}
put("weights", "hf_qwen2", hf(changed(llama, model_type="qwen2"), "", hf_shard({**llama_whole, **biases})))
put("weights", "hf_llama_largest", hf(changed(llama, head_dim=10**6, num_attention_heads=10**6), "", hf_shard(llama_whole)))

# ---- texts for `data prepare`: one byte for the format, then the file


def tar(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "a/0.txt"
            info.size = len(data or b"")
            archive.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()[:3584]  # the rest is zeros


lines = b'{"text": "one"}\n\n{"id": 2, "text": "two\\u00e9\\n"}\n{"text": ""}\n{"text": "no end of line"}'
put("text", "lines", b"J" + lines)
put("text", "lines_crlf", b"J" + lines.replace(b"\n", b"\r\n"))
put("text", "lines_gzip", b"j" + gzip.compress(lines, mtime=0))
put("text", "lines_two_members", b"j" + gzip.compress(lines + b"\n", mtime=0) + gzip.compress(lines, mtime=0) + bytes(8))
put("text", "lines_cut_off", b"j" + gzip.compress(lines, mtime=0)[:-9])
put("text", "lines_trailing_bytes", b"j" + gzip.compress(lines, mtime=0) + b"x")
ZSTD = bytes.fromhex("28b52ffd0458c90000") + lines[:25] + bytes(4)  # raw block; its checksum is wrong
put("text", "lines_zstd_damaged", b"Z" + ZSTD)
put("text", "words_xz", b"X" + lzma.compress(b"some words and some words"))
put("text", "words_xz_cut_off", b"X" + lzma.compress(b"some words and some words")[:-5])
put("text", "tar", b"T" + tar({"a/0.txt": b"one", "a/0.json": b"{}", "a/1.txt": b"two\n\nthree", "b.link": None}))
put("text", "tar_cut_off", b"T" + tar({"a.txt": b"one" * 300})[:700])
put("text", "tar_nested_gzip", b"T" + tar({"a.txt.gz": gzip.compress(b"one", mtime=0), "b.txt": b"\x1f\x8b\0"}))
put("text", "lines_no_text", b'J{"id": 1}\n')
put("text", "lines_text_twice", b'J{"text": "a", "text": "b"}\n')
put("text", "lines_text_is_a_list", b'J{"text": [[[[1]]]]}\n')
put("text", "lines_deep", b'J{"text": ' + b"[" * 2000 + b"]" * 2000 + b"}\n")
put("text", "lines_two_objects", b'J{"text": "a"}{"text": "b"}\n')
put("text", "lines_surrogate", b'J{"text": "\\ud800"}\n{"text": "\\ud83d\\ude00"}\n')
put("text", "lines_bad_utf8", b'J{"text": "\xff"}\n')
put("text", "lines_zero_byte", b'J{"text": "a"}\0{\n')
put("text", "lines_mark", b'J\xef\xbb\xbf{"text": "a"}\n')
put("text", "lines_no_object", b"J[1]\n2\nnull\n")
put("text", "file", b"Fall of it,\r\n to the byte\0\n")
put("text", "paragraphs", b"P one\nof two lines\n\n\n  two \t\n \nthree")
put("text", "entries", b"Eword\n  what it means\n\n  and more\n\nword two\n\n meaning")

# ---- MLPerf logs


def mllog(key, value, time=1_700_000_000_000, **metadata):
    return ":::MLLOG " + json.dumps({"namespace": "", "time_ms": time, "event_type": "POINT_IN_TIME", "key": key,
                                     "value": value, "metadata": {"file": "t.py", "lineno": 1, **metadata}}) + "\n"


start = [mllog("init_start", None), mllog("submission_benchmark", "llama31_8b"), mllog("global_batch_size", 32),
         mllog("seed", 1), mllog("opt_learning_rate_warmup_steps", 128), mllog("opt_learning_rate_decay_steps", 1199872),
         mllog("gradient_accumulation_steps", 2), mllog("init_stop", None), mllog("run_start", None)]
evaluations = [mllog("eval_accuracy", 3.5 - i / 25, 1_700_000_000_000 + i, samples_count=12288 * i) for i in range(1, 6)]
stopped = [mllog("run_stop", None, 1_700_000_000_009, status="success")]
put("mlperf", "llama31_8b", "".join(start + evaluations + stopped))
put("mlperf", "gpt3", "".join(start + [mllog("eval_accuracy", 2.7, epoch_num=50331648)] + stopped)
    .replace("llama31_8b", "gpt3").replace(": 32,", ": 2048,"))
put("mlperf", "llama31_405b", "".join(start + evaluations).replace("_8b", "_405b").replace(": 32,", ": 1536,"))
put("mlperf", "broken", "".join(start)[:-40] + ":::MLLOG {}\n:::MLLOG [1]\n")
put("mlperf", "nan", mllog("eval_accuracy", float("nan"), samples_count=float("-inf")) + mllog("seed", "\u00e9"))
put("mlperf", "latin_1", mllog("submission_org", "x").encode().replace(b"x", b"\xe9"))
put("mlperf", "deep", ":::MLLOG " + '{"a":' * 3000)
put("mlperf", "huge_numbers", "".join(start + evaluations).replace(": 32,", ": 1e308,").replace("12288", "9" * 30))
put("mlperf", "zero_interval", "".join(start + evaluations[:1] * 5).replace(": 3.46", ": 3.1"))
put("mlperf", "framework", "0: setting number of micro-batches to constant 4\n  micro_batch_size ......... 99999999999999999999\n"
    "  seq_length ..... 1\n" + "".join(start))

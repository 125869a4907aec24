"""Structure-aware mutations: of bytes with length fields, JSON, two-level YAML, and lines of text. All are functions of
a random.Random.
"""
import json
import re
import struct

INTEGERS = [0, 1, -1, 2, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**62, 2**63 - 1,
            2**63, -(2**63), 2**64 - 1, 2**64, 10**30]
NUMBERS = INTEGERS + [0.5, -0.5, 1e-320, 1e308, float("nan"), float("inf"), -float("inf")]
TEXTS = ["", " ", "x", "x" * 5000, "../../etc/passwd", "/dev/null", "/dev/zero", "a\0b", "a\nb", "\x1b[31m", "\ud800",
         "%s%n", "{}", "${HOME}", "é", "\u202e", "0", "-1", "1e3", "0x10", "1_000", "true", "null", "NaN", "~", "-", "[",
         "!!binary x", "&a", "*a", "<<"]


def number(random):
    return random.choice(NUMBERS) if random.random() < 0.8 else random.randrange(-10, 2000)


# ---- bytes


def packed(random, size):
    value = random.choice(INTEGERS) if random.random() < 0.7 else random.randrange(0, 300)
    return (value % (1 << (8 * size))).to_bytes(size, "little")


def mutate_bytes(random, data, fields=()):
    """`fields`: (offset, size) of the numbers in `data`, which are changed more often than the rest."""
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        if fields and random.random() < 0.6:
            at, size = random.choice(fields)
            data[at:at + size] = packed(random, size)
            continue
        at = random.randrange(len(data) + 1)
        length = random.choice([1, 1, 2, 8, 64, 4096])
        what = random.randrange(7)
        if what == 0:
            del data[at:]
        elif what == 1:
            del data[at:at + length]
        elif what == 2:
            data[at:at] = bytes(random.choices(range(256), k=min(length, 64)))
        elif what == 3 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif what == 4:
            data[at:at + length] = bytes([random.choice([0, 255])]) * min(length, len(data) - at)
        elif what == 5:
            data[at:at] = data[at:at + length]
        else:
            data[at:at + 8] = packed(random, 8)
    return bytes(data)


# ---- JSON, with objects as lists of pairs, so that a key can occur twice


class Pairs(list):
    pass


def to_text(value):
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{to_text(member)}" for key, member in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_text, value)) + "]"
    return value.text if isinstance(value, Raw) else json.dumps(value)


class Raw:
    def __init__(self, text):
        self.text = text


def any_json(random):
    return random.choice([lambda: number(random), lambda: random.choice(TEXTS), lambda: None, lambda: True, list, Pairs,
                          lambda: [number(random)], lambda: Pairs([("x", number(random))]),
                          lambda: Raw("[" * 3000 + "]" * 3000), lambda: Raw("[" * 300000 + "]" * 300000), lambda: Raw("1e999"), lambda: Raw("[" * 50000),
                          lambda: Raw("0" * 400 + "1"), lambda: Raw("9" * 400), lambda: [1] * 20000])()


def nodes_of(value, found):
    members = value if isinstance(value, list) else []
    for i, member in enumerate(members):
        found.append((value, i))
        nodes_of(member[1] if isinstance(value, Pairs) else member, found)
    return found


def mutate_value(random, old):
    """Another value of the same type, or any value."""
    if isinstance(old, bool) or old is None or isinstance(old, (list, Raw)) or random.random() < 0.3:
        return any_json(random)
    if isinstance(old, (int, float)):
        return random.choice([old + 1, old - 1, old * 2, -old, number(random), str(old)])
    return random.choice([random.choice(TEXTS), old + "x", old[:-1], old.upper(), old * 2])


def mutate_json(random, text):
    if random.random() < 0.2:
        return mutate_bytes(random, text.encode() if isinstance(text, str) else text)
    whole = json.loads(text, object_pairs_hook=Pairs)
    for _ in range(random.choice([1, 1, 2])):
        nodes = nodes_of(whole, [])
        if not nodes:
            break
        container, at = random.choice(nodes)
        member = container[at]
        what = random.randrange(6)
        if what == 0:
            del container[at]
        elif what == 1:
            container.append(member)  # in an object: a duplicate key
        elif isinstance(container, Pairs) and what == 2:
            container[at] = (random.choice(TEXTS + [member[0] + "x"]), member[1])
        elif isinstance(container, Pairs):
            container[at] = (member[0], mutate_value(random, member[1]))
        elif what == 3:
            other = random.randrange(len(container))
            container[at], container[other] = container[other], container[at]
        else:
            container[at] = mutate_value(random, member)
    return to_text(whole).encode("utf-8", "surrogatepass")


# ---- YAML of sections and keys, as in a run's file


def yaml_text(sections):
    return "".join(f"{section}:\n" + "".join(f"  {key}: {value}\n" for key, value in keys)
                   for section, keys in sections)


def yaml_scalar(random):
    value = random.choice([lambda: number(random), lambda: random.choice(TEXTS), lambda: "auto", lambda: "[1, 2]",
                           lambda: "{a: b}", lambda: "[" * 3000, lambda: "'unclosed", lambda: '"\\q"', lambda: "|\n  x",
                           lambda: "1e400", lambda: "1" * 400, lambda: "2 # 3", lambda: "0b1", lambda: "1:30"])()
    return str(value).encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\n", "\n    ")


def plausible(random, words):
    return random.choice(words or ["0", "1", "2", "3", "4", "8", "16", "0.5", "true", "false", "auto"])


def mutate_yaml(random, sections, all_keys):
    """`sections`: [(name, [(key, value)])]; `all_keys`: {section: [(key, words)]}, the keys that may be set."""
    sections = [(name, list(keys)) for name, keys in sections]
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        index = random.randrange(len(sections))
        name, keys = sections[index]
        what = random.randrange(10)
        if what <= 3 and keys:
            at = random.randrange(len(keys))
            keys[at] = (keys[at][0], plausible(random, []) if random.random() < 0.4 else yaml_scalar(random))
        elif what <= 6:
            name = random.choice(list(all_keys))
            key, words = random.choice(all_keys[name])
            sections.append((name, [(key, plausible(random, words) if random.random() < 0.5 else yaml_scalar(random))]))
            merge_sections(sections)
        elif what == 7 and keys:
            del keys[random.randrange(len(keys))]
        elif what == 8 and keys:
            key, value = random.choice(keys)
            keys.append((key, random.choice([value, yaml_scalar(random)])))
        else:
            keys.append((random.choice(["", "no_such_key", "?", "<<", "x y", "é", "num_layer"]), yaml_scalar(random)))
    text = yaml_text(sections).encode("utf-8", "surrogateescape")
    if random.random() < 0.2:
        text = random.choice([
            lambda: b"\xef\xbb\xbf" + text, lambda: text.replace(b"\n", b"\r\n"), lambda: text.replace(b"  ", b"\t"),
            lambda: text + b"---\n" + text, lambda: text + text, lambda: b"- " + text, lambda: b"", lambda: b"\0" + text,
            lambda: mutate_bytes(random, text), lambda: text.replace(b": ", b" "), lambda: b"#" * 100000 + b"\n" + text,
            lambda: text.decode("utf-8", "replace").encode("utf-16")])()
    return text


def merge_sections(sections):
    merged = {}
    for name, keys in sections:
        merged.setdefault(name, []).extend(keys)
    sections[:] = list(merged.items())


# ---- lines


def mutate_lines(random, text):
    if random.random() < 0.2:
        return mutate_bytes(random, text)
    lines = text.split(b"\n")
    for _ in range(random.choice([1, 1, 2, 4])):
        at, other = random.randrange(len(lines)), random.randrange(len(lines))
        what = random.randrange(5)
        if what == 0:
            lines[at], lines[other] = lines[other], lines[at]
        elif what == 1 and len(lines) > 1:
            del lines[at]
        elif what == 2:
            lines.insert(at, lines[other])
        elif what == 3:
            words = re.findall(rb"\d+", lines[at])
            if words:
                lines[at] = lines[at].replace(random.choice(words), str(number(random)).encode(), 1)
        else:
            lines[at] = mutate_bytes(random, lines[at]).replace(b"\n", b"")
    return b"\n".join(lines)


# ---- the number fields of binary files


def index_fields(data):
    """The fields of PREFIX.idx: magic, version, dtype, counts, and some lengths, pointers and documents."""
    sequences, documents = struct.unpack_from("<QQ", data, 18)
    fields = [(0, 8), (9, 8), (17, 1), (18, 8), (26, 8)] * 3
    at = 34
    for count, size in ((sequences, 4), (sequences, 8), (documents, 8)):
        fields += [(at + i * size, size) for i in {0, 1, count // 2, count - 1} if 0 <= i < count]
        at += count * size
    return [(at, size) for at, size in fields if at + size <= len(data)]


def swap_lengths(random, data):
    """A valid PREFIX.idx of the same size: two neighbouring sequences of different lengths swap their lengths."""
    data, (sequences, _) = bytearray(data), struct.unpack_from("<QQ", data, 18)
    lengths = struct.unpack_from(f"<{sequences}i", data, 34)
    i = random.choice([i for i in range(sequences - 1) if lengths[i] != lengths[i + 1]])
    pointer = 34 + 4 * sequences + 8 * i
    begin, end = struct.unpack_from("<qq", data, pointer)
    struct.pack_into("<ii", data, 34 + 4 * i, lengths[i + 1], lengths[i])
    struct.pack_into("<q", data, pointer + 8, begin + (end - begin) // lengths[i] * lengths[i + 1])
    return bytes(data)


def mutate_safetensors(random, data):
    """Changes the length of the header, the header as JSON, or any byte."""
    length = struct.unpack_from("<Q", data)[0]
    if random.random() < 0.3:
        return mutate_bytes(random, data, [(0, 8)])
    header = mutate_json(random, data[8:8 + length])
    return struct.pack("<Q", len(header)) + header + data[8 + length:]

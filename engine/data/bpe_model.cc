#include "engine/data/bpe_model.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <initializer_list>
#include <map>

#include "base/check.h"
#include "base/content_hash.h"
#include "base/files.h"
#include "base/json.h"

namespace trivet {
namespace {

using nlohmann::json;

constexpr size_t kPartHash = 16;  // characters of each hash in a fingerprint

// The alphabet of GPT-2: printable bytes of Latin-1 map to themselves, the others to U+0100 and up, in order.
constexpr auto kCodeOfByte = [] {
  std::array<uint16_t, 256> codes{};
  uint16_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (33 <= b && b <= 126) || (161 <= b && b <= 172) || b >= 174;
    codes[static_cast<size_t>(b)] = printable ? static_cast<uint16_t>(b) : next++;
  }
  return codes;
}();

// Checks an option that is implemented only with these values; it may be absent unless `required`.
void expect_value(const JsonReader& reader, const json& object, const char* name, std::initializer_list<json> values,
                  bool required = false) {
  const auto at = object.find(name);
  if (at == object.end() ? !required : std::ranges::find(values, *at) != values.end()) return;
  std::vector<std::string> expected;
  for (const json& value : values) expected.push_back(value.dump());
  reader.refuse(name, at == object.end() ? "nothing" : at->dump().substr(0, 200),
                fmt::format("{}: nothing else is implemented", fmt::join(expected, " or ")));
}

// A member's parts: those in `list` if it is a Sequence, none if it is null, else the member itself.
void add_parts(const json& member, const char* list, const std::string& where, std::vector<json>& parts) {
  if (member.is_null()) return;
  const JsonReader reader(member, where);
  if (reader.text("type") != "Sequence") return parts.push_back(member);
  for (const json& part : reader.array(list)) add_parts(part, list, where, parts);
}

std::vector<json> parts_of(const json& whole, const char* name, const char* list, const JsonReader& file) {
  std::vector<json> parts;
  add_parts(whole.value(name, json()), list, fmt::format("{}: {}", file.where(), name), parts);
  return parts;
}

// The last split is written as a ByteLevel, if possible.
json pre_tokenizer_of(const std::vector<BpeSplit>& splits) {
  json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  json parts = json::array();
  for (size_t i = 0; i < splits.size(); ++i) {
    const auto& [regex, keep, prefix_space] = splits[i];
    const bool gpt2 = regex == regex_of(BpePattern::gpt2), all = keep == BpeSplit::Keep::all;
    if (i + 1 == splits.size() && all && (gpt2 || regex.empty()))
      level.update({{"add_prefix_space", prefix_space}, {"use_regex", gpt2}});
    else
      parts.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", regex}}},
                       {"behavior", all ? "Isolated" : "Removed"},
                       {"invert", keep == BpeSplit::Keep::matches}});
  }
  if (parts.empty()) return level;
  parts.push_back(level);
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

BpeSplit split_of(const json& part, const JsonReader& reader) {
  expect_value(reader, part, "behavior", {"Isolated", "Removed"}, true);
  expect_value(reader, part, "invert", {false, true});
  const JsonReader pattern = reader.object("pattern");
  BpeSplit split;
  if (reader.member("pattern").contains("Regex")) split.regex = pattern.text("Regex");
  else
    for (const char c : pattern.text("String")) {
      if (std::ispunct(static_cast<unsigned char>(c))) split.regex += '\\';
      split.regex += c;
    }
  try {
    const PieceRegex regex(split.regex);
    const bool inverted = part.value("invert", false), loses = !inverted || !regex.always_matches();
    if (part["behavior"] == "Removed" && loses) split.keep = inverted ? BpeSplit::Keep::matches : BpeSplit::Keep::gaps;
  } catch (const DataError& error) {
    reader.refuse("pattern", error.what(), "what is implemented");
  }
  return split;
}

std::vector<BpeSplit> read_splits(const json& whole, const JsonReader& file) {
  std::vector<BpeSplit> splits;
  std::string type;
  for (const json& part : parts_of(whole, "pre_tokenizer", "pretokenizers", file)) {
    const JsonReader reader(part, file.where() + ": pre_tokenizer");
    if (type == "ByteLevel") reader.refuse("type", part["type"].dump(), "nothing after ByteLevel");
    expect_value(reader, part, "type", {"Split", "Digits", "ByteLevel"});
    type = part["type"];
    if (type == "Split") {
      splits.push_back(split_of(part, reader));
    } else if (type == "Digits") {
      expect_value(reader, part, "individual_digits", {false, true});
      // Numbers as in Rust's library, which follows Unicode 17.
      splits.push_back({"[\\p{N}\U00011de0-\U00011de9\U00016ff4-\U00016ff6]"});
      if (!part.value("individual_digits", false)) splits.back().regex += '+';
    } else {
      expect_value(reader, part, "add_prefix_space", {false, true}, true);
      expect_value(reader, part, "use_regex", {true, false});
      if (part.value("use_regex", true)) splits.push_back(splits_of(BpePattern::gpt2)[0]);
      else if (part["add_prefix_space"]) splits.emplace_back();
      if (part["add_prefix_space"]) splits.back().prefix_space = true;
    }
  }
  if (type != "ByteLevel")
    file.refuse("pre_tokenizer", whole.value("pre_tokenizer", json()).dump().substr(0, 400),
                "ByteLevel, or a Sequence that ends with it, of Split and Digits: nothing else is implemented");
  return splits;
}

// The post-processor that prepends a special token to a text, and to each text of a pair.
json template_of(const std::string& token, int32_t id) {
  json texts[] = {json::array(), json::array()};
  for (const int type : {0, 1}) {
    texts[type].push_back({{"SpecialToken", {{"id", token}, {"type_id", type}}}});
    texts[type].push_back({{"Sequence", {{"id", type == 0 ? "A" : "B"}, {"type_id", type}}}});
  }
  json pair = texts[0];
  pair.insert(pair.end(), texts[1].begin(), texts[1].end());
  return {{"type", "TemplateProcessing"},
          {"single", texts[0]},
          {"pair", pair},
          {"special_tokens", {{token, {{"id", token}, {"ids", json::array({id})}, {"tokens", json::array({token})}}}}}};
}

json post_processor_of(const BpeModel& model) {
  return model.begin.empty() ? json() : template_of(model.begin, model.special(model.begin, "--bos-token"));
}

// The token that the post-processor prepends to a text. A ByteLevel changes only offsets.
std::string begin_of(const JsonReader& file, const json& whole, const BpeModel& model) {
  const auto member = [](const json& object, const char* name) {
    return object.is_object() ? object.value(name, json()) : json();
  };
  const json found = whole.value("post_processor", json());
  json parts = member(found, "type") == "Sequence" ? member(found, "processors") : json();
  if (!parts.is_array()) parts = json::array({found});
  std::erase_if(parts.get_ref<json::array_t&>(),
                [&](const json& part) { return part.is_null() || member(part, "type") == "ByteLevel"; });
  if (parts.empty()) return "";
  const json only = parts.size() == 1 ? parts[0] : json(), single = member(only, "single");
  if (member(only, "type") == "TemplateProcessing") {
    for (const BpeModel::Added& token : model.added) {
      const json expected = template_of(token.text, token.id);
      if (token.special && single == expected["single"] &&
          member(member(only, "special_tokens"), token.text.c_str()) == expected["special_tokens"][token.text])
        return token.text;
    }
    if (single == json::array({template_of("", 0)["single"][1]})) return "";
  }
  file.refuse("post_processor", found.dump().substr(0, 400),
              "ByteLevel, or a TemplateProcessing whose \"single\" is $A, or a special token and $A: nothing else is "
              "implemented");
}

BpeModel::Added added_token(const json& object, const std::string& where) {
  const JsonReader reader(object, where + ": added_tokens");
  for (const char* name : {"single_word", "lstrip", "rstrip"}) expect_value(reader, object, name, {false});
  const auto flag = [&](const char* name) {
    expect_value(reader, object, name, {true, false}, true);
    return object[name].get<bool>();
  };
  BpeModel::Added token{static_cast<int32_t>(reader.integer("id", 0, INT32_MAX)), reader.text("content"),
                        flag("normalized"), flag("special")};
  if (token.text.empty()) reader.refuse("content", "\"\"", "a string");
  return token;
}

void read_vocab(const json& vocab, const JsonReader& reader, BpeModel& model) {
  const JsonReader ids(vocab, reader.where() + ": vocab");
  for (const auto& [token, id] : vocab.items())
    model.vocab[token] = static_cast<int32_t>(ids.integer(token.c_str(), 0, INT32_MAX));
}

void add_merge(const std::string& left, const std::string& right, const JsonReader& reader, BpeModel& model) {
  std::array<int32_t, 3> merge{};
  const std::string names[] = {left, right, left + right};
  for (size_t i = 0; i < 3; ++i) {
    const auto found = model.vocab.find(names[i]);
    if (found == model.vocab.end())
      reader.refuse("merges", fmt::format("{} in place {}", json_text(left + " " + right), model.merges.size() + 1),
                    "a vocabulary with " + json_text(names[i]));
    merge[i] = found->second;
  }
  model.merges.push_back(merge);
}

void add_merge(std::string_view pair, const JsonReader& reader, BpeModel& model) {
  const size_t blank = pair.find(' ');
  if (blank == pair.npos || pair.find(' ', blank + 1) != pair.npos)
    reader.refuse("merges", fmt::format("{} in place {}", json_text(pair.substr(0, 60)), model.merges.size() + 1),
                  "two tokens with a space between");
  add_merge(std::string(pair.substr(0, blank)), std::string(pair.substr(blank + 1)), reader, model);
}

// Fills `tokens`. No id may occur twice, most ids up to the last must exist, and every byte must be a token.
void index_tokens(const JsonReader& reader, BpeModel& model) {
  std::unordered_map<std::string, int32_t> all = model.vocab;
  for (const BpeModel::Added& token : model.added) {
    const auto [known, fresh] = all.try_emplace(token.text, token.id);
    const int32_t expected = fresh ? static_cast<int32_t>(all.size()) - 1 : known->second;  // as in `tokenizers`
    if (token.id != expected)
      reader.refuse("added_tokens", fmt::format("{} with id {}", json_text(token.text), token.id),
                    fmt::format("{}", expected));
  }
  for (const auto& [token, id] : all) {
    const auto place = static_cast<size_t>(id);
    if (place >= model.tokens.size() && place < 2 * all.size()) model.tokens.resize(place + 1);
    if (place >= model.tokens.size() || !model.tokens[place].empty() || token.empty())
      reader.refuse("vocab", fmt::format("{} with id {}", json_text(token), id),
                    fmt::format("the ids of {} tokens from 0 on, each for one", all.size()));
    model.tokens[place] = token;
  }
  for (int byte = 0; byte < 256; ++byte)
    if (const std::string letter = bpe_letter(static_cast<uint8_t>(byte)); !model.vocab.contains(letter))
      reader.refuse("vocab", fmt::format("no \"{}\" for the byte 0x{:02X}", letter, byte), "a token for each byte");
}

}  // namespace

std::string bpe_letter(uint8_t byte) {
  const unsigned code = kCodeOfByte[byte];
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

std::optional<std::string> bpe_bytes(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const auto lead = static_cast<uint8_t>(token[0]);
    const bool two = (lead & 0xe0) == 0xc0 && token.size() > 1;
    const unsigned code = two ? (lead & 0x1fu) << 6 | (static_cast<uint8_t>(token[1]) & 0x3fu) : lead;
    const auto found = std::ranges::find(kCodeOfByte, code);
    if (found == kCodeOfByte.end()) return std::nullopt;
    bytes += static_cast<char>(found - kCodeOfByte.begin());
    token.remove_prefix(two ? 2 : 1);
  }
  return bytes;
}

int32_t BpeModel::special(const std::string& text, const std::string& where) const {
  std::vector<std::string> others;
  for (const Added& token : added) {
    if (token.special && token.text == text) return token.id;
    if (token.special && others.size() < 12) others.push_back(token.text);
  }
  throw ConfigError(fmt::format("{}: found \"{}\", which is not a special token of the tokenizer: it has {}", where,
                                text, others.empty() ? "none" : fmt::format("{}", fmt::join(others, ", "))));
}

BpeModel parse_bpe_model(std::string_view bytes, const std::string& name) {
  const json whole = parse_strict_json(bytes, name);
  const JsonReader file(whole, name);
  BpeModel out;
  // "truncation" and "padding" are left over from the last call of transformers, and do not apply to whole documents.
  for (const json& part : parts_of(whole, "normalizer", "normalizers", file)) {
    expect_value(JsonReader(part, name + ": normalizer"), part, "type", {"NFC"});
    out.nfc = true;
  }
  for (const json& part : parts_of(whole, "decoder", "decoders", file))  // Fuse joins texts, as decoding does here
    expect_value(JsonReader(part, name + ": decoder"), part, "type", {"ByteLevel", "Fuse"});
  out.splits = read_splits(whole, file);

  const JsonReader model = file.object("model");
  const json& object = file.member("model");
  expect_value(model, object, "type", {"BPE"});  // missing in GPT-2's own file
  expect_value(model, object, "dropout", {nullptr, 0.0});
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"})
    expect_value(model, object, option, {nullptr, ""});
  expect_value(model, object, "byte_fallback", {false, true});  // no effect: no byte is unknown
  expect_value(model, object, "ignore_merges", {false, true});
  out.ignore_merges = object.value("ignore_merges", false);
  read_vocab(model.member("vocab"), model, out);
  for (const json& merge : model.array("merges")) {
    if (merge.is_string()) add_merge(merge.get_ref<const std::string&>(), model, out);
    else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      add_merge(merge[0].get<std::string>(), merge[1].get<std::string>(), model, out);
    else model.refuse("merges", merge.dump().substr(0, 60), "\"a b\" or [\"a\", \"b\"]");
  }
  if (whole.contains("added_tokens"))
    for (const json& token : file.array("added_tokens")) out.added.push_back(added_token(token, name));
  index_tokens(model, out);
  out.begin = begin_of(file, whole, out);
  return out;
}

BpeModel read_bpe_vocab(const std::string& path, const std::vector<std::string>& special) {
  BpeModel model;
  read_vocab(parse_strict_json(read_small_file(path, kMaxBpeBytes), path), JsonReader(json::object(), path), model);
  std::string merges = path;
  merges.replace(merges.rfind("vocab.json"), std::string::npos, "merges.txt");
  const std::string lines = read_small_file(merges, kMaxBpeBytes);
  const json nothing = json::object();
  const JsonReader reader(nothing, merges);
  for (std::string_view rest = lines; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("#version")) add_merge(line, reader, model);
  }
  for (const std::string& text : special)
    if (const auto found = model.vocab.find(text); found != model.vocab.end())
      model.added.push_back({found->second, text});
  index_tokens(JsonReader(nothing, path), model);
  return model;
}

std::string to_tokenizer_json(const BpeModel& model) {
  const auto name = [&](int32_t id) { return model.tokens[static_cast<size_t>(id)]; };
  json added = json::array(), merges = json::array();
  for (const auto& [id, text, normalized, special] : model.added)
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", normalized},
                     {"special", special}});
  for (const auto& [left, right, result] : model.merges) merges.push_back(json::array({name(left), name(right)}));
  json file = {{"version", "1.0"},
               {"added_tokens", added},
               {"normalizer", model.nfc ? json{{"type", "NFC"}} : json()},
               {"pre_tokenizer", pre_tokenizer_of(model.splits)},
               {"decoder", pre_tokenizer_of(splits_of(BpePattern::gpt2))},
               {"model",
                {{"type", "BPE"},
                 {"fuse_unk", false},
                 {"byte_fallback", false},
                 {"ignore_merges", model.ignore_merges},
                 {"vocab", model.vocab},
                 {"merges", merges}}}};
  if (!model.begin.empty()) file["post_processor"] = post_processor_of(model);
  return file.dump() + "\n";
}

std::string with_begin(std::string_view bytes, const BpeModel& model) {
  json file = parse_json(bytes);
  file["post_processor"] = post_processor_of(model);
  return file.dump() + "\n";
}

std::string bpe_fingerprint(const BpeModel& model) {
  json rules = {{"nfc", model.nfc}, {"ignore_merges", model.ignore_merges}};
  for (const auto& [regex, keep, prefix_space] : model.splits)
    rules["splits"].push_back({regex, static_cast<int>(keep), prefix_space});
  // The order of the two searches matters if both kinds are present.
  const auto normalized = std::ranges::count_if(model.added, &BpeModel::Added::normalized);
  const bool kinds = model.nfc || (normalized > 0 && normalized < std::ssize(model.added));
  std::map<int32_t, bool> added;
  for (const BpeModel::Added& token : model.added) added[token.id] = kinds && token.normalized;
  rules["added"] = added;
  std::string fingerprint;
  for (const json& part : {json(model.tokens), json(model.merges), rules})
    fingerprint += (fingerprint.empty() ? "" : "-") + content_hash(part.dump()).substr(0, kPartHash);
  return fingerprint;
}

std::string bpe_difference(const std::string& fingerprint, const std::string& other) {
  std::string differing;
  if (fingerprint.size() != 3 * kPartHash + 2 || fingerprint.size() != other.size()) return differing;
  size_t at = 0;
  for (const char* name : {"tokens", "merges", "rules for splitting and normalising text"}) {
    if (fingerprint.compare(at, kPartHash, other, at, kPartHash) != 0)
      differing += (differing.empty() ? ": they differ in " : ", ") + std::string(name);
    at += kPartHash + 1;
  }
  return differing;
}

std::string to_tokenizer_config(const BpeEnds& ends, const std::string& source) {
  json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  if (file_exists(source)) {
    const json whole = parse_strict_json(read_small_file(source, kMaxBpeBytes), source);
    const JsonReader is_object(whole, source);
    config.update(whole);
  }
  config.update({{"eos_token", ends.eod}, {"add_bos_token", !ends.bos.empty()}});
  if (!ends.bos.empty()) config["bos_token"] = ends.bos;
  return config.dump(2) + "\n";
}

BpeEnds read_tokenizer_config(const std::string& path) {
  const json whole = parse_strict_json(read_small_file(path, kMaxBpeBytes), path);
  const JsonReader file(whole, path);
  // A string or, as older versions of transformers write it, an object.
  const auto token = [&](const char* name) {
    const json& value = file.member(name);
    return value.is_object() ? file.object(name).text("content") : file.text(name);
  };
  expect_value(file, whole, "add_bos_token", {false, true});
  return {token("eos_token"), whole.value("add_bos_token", false) ? token("bos_token") : "", path + ": eos_token",
          path + ": bos_token"};
}

// A suggestion, not a default: a chat model's eos_token may be the end of a turn.
std::string eos_token_beside(const std::string& model) {
  const std::string config = tokenizer_config_of(model);
  if (file_exists(config)) try {
      return fmt::format("{} names eos_token {}", config, read_tokenizer_config(config).eod);
    } catch (const DataError&) {  // no eos_token
    }
  return "the file does not say which it is";
}

void expect_no_begin(const BpeModel& model, const std::string& asked, const std::string& name) {
  if (model.begin.empty()) return;
  throw ConfigError(fmt::format(
      "{0}: its post_processor puts {1} in front of every text, and --bos-token is {2}; expected --bos-token {1}, "
      "which begins every document with it too, or none, which removes it from the tokenizer.json that is written",
      name, model.begin, asked.empty() ? "not given" : asked));
}

}  // namespace trivet

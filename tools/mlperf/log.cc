#include "tools/mlperf/log.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/files.h"
#include "base/scalar.h"

namespace trivet::mlperf {
namespace {

constexpr std::string_view kToken = ":::MLLOG ";
constexpr size_t kMostBroken = 10, kMostText = 100;

// Megatron-LM's arguments, with the keys that log the same values.
constexpr std::pair<std::string_view, std::string_view> kArguments[] = {
    {"tensor_model_parallel_size", "tensor_parallelism"},
    {"pipeline_model_parallel_size", "pipeline_parallelism"},
    {"context_parallel_size", "context_parallelism"},
    {"expert_model_parallel_size", "expert_parallelism"},
    {"micro_batch_size", "micro_batch_size"},
    {"global_batch_size", "global_batch_size"},
    {"seq_length", "max_sequence_length"},
};

// Drops lists and objects: they may be large, or nested so deeply that the library's recursion overflows the stack.
nlohmann::json scalar_of(nlohmann::json& value) {
  return value.is_structured() ? nlohmann::json(nlohmann::json::value_t::discarded) : std::move(value);
}

// Replaces Python's NaN and Infinity, which JSON lacks, with null, and bytes that are not ASCII with '?'.
std::string repaired(std::string_view text) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const std::string_view rest = text.substr(i);
    const size_t word = quoted ? 0 : rest.starts_with("NaN") ? 3 : rest.starts_with("Infinity") ? 8 : 0;
    if (word > 0) {
      if (out.ends_with('-')) out.pop_back();
      out += "null";
      i += word - 1;
      continue;
    }
    if (c == '"') quoted = !quoted;
    out += static_cast<unsigned char>(c) < 0x80 ? c : '?';
    if (quoted && c == '\\' && i + 1 < text.size()) out += text[++i];
  }
  return out;
}

Printed printed(int64_t line, int64_t value, std::string_view text) {
  return {line, value, std::string(text.substr(0, kMostText))};
}

// The integer at the start of the text, after spaces and dots.
std::optional<int64_t> leading_integer(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" ."), text.size()));
  return parse_integer(text.substr(0, text.find_first_not_of("0123456789")));
}

// Reads a line of the program's own output.
void read_output(std::string_view line, int64_t number, Log& log) {
  constexpr std::string_view kSetting = "setting number of micro", kConstant = "batches to constant ";
  if (const size_t at = line.find(kSetting); at != line.npos) {
    const size_t end = line.find(kConstant, at);
    if (end == line.npos) return;
    if (const auto value = leading_integer(line.substr(end + kConstant.size())))
      log.micro_batches.push_back(printed(number, *value, line.substr(at)));
    return;
  }
  const size_t dots = line.find(" ...");
  if (dots == line.npos || dots == 0) return;
  const std::string_view before = line.substr(0, dots), name = before.substr(before.rfind(' ') + 1);
  for (const auto& [argument, key] : kArguments)
    if (const auto value = leading_integer(line.substr(dots)); name == argument && value)
      log.arguments.try_emplace(std::string(key), printed(number, *value, line.substr(dots - name.size())));
}

}  // namespace

std::optional<double> Record::position(const char* member) const {
  const auto at = metadata.find(member);
  return at != metadata.end() && at->is_number() ? std::optional(at->get<double>()) : std::nullopt;
}

std::optional<std::string_view> record_text(std::string_view line) {
  const size_t at = line.rfind(kToken);
  return at == line.npos ? std::nullopt : std::optional(line.substr(at + kToken.size()));
}

std::optional<Record> parse_record(std::string_view text) {
  auto json = parse_json(text, BadJson::discarded);
  if (json.is_discarded()) json = parse_json(repaired(text), BadJson::discarded);
  if (!json.is_object()) return {};
  const auto time = json.find("time_ms"), key = json.find("key"), value = json.find("value");
  const auto metadata = json.find("metadata");
  if (time == json.end() || !time->is_number() || !std::isfinite(time->get<double>())) return {};
  if (key == json.end() || !key->is_string() || value == json.end() || metadata == json.end()) return {};
  Record record{.time_ms = time->get<double>(), .key = key->get<std::string>(), .value = scalar_of(*value)};
  if (metadata->is_object())
    for (const auto& [name, member] : metadata->items())
      if (!member.is_structured()) record.metadata[name] = std::move(member);
  return record;
}

const std::vector<Record>& Log::all(std::string_view key) const {
  static const std::vector<Record> none;
  const auto at = records.find(key);
  return at == records.end() ? none : at->second;
}

const Record* Log::first(std::string_view key) const {
  const std::vector<Record>& found = all(key);
  return found.empty() ? nullptr : &found.front();
}

std::optional<double> Log::number(std::string_view key) const {
  const Record* record = first(key);
  return record && record->is_number() ? std::optional(record->number()) : std::nullopt;
}

std::string Log::text(std::string_view key) const {
  const Record* record = first(key);
  return record && record->value.is_string() ? record->value.get<std::string>() : "";
}

std::string record_line(const Record& record, EventType type) {
  const nlohmann::ordered_json json = {{"namespace", ""},
                                       {"time_ms", std::llround(record.time_ms)},
                                       {"event_type", word_of(type)},
                                       {"key", record.key},
                                       {"value", record.value},
                                       {"metadata", record.metadata}};
  return std::string(kToken) + json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

Log read_log(const std::string& path) {
  Log log;
  log.path = path;
  std::optional<Record> last;  // the previous record, from run_start on
  const auto read = [&](const std::string& line, int64_t number) {
    const auto text = record_text(line);
    if (!text) return read_output(line, number, log);
    auto record = parse_record(*text);
    if (!record) {
      if (log.broken.size() < kMostBroken) log.broken.push_back(printed(number, 0, *text));
      return;
    }
    record->line = number;
    const bool structured = record->value.is_discarded();
    if (!structured && (last || record->key == "run_start")) {
      if (last && record->time_ms < last->time_ms && !log.back) log.back.emplace(*last, *record);
      last = *record;
    }
    std::vector<Record>& known = log.records[record->key];
    if (!structured || known.empty()) known.push_back(std::move(*record));
  };
  for_each_line(path, read, TornLine::read);
  return log;
}

}  // namespace trivet::mlperf

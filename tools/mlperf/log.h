// The log of an MLPerf Training run: its lines, and the parts that the linter keeps. The format is that of
// mlperf_logging 4.1.68 (writer: mllog/mllog.py, reader: compliance_checker/mlp_parser/ruleset_610.py):
//
//   :::MLLOG {"namespace": "", "time_ms": 1715043829220, "event_type": "INTERVAL_START", "key": "run_start",
//             "value": null, "metadata": {"file": "train.py", "lineno": 405}}
//
// on one line. Text before the line's last ":::MLLOG " is dropped, so records survive prefixes added by launchers;
// time_ms, key, value and metadata are required. All other lines are the program's own output.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/words.h"

namespace trivet::mlperf {

struct Record {
  int64_t line = 0;    // line number in its file, from 1
  double time_ms = 0;  // since 1970
  std::string key;
  nlohmann::json value;                                  // a scalar; discarded if it was a list or an object
  nlohmann::json metadata = nlohmann::json::object({});  // only its scalars

  bool is_number() const { return value.is_number(); }
  double number() const { return value.get<double>(); }  // REQUIRES: is_number()
  // A number in the metadata; empty if it is missing or not a number.
  std::optional<double> position(const char* member) const;
};

enum class EventType { interval_start, interval_end, point_in_time };
constexpr auto words_of(EventType) { return word_list("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"); }
// The log line, newline included, that parse_record() parses back into the record.
std::string record_line(const Record& record, EventType type);

// The text after the last ":::MLLOG "; empty if the line contains none.
std::optional<std::string_view> record_text(std::string_view line);
// Empty if it is not a record. Like the official reader, accepts NaN and Infinity (as null) and any bytes in strings.
std::optional<Record> parse_record(std::string_view text);

// A number that Megatron-LM or NeMo printed between its records.
struct Printed {
  int64_t line = 0;
  int64_t value = 0;
  std::string text;
};

struct Log {
  std::string path;
  std::map<std::string, std::vector<Record>, std::less<>> records;  // by key, in order; lists and objects only if first
  std::vector<Printed> broken;                    // the first ten lines with ":::MLLOG " that are not valid records
  std::optional<std::pair<Record, Record>> back;  // from run_start on: the first record pair out of order
  // Micro-batch counts, from "setting number of microbatches to constant N" (num_microbatches_calculator.py).
  std::vector<Printed> micro_batches;
  // Megatron-LM's argument table, "name ........ value", by the key that logs the same value (tensor_parallelism, …).
  std::map<std::string, Printed, std::less<>> arguments;

  const std::vector<Record>& all(std::string_view key) const;  // may be empty
  const Record* first(std::string_view key) const;             // null: none
  std::optional<double> number(std::string_view key) const;    // of first()
  std::string text(std::string_view key) const;                // the same; "" if it is not a string
};

// Reads the file in one pass. Throws IoError, or DataError if it is not a regular file.
Log read_log(const std::string& path);

}  // namespace trivet::mlperf

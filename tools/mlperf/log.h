// The log of an MLPerf Training run: its lines, and the parts that the linter keeps. The format is the one that
// mlperf_logging 4.1.68 writes (mllog/mllog.py) and reads (compliance_checker/mlp_parser/ruleset_610.py):
//
//   :::MLLOG {"namespace": "", "time_ms": 1715043829220, "event_type": "INTERVAL_START", "key": "run_start",
//             "value": null, "metadata": {"file": "train.py", "lineno": 405}}
//
// on one line. Text before the line's last ":::MLLOG " is dropped, so records survive the prefixes of launchers;
// time_ms, key, value and metadata are required. Other lines are the program's own output.
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
  int64_t line = 0;    // in its file, from 1
  double time_ms = 0;  // since 1970
  std::string key;
  nlohmann::json value;                                  // a scalar; discarded: the line has a list or an object
  nlohmann::json metadata = nlohmann::json::object({});  // only its scalars

  bool is_number() const { return value.is_number(); }
  double number() const { return value.get<double>(); }  // REQUIRES: is_number()
  // A number in the metadata; empty if it is missing or not a number.
  std::optional<double> position(const char* member) const;
};

enum class EventType { interval_start, interval_end, point_in_time };
constexpr auto words_of(EventType) { return word_list("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"); }
// The line, with its newline, from which parse_record() restores the record.
std::string record_line(const Record& record, EventType type);

// The text after the last ":::MLLOG "; empty: there is none.
std::optional<std::string_view> record_text(std::string_view line);
// Empty: not a record. Like the official reader, accepts Python's NaN and Infinity, as null, and any bytes in strings.
std::optional<Record> parse_record(std::string_view text);

// A number that Megatron-LM or NeMo printed between its records.
struct Printed {
  int64_t line = 0;
  int64_t value = 0;
  std::string text;
};

struct Log {
  std::string path;
  std::map<std::string, std::vector<Record>, std::less<>> records;  // by key, in order; structured values only if first
  std::vector<Printed> broken;                    // the first ten lines with ":::MLLOG " that are not records
  std::optional<std::pair<Record, Record>> back;  // the first neighbours from run_start on whose times run back
  // Numbers of micro-batches, from "setting number of microbatches to constant N" (num_microbatches_calculator.py).
  std::vector<Printed> micro_batches;
  // Megatron-LM's table of arguments, "name ........ value", by the key that logs the same (tensor_parallelism, …).
  std::map<std::string, Printed, std::less<>> arguments;

  const std::vector<Record>& all(std::string_view key) const;  // may be empty
  const Record* first(std::string_view key) const;             // null: none
  std::optional<double> number(std::string_view key) const;    // of first()
  std::string text(std::string_view key) const;                // the same; "" if it is not a string
};

// Reads the file in one pass. Throws IoError, or DataError if it is not a regular file.
Log read_log(const std::string& path);

}  // namespace trivet::mlperf

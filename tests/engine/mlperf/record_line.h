// Lines of an MLPerf log, as mlperf_logging's mllog.py writes them.
#pragma once

#include <cmath>
#include <string>

#include "base/words.h"
#include "engine/mlperf/log.h"

namespace trivet::mlperf {

enum class EventType { interval_start, interval_end, point_in_time };
constexpr auto words_of(EventType) { return word_list("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"); }

// The line, with its end, that parse_record() gives the record from.
inline std::string record_line(const Record& record, EventType type) {
  const nlohmann::ordered_json json = {{"namespace", ""},
                                       {"time_ms", std::llround(record.time_ms)},
                                       {"event_type", word_of(type)},
                                       {"key", record.key},
                                       {"value", record.value},
                                       {"metadata", record.metadata}};
  return ":::MLLOG " + json.dump() + '\n';
}

}  // namespace trivet::mlperf

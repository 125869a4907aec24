// An untrusted MLPerf log: the linter reads any text, and a record survives being written and read again.
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/fuzz/folder.h"
#include "tools/mlperf/lint.h"
#include "tools/mlperf/log.h"

namespace mlperf = trivet::mlperf;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const trivet::fuzz::Folder folder;
  const std::string text(reinterpret_cast<const char*>(data), size), path = folder.path + "/result_0.txt";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  const std::string json = to_json(mlperf::lint({folder.path}, ""));
  if (trivet::parse_json(json).at("files") != 1) std::abort();
  // Times are written in whole milliseconds; key, value and metadata must survive unchanged.
  for (const auto& [key, records] : mlperf::read_log(path).records)
    for (const mlperf::Record& record : records) {
      if (record.value.is_discarded() || std::abs(record.time_ms) > 1e15) continue;
      const auto line = record_line(record, mlperf::EventType::point_in_time);
      const auto again = mlperf::parse_record(mlperf::record_text(line.substr(0, line.size() - 1)).value_or(""));
      if (!again || again->key != key || again->value != record.value || again->metadata != record.metadata)
        std::abort();
    }
  return 0;
}

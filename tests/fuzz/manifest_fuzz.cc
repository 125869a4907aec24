// The JSON files of a checkpoint: manifest, shard description, train state. A manifest contains its own hash, which no
// random text gets right, so each file is also tried with the correct hash.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "base/content_hash.h"
#include "engine/checkpoint/manifest.h"

namespace {

// Either parse() refuses the text, or its result survives being written by to_json() and parsed again.
template <class Parse>
void check_round_trip(const std::string& text, Parse parse) {
  std::string written;
  try {
    written = to_json(parse(text, "fuzz.json"));
  } catch (const trivet::DataError&) {
    return;
  }
  if (to_json(parse(written, "again.json")) != written) std::abort();
}

std::string with_its_hash(const std::string& text) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return text;
  json.erase("xxh3_128");
  try {
    json["xxh3_128"] = trivet::content_hash(json.dump());
    return json.dump();
  } catch (const nlohmann::json::exception&) {  // not UTF-8
    return text;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_round_trip(text, trivet::parse_manifest);
  check_round_trip(with_its_hash(text), trivet::parse_manifest);
  check_round_trip(text, trivet::parse_checkpoint_file);
  check_round_trip(text, trivet::parse_train_state);
  return 0;
}

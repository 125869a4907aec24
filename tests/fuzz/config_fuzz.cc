// A run's YAML file: it is refused with a ConfigError, or gives a Config that survives being written and read again.
// The same for the config values saved in a checkpoint.
#include <cstdlib>
#include <map>
#include <string>

#include "base/check.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trivet;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const Config config = parse_config(text, "fuzz.yaml").config;
    if (to_yaml(config) != to_yaml(parse_config(to_yaml(config), "again.yaml").config)) std::abort();
    std::map<std::string, std::string> values;
    for (const Field& field : fields()) values[std::string(field.name)] = format_field(field, config);
    if (to_yaml(config) != to_yaml(parse_saved_config(values, "train_state.json"))) std::abort();
  } catch (const ConfigError&) {
  }
  try {
    parse_saved_config({{"model.num_layers", text}, {"data.path", text}}, "train_state.json");
  } catch (const DataError&) {
  }
  return 0;
}

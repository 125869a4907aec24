#include "engine/model/spec.h"

#include <fmt/format.h>

#include "base/check.h"

namespace trivet {

void expect_runs(const ModelSpec& spec) {
  const AttentionSpec& a = spec.attention;
  const auto expect = [](bool runs, const std::string& found) {
    if (!runs) throw ConfigError("this model cannot run: " + found);
  };
  expect(a.kv_heads >= 1 && a.heads % a.kv_heads == 0,
         fmt::format("{} query heads cannot share {} heads of keys and values evenly", a.heads, a.kv_heads));
  const int64_t turns = spec.rotary.width;
  expect(spec.positions != Positions::rope || (turns >= 2 && turns % 2 == 0 && turns <= a.head_width),
         fmt::format("found {} rotary columns in heads of {}, expected an even number of them", turns, a.head_width));
}

}  // namespace trivet

#include "engine/config/problems.h"

#include <algorithm>
#include <fmt/format.h>

namespace trivet {
namespace {

struct Hint {
  Lack lack;
  const char *before, *after;
};
constexpr Hint kHints[] = {
    {Lack::gpu, "device.kind is cuda, but ", ""},
    {Lack::mpi, "comm.backend: ", ""},
    {Lack::nccl, "comm.backend: ", ", or let ranks share a GPU with comm.backend: staged"},
    {Lack::links, "comm.link_latency_us, comm.link_gbps: ", "; leave the links of comm: out there"},
    {Lack::memory, "",
     "; a smaller batch.micro_batch_size, model.recompute_granularity, a higher "
     "parallel.data_parallel_sharding_strategy or more tensor- or pipeline-parallel ranks would help"},
};

}  // namespace

std::string to_string(const Origin& origin) {
  switch (origin.kind) {
    case Origin::by_default: return "default";
    case Origin::file: return origin.where;
    case Origin::set: return "--set";
    case Origin::derived: return "derived: " + origin.where;
  }
  return "?";
}

void Problems::add(std::string_view key, std::string_view text) {
  const auto found = origins_.find(key);
  const bool placed =
      found != origins_.end() && (found->second.kind == Origin::file || found->second.kind == Origin::set);
  add_at(placed ? to_string(found->second) : source_, key, text);
}

void Problems::add_at(std::string_view where, std::string_view key, std::string_view text) {
  keys_.emplace(key);
  if (++count_ > kMostLines) return;
  std::string line;
  for (const std::string_view part : {where, key, text}) {
    if (part.empty()) continue;
    if (!line.empty()) line += ": ";
    line += part;
  }
  lines_.push_back(std::move(line));
}

bool Problems::clean(const std::vector<std::string_view>& keys) const {
  return std::none_of(keys.begin(), keys.end(), [&](std::string_view key) { return keys_.contains(key); });
}

void Problems::throw_if_any() const {
  if (empty()) return;
  std::string text = count_ == 1 ? "" : fmt::format("the configuration has {} problems:\n", count_);
  for (size_t i = 0; i < lines_.size(); ++i) text += (i == 0 ? "" : "\n") + lines_[i];
  if (count_ > lines_.size()) text += fmt::format("\n… and {} more", count_ - lines_.size());
  throw ConfigError(text);
}

std::string with_hint(const Error& error) {
  const auto* refusal = dynamic_cast<const ConfigError*>(&error);
  for (const Hint& hint : kHints)
    if (refusal && refusal->lack == hint.lack) return hint.before + std::string(error.what()) + hint.after;
  return error.what();
}

}  // namespace trivet

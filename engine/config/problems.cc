#include "engine/config/problems.h"

#include <algorithm>
#include <fmt/format.h>
#include <pthread.h>

#include "base/host_memory.h"

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
    {Lack::links, "comm.link_latency_us, comm.link_gbps: ", "; leave the comm.*link* keys out there"},
    {Lack::block_scales, "precision.fp8_recipe: found blockwise, which needs ",
     "; expected tensorwise, or device.kind: cpu"},
    {Lack::memory, "",
     "; a smaller batch.micro_batch_size, model.recompute_granularity, a higher "
     "parallel.data_parallel_sharding_strategy or more tensor- or pipeline-parallel ranks would help"},
};

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string line;
  for (const std::string_view part : parts) {
    if (part.empty()) continue;
    if (!line.empty()) line += ": ";
    line += part;
  }
  return line;
}

}  // namespace

std::string to_string(const Origin& origin) {
  switch (origin.kind) {
    case Origin::by_default: return "default";
    case Origin::file: return origin.where;
    case Origin::set:
    case Origin::level: return "--set";
    case Origin::derived: return "derived: " + origin.where;
  }
  return "?";
}

std::string Problems::place_of(std::string_view key) const {
  const auto found = origins_.find(key);
  const bool placed =
      found != origins_.end() && found->second.kind != Origin::by_default && found->second.kind != Origin::derived;
  return placed ? to_string(found->second) : source_;
}

void Problems::add(std::string_view key, std::string_view text) { add_at(place_of(key), key, text); }

void Problems::add_at(std::string_view where, std::string_view key, std::string_view text) {
  keys_.emplace(key);
  if (++count_ <= kMostLines) lines_.push_back(joined({where, key, text}));
}

bool Problems::overridden(std::string_view key, const std::vector<std::string_view>& keys) const {
  const auto kind_of = [&](std::string_view name) {
    const auto found = origins_.find(name);
    return found == origins_.end() ? Origin::by_default : found->second.kind;
  };
  const auto decided = [&](std::string_view name) {
    return kind_of(name) == Origin::set || kind_of(name) == Origin::level || kind_of(name) == Origin::derived;
  };
  if (kind_of(key) == Origin::level) return true;
  return kind_of(key) == Origin::file && std::ranges::any_of(keys, decided);
}

void Problems::leave_out(std::string_view key, std::string_view why) {
  left_out_.push_back({std::string(key), joined({place_of(key), key, why}) + "; it is left out"});
}

bool Problems::left_out(std::string_view key) const { return std::ranges::count(left_out_, key, &LeftOut::key) > 0; }

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

std::string thread_problem(const std::string& what) {
  pthread_attr_t usual;
  size_t stack = 0;
  if (pthread_getattr_default_np(&usual) == 0) pthread_attr_getstacksize(&usual, &stack);
  const MemoryLimit memory = memory_limit();
  const bool no_room = memory.left() < static_cast<int64_t>(stack);
  return fmt::format("a thread cannot be started: {}; expected fewer ranks or threads, or {}", what,
                     no_room ? fmt::format("room for its stack ({} bytes): {}", stack, to_string(memory))
                             : "a higher limit on processes (ulimit -u, or the container's)");
}

std::string with_hint(const Error& error) {
  const auto* refusal = dynamic_cast<const ConfigError*>(&error);
  for (const Hint& hint : kHints)
    if (refusal && refusal->lack == hint.lack) return hint.before + std::string(error.what()) + hint.after;
  return error.what();
}

}  // namespace trivet

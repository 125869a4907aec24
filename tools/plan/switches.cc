#include "tools/plan/switches.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <tuple>

#include "engine/config/fields.h"

namespace trivet {
namespace {

// Keys whose value is true, false or a word.
constexpr std::array kWords = {"overlap.overlap_grad_reduce",   "overlap.overlap_param_gather",
                               "overlap.overlap_p2p_comm",      "overlap.tp_comm_overlap",
                               "overlap.average_in_collective", "overlap.defer_embedding_wgrad_compute",
                               "overlap.align_grad_reduce",     "overlap.align_param_gather",
                               "parallel.sequence_parallel",    "parallel.data_parallel_sharding_strategy",
                               "device.cuda_graph_impl"};

Switch of_key(std::string_view key, std::string_view value) {
  return {fmt::format("{}={}", key.substr(key.find('.') + 1), value), {fmt::format("{}={}", key, value)}};
}

Switch of_recompute(const char* name, const char* granularity, const char* modules, const char* method, int layers) {
  return {
      name,
      {fmt::format("model.recompute_granularity={}", granularity), fmt::format("model.recompute_modules={}", modules),
       fmt::format("model.recompute_method={}", method), fmt::format("model.recompute_num_layers={}", layers)}};
}

Switch of_schedule(std::string_view name, int v) {
  return {fmt::format("schedule {}, v {}", name, v),
          {fmt::format("parallel.pipeline_schedule={}", name),
           fmt::format("parallel.virtual_pipeline_model_parallel_size={}", v)}};
}

}  // namespace

std::vector<Switch> switches_of(const Config& config, const Layout& layout) {
  std::vector<Switch> all;
  for (const char* key : kWords) {
    const Field& field = *find_field(key);
    const std::string now = format_field(field, config);
    std::vector<std::string_view> words = field.words;
    if (words.empty()) words = {"true", "false"};
    for (const std::string_view word : words)
      if (word != now) all.push_back(of_key(key, word));
  }
  if (config.parallel.data_parallel_sharding_strategy == Sharding::no_shard)
    all.push_back({"optim, with gradients and weights overlapped",
                   {"parallel.data_parallel_sharding_strategy=optim", "overlap.overlap_grad_reduce=true",
                    "overlap.overlap_param_gather=true"}});

  all.push_back(of_recompute("recompute nothing", "none", "core_attn", "none", 0));
  all.push_back(of_recompute("recompute core_attn", "selective", "core_attn", "none", 0));
  all.push_back(of_recompute("recompute core_attn, layernorm, mlp", "selective", "core_attn,layernorm,mlp", "none", 0));
  all.push_back(of_recompute("recompute all, each layer", "full", "core_attn", "uniform", 1));

  if (const auto& [kind, v, p] = std::tie(layout.schedule.kind, layout.schedule.v, layout.schedule.p); p > 1) {
    if (kind == "1f1b" || kind == "interleaved") {
      all.push_back(of_schedule("interleaved", 2 * v));
      if (v > 1) all.push_back(of_schedule(v < 4 ? "1f1b" : "interleaved", v / 2));
    } else {
      all.push_back(of_schedule("1f1b", 1));
    }
    for (const auto& [name, chunks] : {std::pair{"zb-h1", 1}, {"zb-v", 2}})
      if (kind != name) all.push_back(of_schedule(name, chunks));
  }

  const auto size = [&](const char* key, int64_t value) { all.push_back(of_key(key, fmt::to_string(value))); };
  const int64_t b = config.batch.micro_batch_size, bucket = *config.parallel.bucket_size;
  size("batch.micro_batch_size", 2 * b);
  if (b % 2 == 0) size("batch.micro_batch_size", b / 2);
  size("parallel.bucket_size", 4 * bucket);
  size("parallel.bucket_size", std::max<int64_t>(1, bucket / 4));
  for (const int count : {1, 2, 4})
    if (count != config.overlap.collectives_in_flight) size("overlap.collectives_in_flight", count);
  return all;
}

}  // namespace trivet

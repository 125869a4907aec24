#include "engine/config/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/ranges.h>
#include <numeric>

#include "engine/config/check_switches.h"
#include "engine/config/fields.h"
#include "engine/config/layer_split.h"
#include "engine/config/words.h"
#include "parallel/data/flat_buffer.h"
#include "parallel/pipeline/check.h"

namespace trivet {
namespace {

std::string list(const std::vector<int64_t>& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i)
    text += (i == 0 ? "" : i + 1 == values.size() ? " or " : ", ") + std::to_string(values[i]);
  return text;
}

// The divisors of n, at most six: those nearest to `near`.
std::vector<int64_t> divisors(int64_t n, int64_t near) {
  std::vector<int64_t> found;
  for (int64_t i = 1; i <= n / i; ++i) {
    if (n % i != 0) continue;
    found.push_back(i);
    if (i != n / i) found.push_back(n / i);
  }
  const auto distance = [near](int64_t x) { return std::abs(x - near); };
  std::sort(found.begin(), found.end(), [&](int64_t a, int64_t b) { return distance(a) < distance(b); });
  found.resize(std::min<size_t>(found.size(), 6));
  std::sort(found.begin(), found.end());
  return found;
}

// The multiples of `unit` next to n.
std::vector<int64_t> multiples(int64_t n, int64_t unit) {
  const int64_t below = n / unit * unit;
  return below > 0 ? std::vector<int64_t>{below, below + unit} : std::vector<int64_t>{unit};
}

std::string_view short_name(std::string_view key) { return key.substr(key.find('.') + 1); }

struct Whole {
  std::string_view key;
  int64_t value;
};

// The value of `key` has to divide all of `wholes`, as far as they are known.
void expect_divides(Problems& problems, std::string_view key, int64_t part, const std::vector<Whole>& wholes) {
  if (!problems.clean({key})) return;
  int64_t common = 0;
  std::string failing;
  for (const Whole& whole : wholes) {
    if (!problems.clean({whole.key})) continue;
    common = std::gcd(common, whole.value);
    if (whole.value % part != 0)
      failing += fmt::format("{}{} ({})", failing.empty() ? "" : " nor ", short_name(whole.key), whole.value);
  }
  if (failing.empty()) return;
  problems.add(key, fmt::format("{} does not divide {}; {} would work", part, failing, list(divisors(common, part))));
}

void check_values(const Config& config, Problems& problems) {
  const Config defaults;
  for (const Field& field : fields()) {
    if (!problems.clean({field.name})) continue;
    const auto problem = check_field(field, config);
    if (!problem) continue;
    const bool missing = field.required && format_field(field, config) == format_field(field, defaults);
    problems.add(field.name, missing ? "is required: " + std::string(field.about) + ", " + expected(field) : *problem);
  }
}

void check_model(const Config& config, Problems& problems) {
  const ModelConfig& model = config.model;
  expect_divides(problems, "model.num_attention_heads", model.num_attention_heads,
                 {{"model.hidden_size", model.hidden_size}});

  constexpr auto kTensor = "parallel.tensor_model_parallel_size";
  const int64_t t = config.parallel.tensor_model_parallel_size;
  std::vector<Whole> cut = {{"model.num_attention_heads", model.num_attention_heads}};
  if (problems.clean({"model.hidden_size"}))
    cut.push_back({"model.ffn_hidden_size", model.ffn_hidden_size.value_or(4 * model.hidden_size)});
  if (config.parallel.sequence_parallel) {
    if (problems.clean({kTensor}) && t == 1)
      problems.add("parallel.sequence_parallel",
                   "true needs tensor_model_parallel_size above 1, found 1: the sequence is divided among the "
                   "tensor-parallel ranks, and there are no others");
    cut.push_back({"model.seq_length", model.seq_length});
  }
  expect_divides(problems, kTensor, t, cut);

  constexpr auto kPipeline = "parallel.pipeline_model_parallel_size";
  const int64_t p = config.parallel.pipeline_model_parallel_size;
  if (problems.clean({kTensor, kPipeline}) && t * p > kMostRanks)
    problems.add(kTensor, fmt::format("{} x pipeline_model_parallel_size ({}) are {} ranks, expected at most {}", t, p,
                                      t * p, kMostRanks));
}

void check_schedule(const LoadedConfig& loaded, Problems& problems) {
  const OptimizerConfig& optimizer = loaded.config.optimizer;
  const double lr = optimizer.lr, min_lr = optimizer.min_lr.value_or(lr / 10);
  const int64_t decay = optimizer.lr_decay_iters.value_or(loaded.config.train.train_iters);
  if (optimizer.lr_decay_style == LrDecay::constant && problems.clean({"optimizer.lr_decay_style"})) {
    // resolve() writes the values that change nothing, so these are welcome back.
    constexpr auto kNoEffect =
        "{} has no effect with lr_decay_style constant; leave it out, or choose cosine or linear";
    if (problems.clean({"optimizer.min_lr", "optimizer.lr"}) && optimizer.min_lr && min_lr != lr)
      problems.add("optimizer.min_lr", fmt::format(kNoEffect, min_lr));
    if (problems.clean({"optimizer.lr_decay_iters", "train.train_iters"}) && decay != loaded.config.train.train_iters)
      problems.add("optimizer.lr_decay_iters", fmt::format(kNoEffect, decay));
  }
  if (problems.clean({"optimizer.lr", "optimizer.min_lr"}) && min_lr > lr)
    problems.add("optimizer.min_lr", fmt::format("{} is above lr ({}), expected at most that", min_lr, lr));
  if (problems.clean({"optimizer.lr_warmup_iters", "optimizer.lr_decay_iters", "train.train_iters"}) &&
      optimizer.lr_warmup_iters > decay)
    problems.add(
        "optimizer.lr_warmup_iters",
        fmt::format("{} is above {} ({}), expected at most that: the warm-up is the first part of the schedule",
                    optimizer.lr_warmup_iters, optimizer.lr_decay_iters ? "lr_decay_iters" : "train_iters", decay));
}

void check_data(const LoadedConfig& loaded, Problems& problems) {
  const DataConfig& data = loaded.config.data;
  const bool evaluates = loaded.config.train.eval_interval > 0 && problems.clean({"train.eval_interval"});
  if (!problems.clean({"data.path", "data.train_path", "data.valid_path"})) return;
  if (!data.path.empty() && !data.train_path.empty()) {
    problems.add("data.train_path",
                 "excludes data.path, which is also given: name one dataset to cut by data.split, or one "
                 "for training and one for validation");
    return;
  }
  if (data.path.empty() && data.train_path.empty()) {
    problems.add("data.path", "is required, or data.train_path: the prefix of a dataset's .bin and .idx files");
    return;
  }
  if (data.path.empty()) {
    if (data.split != DataConfig().split && problems.clean({"data.split"}))
      problems.add("data.split", format_field(*find_field("data.split"), loaded.config) +
                                     " has no effect with data.train_path: only data.path is cut; leave "
                                     "it out");
    if (evaluates && data.valid_path.empty())
      problems.add("train.eval_interval", fmt::format("{} needs data.valid_path beside data.train_path; give it, or 0 "
                                                      "to never evaluate",
                                                      loaded.config.train.eval_interval));
    return;
  }
  if (!data.valid_path.empty())
    problems.add("data.valid_path",
                 "goes with data.train_path, found data.path: its validation data is cut by data.split");
  if (!problems.clean({"data.split"})) return;
  const double sum = std::accumulate(data.split.begin(), data.split.end(), 0.0);
  const std::string split = fmt::format("{}", fmt::join(data.split, ","));
  if (data.split.size() > 3 || !(sum > 0) || !std::isfinite(sum))
    problems.add("data.split", fmt::format("found \"{}\", expected {}", split, expected(*find_field("data.split"))));
  else if (data.split[0] == 0) problems.add("data.split", fmt::format("{} leaves nothing to train on", split));
  else if (evaluates && (data.split.size() < 2 || data.split[1] == 0))
    problems.add("train.eval_interval",
                 fmt::format("{} needs validation data, and data.split ({}) leaves none; 0 never "
                             "evaluates",
                             loaded.config.train.eval_interval, split));
}

void check_ranks(const LoadedConfig& loaded, const RunFacts& facts, Problems& problems) {
  const Config& config = loaded.config;
  constexpr auto kTensor = "parallel.tensor_model_parallel_size", kPipeline = "parallel.pipeline_model_parallel_size";
  check(facts.world_size >= 1, "a world has at least one rank");
  if (!problems.clean({kTensor, kPipeline})) return;
  const int64_t world = facts.world_size, replica = ranks_of_one_replica(config);
  if (world % replica != 0) {
    problems.add(kTensor, fmt::format("{}{} does not divide the world of {} {}; {} would, or start {} ranks", replica,
                                      config.parallel.pipeline_model_parallel_size > 1
                                          ? " (tensor_model_parallel_size x pipeline_model_parallel_size)"
                                          : "",
                                      world, world == 1 ? "rank" : "ranks", list(divisors(world, replica)),
                                      list(multiples(world, replica))));
    return;
  }
  constexpr auto kMicro = "batch.micro_batch_size", kGlobal = "batch.global_batch_size";
  if (!config.batch.global_batch_size || !problems.clean({kMicro, kGlobal})) return;
  const int64_t d = world / replica, b = config.batch.micro_batch_size, global = *config.batch.global_batch_size;
  if (global % (b * d) != 0)
    problems.add(kGlobal, fmt::format("{} is not divisible by micro_batch_size ({}) x data parallel size ({}) = {}; {} "
                                      "would work",
                                      global, b, d, b * d, list(multiples(global, b * d))));
}

void check_vocab(const LoadedConfig& loaded, const RunFacts& facts, Problems& problems) {
  if (!problems.clean({"model.vocab_size"})) return;
  const auto given_size = loaded.config.model.vocab_size, dataset_size = facts.dataset_vocab_size;
  const DataConfig& data = loaded.config.data;
  const std::string& prefix = data.path.empty() ? data.train_path : data.path;
  if (!given_size && !dataset_size && !prefix.empty())
    problems.add("model.vocab_size",
                 fmt::format("is auto, and the dataset {0} has no tokenizer to take it from: there is neither {0}.json "
                             "nor {0}.model; make the dataset first, or give a number",
                             prefix));
  else if (given_size && dataset_size && *given_size != *dataset_size)
    problems.add("model.vocab_size", fmt::format("{} is not the {} of the dataset's tokenizer, expected that, or auto; "
                                                 "make_vocab_size_divisible_by says how it is padded",
                                                 *given_size, *dataset_size));
}

template <class T>
void derive(LoadedConfig& loaded, std::string_view key, std::optional<T>& to, T value, std::string how) {
  if (to) return;
  to = value;
  loaded.origins[std::string(key)] = {Origin::derived, std::move(how)};
}

void check_train(const TrainConfig& train, Problems& problems) {
  if (problems.clean({"train.run_dir"}) && train.run_dir.empty())
    problems.add("train.run_dir", "is empty, expected the folder of the run");
  if (problems.clean({"train.non_finite_policy"}) && train.non_finite_policy == StepAction::skip &&
      !train.check_for_nan_in_loss_and_grad)
    problems.add("train.non_finite_policy",
                 "skip has no effect with check_for_nan_in_loss_and_grad false: nothing looks for such a step");
  for (const auto& [key, factor] : {std::pair("train.spike_factor", train.spike_factor),
                                    std::pair("train.straggler_factor", train.straggler_factor)})
    if (problems.clean({key}) && factor != 0 && factor <= 1)
      problems.add(key, fmt::format("{} is no more than the usual; expected 0 (not looked for), or above 1", factor));
}

}  // namespace

namespace {

// The schedule by its kind or from its file; what does not fit is a ConfigError.
Schedule find_schedule(const ParallelConfig& c, int64_t micro_batches) {
  const auto kinds = schedule_kinds();
  const auto as_int = [](const std::optional<int64_t>& n) {
    return n ? std::optional(static_cast<int>(*n)) : std::nullopt;
  };
  const bool known = std::any_of(kinds.begin(), kinds.end(),
                                 [&](const ScheduleKind& kind) { return kind.name == c.pipeline_schedule; });
  const bool path = c.pipeline_schedule.find_first_of("./") != std::string::npos;
  if (known || !path)
    return make_schedule({.kind = c.pipeline_schedule,
                          .p = c.pipeline_model_parallel_size,
                          .m = static_cast<int>(micro_batches),
                          .v = as_int(c.virtual_pipeline_model_parallel_size),
                          .group_size = as_int(c.microbatch_group_size_per_vp_stage)});
  Schedule schedule = read_schedule_file(c.pipeline_schedule);
  trivet::check_schedule(schedule);
  if (schedule.p != c.pipeline_model_parallel_size || schedule.m != micro_batches)
    throw ConfigError(fmt::format("{} is for {} pipeline ranks and {} micro-batches, but the run has {} and {}",
                                  c.pipeline_schedule, schedule.p, schedule.m, c.pipeline_model_parallel_size,
                                  micro_batches));
  return schedule;
}

void resolve_pipeline(LoadedConfig& loaded, Layout& layout, Problems& problems) {
  const ParallelConfig& c = loaded.config.parallel;
  try {
    layout.schedule = find_schedule(c, layout.micro_batches);
  } catch (const Error& error) {
    if (error.exit_code() == Error("").exit_code()) throw;  // a bug, not the user's schedule or file
    problems.add("parallel.pipeline_schedule", error.what());
    return;
  }
  const bool halves =
      std::any_of(layout.schedule.programs.begin(), layout.schedule.programs.end(), [](const auto& ops) {
        return std::any_of(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::backward_weight; });
      });
  if (halves && streams_grads(c.data_parallel_sharding_strategy))
    problems.add(
        "parallel.data_parallel_sharding_strategy",
        fmt::format("{} needs whole backward passes, but the schedule {} puts weight gradients off: they would "
                    "have to be kept for all micro-batches under way; optim works, and so do 1f1b and "
                    "interleaved",
                    word_of(c.data_parallel_sharding_strategy), layout.schedule.kind));
  if (loaded.config.overlap.align_param_gather && layout.schedule.v == 1)
    problems.add(
        "overlap.align_param_gather",
        fmt::format("true needs several chunks a rank (interleaved schedules, zb-v): the schedule {} has one, whose "
                    "weights are needed at once",
                    layout.schedule.kind));
  derive(loaded, "parallel.virtual_pipeline_model_parallel_size",
         loaded.config.parallel.virtual_pipeline_model_parallel_size, int64_t{layout.schedule.v}, "the schedule");
  try {
    layout.layers_of_stage = split_layers({.num_layers = loaded.config.model.num_layers,
                                           .stages = layout.schedule.stages(),
                                           .first_layers = c.decoder_first_pipeline_num_layers,
                                           .last_layers = c.decoder_last_pipeline_num_layers,
                                           .account_for_embedding = c.account_for_embedding_in_pipeline_split,
                                           .account_for_loss = c.account_for_loss_in_pipeline_split});
  } catch (const ConfigError& error) {
    problems.add("model.num_layers", error.what());
    return;
  }
  const ModelConfig& model = loaded.config.model;
  const int64_t largest = *std::max_element(layout.layers_of_stage.begin(), layout.layers_of_stage.end());
  if (model.recompute_num_layers > largest)
    problems.add("model.recompute_num_layers",
                 fmt::format("{} is above the {} {} of the largest stage, expected at most that",
                             model.recompute_num_layers, largest, largest == 1 ? "layer" : "layers"));
}

}  // namespace

int ranks_of_one_replica(const Config& config) {
  return config.parallel.tensor_model_parallel_size * config.parallel.pipeline_model_parallel_size;
}

void check_config(const LoadedConfig& loaded, Problems& problems) {
  check_values(loaded.config, problems);
  check_model(loaded.config, problems);
  check_recompute(loaded.config, problems);
  check_attention(loaded.config, problems);
  check_device(loaded.config, problems);
  check_tensor_overlap(loaded.config, problems);
  check_pipeline_overlap(loaded.config, problems);
  check_schedule(loaded, problems);
  check_data(loaded, problems);
  check_train(loaded.config.train, problems);
  check_saving(loaded.config.checkpoint, problems);
}

Layout resolve(LoadedConfig& loaded, const RunFacts& facts) {
  Problems problems(loaded.path, loaded.origins);
  check_config(loaded, problems);
  check_ranks(loaded, facts, problems);
  check_data_parallel(loaded.config, facts, problems);
  check_vocab(loaded, facts, problems);
  problems.throw_if_any();

  Config& config = loaded.config;
  Layout layout;
  const int replica = ranks_of_one_replica(config);
  layout.mesh = {.t = config.parallel.tensor_model_parallel_size,
                 .p = config.parallel.pipeline_model_parallel_size,
                 .d = facts.world_size / replica,
                 .order = config.parallel.order};

  derive(loaded, "model.ffn_hidden_size", config.model.ffn_hidden_size, 4 * config.model.hidden_size,
         "4 * hidden_size");
  derive(loaded, "model.vocab_size", config.model.vocab_size, facts.dataset_vocab_size.value_or(0),
         "the dataset's tokenizer");
  derive(loaded, "batch.global_batch_size", config.batch.global_batch_size,
         config.batch.micro_batch_size * layout.mesh.d, "micro_batch_size * data parallel size");
  derive(loaded, "parallel.bucket_size", config.parallel.bucket_size, default_bucket_size(layout.mesh.d),
         "max(40e6, 1e6 d)");
  // A constant schedule never leaves lr.
  const bool constant = config.optimizer.lr_decay_style == LrDecay::constant;
  derive(loaded, "optimizer.min_lr", config.optimizer.min_lr, constant ? config.optimizer.lr : config.optimizer.lr / 10,
         constant ? "lr" : "lr / 10");
  derive(loaded, "optimizer.lr_decay_iters", config.optimizer.lr_decay_iters, config.train.train_iters, "train_iters");

  CommConfig& comm = config.comm;
  derive(loaded, "comm.tensor_link_latency_us", comm.tensor_link_latency_us, comm.link_latency_us, "link_latency_us");
  derive(loaded, "comm.tensor_link_gbps", comm.tensor_link_gbps, comm.link_gbps, "link_gbps");
  derive(loaded, "comm.pipeline_link_latency_us", comm.pipeline_link_latency_us, comm.link_latency_us,
         "link_latency_us");
  derive(loaded, "comm.pipeline_link_gbps", comm.pipeline_link_gbps, comm.link_gbps, "link_gbps");
  derive(loaded, "comm.data_link_latency_us", comm.data_link_latency_us, comm.link_latency_us, "link_latency_us");
  derive(loaded, "comm.data_link_gbps", comm.data_link_gbps, comm.link_gbps, "link_gbps");

  const int64_t unit = config.model.make_vocab_size_divisible_by * layout.mesh.t;
  layout.padded_vocab = (*config.model.vocab_size + unit - 1) / unit * unit;
  layout.micro_batches = *config.batch.global_batch_size / (config.batch.micro_batch_size * layout.mesh.d);
  resolve_pipeline(loaded, layout, problems);
  problems.throw_if_any();
  return layout;
}

}  // namespace trivet

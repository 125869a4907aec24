// The rules for a run: for its ranks and dataset, its layout, its devices.
#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "base/built_with.h"
#include "base/text.h"
#include "engine/config/blend_text.h"
#include "engine/config/fields.h"
#include "engine/config/rules.h"

namespace trivet {
namespace {

constexpr auto kTensor = "parallel.tensor_model_parallel_size", kPipeline = "parallel.pipeline_model_parallel_size",
               kContext = "parallel.context_parallel_size", kStrategy = "parallel.data_parallel_sharding_strategy",
               kReduce = "overlap.overlap_grad_reduce", kGather = "overlap.overlap_param_gather",
               kGatherFp8 = "precision.fp8_param_gather", kDefer = "overlap.defer_embedding_wgrad_compute";

// The multiples of `unit` nearest to n.
std::string multiples(int64_t n, int64_t unit) {
  const int64_t below = n / unit * unit;
  return below > 0 ? fmt::format("{} or {}", below, below + unit) : fmt::to_string(unit);
}

void check_world(const Config& c, int world, Rules& rule) {
  const int replica = ranks_of_one_replica(c), p = c.parallel.pipeline_model_parallel_size;
  const int of_context = c.parallel.context_parallel_size;
  rule(kContext, {kTensor, kPipeline}, of_context > 1 && world % replica != 0,
       "{} x tensor_model_parallel_size ({}) x pipeline_model_parallel_size ({}) = {} does not divide the world of {}; "
       "start {} ranks",
       of_context, c.parallel.tensor_model_parallel_size, p, replica, counted(world, "rank"),
       multiples(world, replica));
  if (of_context > 1 && world % replica != 0) return;
  const bool both = p > 1 && replica > p;
  const std::string fitting = !both ? divisors(world, replica) : world % p == 0 ? divisors(world / p, replica / p) : "";
  rule(p > 1 && !both ? kPipeline : kTensor, {}, world % replica != 0,
       "{}{} does not divide the world of {}; {}start {} ranks",
       both ? fmt::format("{} x pipeline_model_parallel_size ({}) = ", replica / p, p) : "", replica,
       counted(world, "rank"), fitting.empty() ? "" : fitting + " would, or ", multiples(world, replica));
  const int64_t d = world / replica, b = c.batch.micro_batch_size, unit = std::max<int64_t>(b * d, 1);
  const BatchSizes sizes = batch_sizes_of(c, unit);
  const int64_t global = sizes.largest();
  const std::string_view key = sizes.parts.size() > 1 ? ramp_key(c) : "batch.global_batch_size";
  const auto odd = std::ranges::find_if(sizes.parts, [&](const auto& part) { return !divides(unit, part.samples); });
  const int64_t found = odd == sizes.parts.end() ? global : odd->samples;
  rule(key, {"batch.micro_batch_size", kTensor}, odd != sizes.parts.end(),
       "{} is not divisible by micro_batch_size ({}) x data parallel size ({}) = {}; {} would work", found, b, d, unit,
       multiples(found, unit));
  const std::vector<int64_t> ramp = c.batch.rampup_batch_size.value_or(std::vector<int64_t>{});
  const int64_t full = c.batch.global_batch_size.value_or(unit);
  rule("batch.rampup_batch_size", {"batch.global_batch_size"},
       ramp.size() == 3 && (ramp[0] >= full || (full - ramp[0]) % ramp[1] != 0),
       "{} by {} does not reach global_batch_size ({}): expected a start below it and an increment that divides the "
       "difference",
       ramp.empty() ? 0 : ramp[0], ramp.size() < 2 ? 0 : ramp[1], full);
}

void check_vocabulary(const Config& c, const RunFacts& facts, Rules& rule) {
  const auto given = c.model.vocab_size, of_dataset = facts.dataset_vocab_size;
  const bool whole = !c.data.path.empty(), lacking = !given && !of_dataset;
  const std::string prefix = first_prefix(whole ? c.data.path : c.data.train_path);
  rule(whole ? "data.path" : "data.train_path", {"model.vocab_size"}, lacking && !facts.has_dataset && !prefix.empty(),
       "found {0}, but there is neither {0}.idx nor {0}.bin, and model.vocab_size is auto: it is taken from the "
       "dataset's tokenizer; make the dataset first (trivet data prepare), or name another",
       prefix);
  rule("model.vocab_size", {"data.path", "data.train_path"}, lacking && !prefix.empty(),
       "is auto, and the dataset {0} has no tokenizer to take it from: there is neither {0}.json, "
       "{0}.tokenizer.json nor {0}.model; give a number",
       prefix);
  rule("model.vocab_size", {}, lacking && prefix.empty(),
       "is auto, and there is no dataset whose tokenizer would give it; give a number");
  rule("model.vocab_size", {}, given && of_dataset && *given < *of_dataset,
       "{} is less than the {} of the dataset's tokenizer, expected at least that, or auto; "
       "make_vocab_size_divisible_by says how it is padded",
       given.value_or(0), of_dataset.value_or(0));
}

// Links that share a port must have one bandwidth, and only real links can be measured. ranks: the group size of each
// class, in the order of kCommClasses.
void check_links(const Config& c, const std::array<int, kCommClasses.size()>& ranks, Rules& rule) {
  constexpr auto kPort = "comm.shared_port";
  std::vector<double> used;
  int limited = 0;
  bool any_real = false, latency = false, gbps_of_all = false;
  for (size_t k = 0; k < ranks.size(); ++k) {
    const double us = c.comm.links[k].latency_us.value_or(c.comm.link_latency_us);
    const double gbps = c.comm.links[k].gbps.value_or(c.comm.link_gbps);
    if (gbps > 0) ++limited;
    if (ranks[k] <= 1) continue;
    if (gbps > 0) used.push_back(gbps);
    any_real |= gbps == 0 && us == 0;
    latency |= us == c.comm.link_latency_us;
    gbps_of_all |= gbps == c.comm.link_gbps;
  }
  constexpr auto kOwn = "{} has no effect: each class of groups with several ranks has its own value";
  rule.few_ranks("comm.link_latency_us", c.comm.link_latency_us != 0 && !latency, kOwn, c.comm.link_latency_us);
  rule.few_ranks("comm.link_gbps", c.comm.link_gbps != 0 && !gbps_of_all, kOwn, c.comm.link_gbps);
  rule.few_ranks("comm.measure_links", c.comm.measure_links && !any_real,
                 "true has no effect: no group of several ranks is without an emulated link");
  rule.no_effect(kPort, {"comm.link_gbps"}, c.comm.shared_port && limited < 2,
                 "true needs emulated links with a bandwidth (comm.link_gbps) of at least two classes of groups, found "
                 "{}: there is nothing to share",
                 limited);
  rule.few_ranks(
      kPort, c.comm.shared_port && limited >= 2 && used.size() < 2,
      "true has no effect: {} of the tensor, context, pipeline and data groups (of {} ranks) has several ranks "
      "and an emulated link with a bandwidth",
      used.empty() ? "none" : "only one", fmt::to_string(fmt::join(ranks, ", ")));
  rule(kPort, {}, c.comm.shared_port && !used.empty() && std::ranges::min(used) != std::ranges::max(used),
       "true, but the links have bandwidths from {} to {} Gbit/s: a port has a single one, expected the same for all "
       "classes (or 0 for a class that does not use it)",
       used.empty() ? 0 : std::ranges::min(used), used.empty() ? 0 : std::ranges::max(used));
}

// Keys that need a group of several ranks.
void check_groups(const Config& c, int world, Rules& rule) {
  const int t = c.parallel.tensor_model_parallel_size, p = c.parallel.pipeline_model_parallel_size;
  const int of_context = c.parallel.context_parallel_size, d = world / ranks_of_one_replica(c);
  Config usual;  // with the values that resolve() derives by default
  usual.comm.links.fill({c.comm.link_latency_us, c.comm.link_gbps});
  usual.parallel.bucket_size = default_bucket_size(d * of_context);
  const auto alone = [&](int ranks, const char* group, const std::vector<std::string_view>& keys) {
    for (const std::string_view key : keys) {
      const Field& field = *find_field(key);
      const std::string value = format_field(field, c);
      rule.few_ranks(key, ranks <= 1 && !is_default(field, c) && value != format_field(field, usual),
                     "{} has no effect: {} (world {} over tensor {}{} x pipeline {})", value, group, world, t,
                     of_context > 1 ? fmt::format(" x context {}", of_context) : "", p);
    }
  };
  alone(d * of_context, "the data parallel size is 1",
        {kStrategy, "parallel.bucket_size", kReduce, kGather, "overlap.collectives_in_flight",
         "overlap.align_grad_reduce", "overlap.align_param_gather", "overlap.average_in_collective", kGatherFp8,
         "comm.nccl_ub", "comm.data_link_latency_us", "comm.data_link_gbps",
         "train.check_weight_hash_across_dp_replicas_interval"});
  alone(t, "the tensor parallel size is 1", {"comm.tensor_link_latency_us", "comm.tensor_link_gbps"});
  alone(of_context, "the context parallel size is 1",
        {"parallel.cp_comm_type", "overlap.overlap_cp_comm", "comm.context_link_latency_us", "comm.context_link_gbps"});
  alone(p, "the pipeline parallel size is 1", {"comm.pipeline_link_latency_us", "comm.pipeline_link_gbps"});
  alone(world, "there is one rank",
        {"comm.link_latency_us", "comm.link_gbps", "train.straggler_factor", "train.straggler_interval"});
  std::array sizes{t, of_context, p, d};
  const std::array ranks{t, of_context, p, d * of_context};  // per group, by class
  std::ranges::sort(sizes);
  alone(sizes[2], "at most one dimension has several ranks", {"parallel.order"});
  check_links(c, ranks, rule);
}

void check_sharding(const Config& c, int world, Rules& rule) {
  const OverlapConfig& o = c.overlap;
  const Sharding sharding = c.parallel.data_parallel_sharding_strategy;
  const std::string_view strategy = word_of(sharding);
  const bool units = streams_grads(sharding), one_stage = c.parallel.pipeline_model_parallel_size == 1;
  const auto gathers = [&](std::string_view key, bool on) {
    rule.no_effect(
        key, {kStrategy}, on && sharding == Sharding::no_shard,
        "true needs data_parallel_sharding_strategy optim or above: with no_shard every rank updates all weights, and "
        "nothing is gathered");
  };
  gathers(kGather, o.overlap_param_gather);
  gathers(kGatherFp8, c.precision.fp8_param_gather);
  rule.no_effect(
      "overlap.collectives_in_flight", {kReduce, kGather},
      o.collectives_in_flight > 1 && !o.overlap_grad_reduce && !o.overlap_param_gather,
      "{} needs overlap_grad_reduce or overlap_param_gather: without them collectives run one after the other",
      o.collectives_in_flight);
  const auto align = [&](std::string_view key, bool on, std::string_view overlap, bool overlapped, bool streamed) {
    rule.no_effect(key, {overlap}, on && !overlapped, "true needs {}: it says when overlapped collectives start",
                   overlap.substr(overlap.find('.') + 1));
    rule.no_effect(key, {kPipeline}, on && one_stage,
                   "true needs pipeline_model_parallel_size above 1, found 1: there is nothing to align with");
    rule.no_effect(key, {kStrategy}, on && streamed,
                   "true has no effect with {}: its collectives start with the passes of a unit", strategy);
  };
  align("overlap.align_grad_reduce", o.align_grad_reduce, kReduce, o.overlap_grad_reduce, units);
  align("overlap.align_param_gather", o.align_param_gather, kGather, o.overlap_param_gather,
        sharding == Sharding::optim_grads_params);
  rule.no_effect(kDefer, {kPipeline}, o.defer_embedding_wgrad_compute && one_stage,
                 "true needs pipeline_model_parallel_size above 1, found 1: there are no other stages to wait for");
  rule(kDefer, {kStrategy}, o.defer_embedding_wgrad_compute && units,
       "true excludes {}: the gradients of a unit are reduced as soon as its backward pass ends; optim works",
       strategy);
  const int64_t rows = c.model.cross_entropy_chunk_rows.value_or(0);
  rule("model.cross_entropy_chunk_rows", {kDefer}, o.defer_embedding_wgrad_compute && rows > 0,
       "{} excludes defer_embedding_wgrad_compute, which keeps the gradients of whole logits; expected 0 or auto",
       rows);
  rule.no_effect("overlap.wgrad_deferral_limit", {kDefer},
                 o.wgrad_deferral_limit > 0 && !o.defer_embedding_wgrad_compute,
                 "{} needs defer_embedding_wgrad_compute", o.wgrad_deferral_limit);
  const int64_t usual = default_bucket_size(world / ranks_of_one_replica(c));
  const int64_t bucket = c.parallel.bucket_size.value_or(usual);
  rule.no_effect("parallel.bucket_size", {kStrategy}, units && bucket != usual,
                 "{} has no effect with {}: there a bucket is a unit of the model (embedding, layer, head)", bucket,
                 strategy);
}

// What only CPUs can do.
void check_rules_of_gpus(const Config& c, Rules& rule) {
  rule("precision.fp8_accumulator_bits", {"device.kind"}, c.precision.fp8_accumulator_bits != 24,
       "found 14, but GPUs have fixed accumulators; expected 24, or device.kind: cpu");
  rule("precision.fp8_report", {"device.kind"}, c.precision.fp8_report,
       "found true, but only CPUs collect quantisation statistics; expected false, or device.kind: cpu");
  for (size_t k = 0; k < c.comm.links.size(); ++k)
    for (const auto& [part, value] : {std::pair("latency_us", c.comm.links[k].latency_us.value_or(0)),
                                      std::pair("gbps", c.comm.links[k].gbps.value_or(0))})
      rule(fmt::format("comm.{}_link_{}", kCommClasses[k], part), {"device.kind"}, value > 0,
           "found {}, but links are emulated between ranks that compute on CPUs only; set device.kind: cpu", value);
}

void check_rules_of_devices(const Config& c, bool gpus, std::span<const int64_t> host_gpus, Rules& rule) {
  const auto lacking = std::ranges::find(host_gpus, 0);
  const bool none = std::ranges::all_of(host_gpus, [](int64_t count) { return count == 0; });
  rule("device.kind", {}, gpus && none && !built_with_cuda(),
       "found cuda, but this build has no CUDA; expected cpu, or a build that is configured with -DTRIVET_CUDA=ON");
  rule("device.kind", {}, gpus && lacking != host_gpus.end(),
       "found {}, but the host of rank {} has no GPU that this build can use (found {} of the {} ranks' hosts with "
       "one); expected cpu, or a build with CUDA and a driver on each host",
       c.device.kind ? "cuda" : "auto", lacking - host_gpus.begin(),
       std::ranges::count_if(host_gpus, [](int64_t count) { return count > 0; }), host_gpus.size());
  const CommBackend backend = c.comm.backend.value_or(CommBackend::thread);
  rule("comm.backend", {}, !gpus && (backend == CommBackend::nccl || backend == CommBackend::staged),
       "found {}, but this run computes on CPUs; expected auto, thread or mpi", word_of(backend));
  Config found = c;
  found.device.kind = gpus ? DeviceKind::cuda : DeviceKind::cpu;
  check_needs(found, rule);
  if (gpus) check_rules_of_gpus(c, rule);
}

}  // namespace

void check_rules_of_ranks(const LoadedConfig& loaded, const RunFacts& facts, Problems& problems) {
  const Config& config = loaded.config;
  Rules rule(problems);
  for (const ToolSection& section : tool_sections())
    if (section.check_run) section.check_run(loaded, rule);
  const auto sizes_are_known = [&] { return problems.clean({kTensor, kPipeline, kContext}); };
  if (sizes_are_known()) check_world(config, facts.world_size, rule);
  check_vocabulary(config, facts, rule);
  if (!sizes_are_known()) return;
  check_groups(config, facts.world_size, rule);
  check_sharding(config, facts.world_size, rule);
}

void check_rules_of_layout(const Config& c, const Layout& layout, Problems& problems) {
  Rules rule(problems);
  if (c.device.kind == DeviceKind::cuda) check_rules_of_gpus(c, rule);
  const Sharding sharding = c.parallel.data_parallel_sharding_strategy;
  const bool halves = std::ranges::any_of(layout.schedule.programs, [](const Program& program) {
    return std::ranges::any_of(program, [](const Op& op) { return op.kind == OpKind::backward_weight; });
  });
  rule(kStrategy, {}, halves && streams_grads(sharding),
       "{} needs whole backward passes, but the schedule {} defers weight gradients: they would have to be stored for "
       "all micro-batches in flight; optim works, and so do 1f1b and interleaved",
       word_of(sharding), layout.schedule.kind);
  rule("overlap.align_param_gather", {}, c.overlap.align_param_gather && layout.schedule.v == 1,
       "true needs several chunks per rank (interleaved schedules, zb-v): the schedule {} has one, whose weights are "
       "needed immediately",
       layout.schedule.kind);
  for (const auto& [key, counts] :
       {std::pair("parallel.account_for_embedding_in_pipeline_split",
                  c.parallel.account_for_embedding_in_pipeline_split),
        std::pair("parallel.account_for_loss_in_pipeline_split", c.parallel.account_for_loss_in_pipeline_split)})
    rule.no_effect(key, {kPipeline, "parallel.pipeline_schedule"}, counts && layout.schedule.stages() == 1,
                   "true has no effect with one pipeline stage, which has all layers");
  const int64_t limit = c.overlap.wgrad_deferral_limit;
  rule.few_ranks("overlap.wgrad_deferral_limit", limit > layout.micro_batches,
                 "{} is above the micro-batches of a step ({}): all are deferred, as with 0", limit,
                 layout.micro_batches);
  if (layout.layers_of_stage.empty()) return;  // already reported
  const int64_t largest = std::ranges::max(layout.layers_of_stage);
  rule("model.recompute_num_layers", {}, c.model.recompute_num_layers > largest,
       "{} is above the {} of the largest stage, expected at most that", c.model.recompute_num_layers,
       counted(largest, "layer"));
}

bool on_gpus(const Config& config, std::span<const int64_t> host_gpus) {
  const bool some = std::ranges::any_of(host_gpus, [](int64_t gpus) { return gpus > 0; });
  const bool gpus = config.device.kind ? config.device.kind == DeviceKind::cuda : some;
  const std::string no_file;
  const Origins no_origins;
  Problems problems(no_file, no_origins);
  Rules rule(problems);
  check_rules_of_devices(config, gpus, host_gpus, rule);
  problems.throw_if_any();
  return gpus;
}

}  // namespace trivet

#include "engine/config/explain.h"

#include <fmt/ranges.h>
#include <ranges>

#include "engine/config/fields.h"
#include "engine/config/validate.h"
#include "engine/metrics/accounting.h"
#include "parallel/data/flat_buffer.h"
#include "parallel/pipeline/check.h"

namespace trivet {
namespace {

// All sections, one below another, with one row per field.
template <class Row>
TextBlock by_section(const Row& row) {
  TextBlock block;
  std::string_view section;
  for (const Field& field : fields()) {
    if (field.section() != section) block.rows.push_back({std::string(section = field.section())});
    block.rows.push_back(row(field));
    block.rows.back().front().insert(0, 2, ' ');
  }
  return block;
}

std::string recompute_text(const ModelConfig& m) {
  if (m.recompute_granularity == RecomputeGranularity::none) return "none";
  if (m.recompute_granularity == RecomputeGranularity::selective) {
    const auto modules = m.recompute_modules | std::views::transform(word_of<RecomputeModule>);
    return fmt::format("{} of every layer", fmt::join(modules, ","));
  }
  if (m.recompute_method == RecomputeMethod::block)
    return fmt::format("the first {} of each stage", counted(m.recompute_num_layers, "layer"));
  return m.recompute_num_layers == 1 ? "every layer, from its input"
                                     : fmt::format("every layer, in groups of {}", m.recompute_num_layers);
}

std::string precision_text(const Config& config) {
  const PrecisionConfig& p = config.precision;
  if (p.fp8 == Fp8::none) return std::string(word_of(p.dtype));
  const int64_t ends = p.first_last_layers_bf16 ? p.num_layers_at_start_in_bf16 + p.num_layers_at_end_in_bf16 : 0;
  return fmt::format("{}; GEMMs of the linear layers of {} in FP8 ({}{}){}{}", word_of(p.dtype),
                     counted(config.model.num_layers - ends, "layer"), word_of(p.fp8),
                     p.fp8_recipe == Fp8Recipe::blockwise ? ", block scales" : "",
                     p.fp8_wgrad ? "" : ", except weight gradients",
                     p.fp8_param_gather ? "; their weights are gathered in FP8" : "");
}

TextBlock describe_model(const Config& config, const Layout& layout) {
  const ModelConfig& m = config.model;
  const AttentionSpec a = model_spec_of(m).attention;
  const std::string groups = a.kv_heads == a.heads ? "" : fmt::format(" in {}", counted(a.kv_heads, "group"));
  TextBlock block = {
      "model",
      {{"shape", fmt::format("{}, hidden {}, ffn {}, {} of {}{}, {}", counted(m.num_layers, "layer"),
                             grouped(m.hidden_size), grouped(*m.ffn_hidden_size), counted(a.heads, "head"),
                             a.head_width, groups, counted(m.seq_length, "position"))},
       {"block",
        fmt::format("{}{}, {}, {}, {} biases", word_of(m.normalization), m.qk_layernorm ? " (of q and k too)" : "",
                    word_of(m.position_embedding_type), m.swiglu ? "SwiGLU" : "GELU",
                    m.add_bias_linear ? "with"
                    : m.add_qkv_bias  ? "only qkv"
                                      : "no")},
       {"output layer", m.untie_embeddings_and_output_weights ? "has its own weight" : "tied to the word embeddings"},
       {"dtype", precision_text(config)},
       {"recompute", recompute_text(m)}}};
  if (const int64_t rows = cross_entropy_rows_of(config, layout); rows > 0) {
    const int64_t all = m.seq_length / layout.mesh[Axis::cp] * config.batch.micro_batch_size;
    const int64_t row_bytes = layout.padded_vocab / layout.mesh[Axis::tp] * size_of(config.precision.dtype);
    block.rows.push_back(
        {"loss", fmt::format("logits of {} of a micro-batch's {} tokens at a time: {} instead of {}", grouped(rows),
                             grouped(all), bytes_text(rows * row_bytes), bytes_text(all * row_bytes))});
  }
  return block;
}

TextBlock describe_parameters(const Config& config, const Layout& layout) {
  const ModelSpec model = model_spec_of(config.model);
  const ParameterCount exact = count_parameters(model);
  const ParameterCount padded = count_parameters(model.with_vocab(layout.padded_vocab));
  TextBlock block = {
      "parameters", {{"", "vocabulary " + grouped(model.vocab), "padded to " + grouped(layout.padded_vocab)}}, "lrr"};
  for (size_t i = 0; i < kModelParts; ++i)
    if (exact.of[i] > 0)
      block.rows.push_back({std::string(words_of(ModelPart{})[i]), grouped(exact.of[i]), grouped(padded.of[i])});
  block.rows.push_back({"total", grouped(exact.total()), grouped(padded.total())});
  return block;
}

// "3, 62 x 4, 3"
std::string run_lengths(const std::vector<int64_t>& values) {
  std::string text;
  for (size_t i = 0; i < values.size();) {
    size_t end = i;
    while (end < values.size() && values[end] == values[i]) ++end;
    text += text.empty() ? "" : ", ";
    text += end - i > 1 ? fmt::format("{} x {}", end - i, values[i]) : fmt::to_string(values[i]);
    i = end;
  }
  return text;
}

std::string data_parallel_text(const Config& config) {
  const Sharding strategy = config.parallel.data_parallel_sharding_strategy;
  const std::string buckets = streams_grads(strategy)
                                  ? "a bucket a unit of the model"
                                  : "buckets of " + grouped(*config.parallel.bucket_size) + " elements";
  const OverlapConfig& o = config.overlap;
  std::string overlap = o.overlap_grad_reduce && o.overlap_param_gather ? "gradients and weights overlap compute"
                        : o.overlap_grad_reduce                         ? "gradients overlap compute"
                        : o.overlap_param_gather                        ? "weights overlap compute"
                                                                        : "no overlap";
  if (o.collectives_in_flight > 1) overlap += fmt::format(", {} collectives in flight", o.collectives_in_flight);
  return fmt::format("{}, {}, {}", word_of(strategy), buckets, overlap);
}

// "tensor 5 us and 100 Gbit/s, data 10 Gbit/s"; empty without links. A group of one rank has no link.
std::string describe_links(const CommConfig& c, const MeshShape& mesh) {
  std::string text;
  const std::array ranks{mesh[Axis::tp], mesh[Axis::cp], mesh[Axis::pp], mesh.size(kGradientAxes)};
  for (size_t k = 0; k < ranks.size(); ++k) {
    const double latency_us = c.links[k].latency_us.value_or(0), gbps = c.links[k].gbps.value_or(0);
    if (ranks[k] == 1 || (latency_us == 0 && gbps == 0)) continue;
    text += fmt::format("{}{} ", text.empty() ? "" : ", ", kCommClasses[k]);
    if (latency_us > 0) text += fmt::format("{} us{}", latency_us, gbps > 0 ? " and " : "");
    if (gbps > 0) text += fmt::format("{} Gbit/s", gbps);
  }
  if (c.shared_port) text += ", through one port";
  return text;
}

TextBlock describe_layout(const Config& config, const Layout& layout) {
  const MeshShape& mesh = layout.mesh;
  const Schedule& schedule = layout.schedule;
  TextBlock block = {"layout",
                     {{"ranks", fmt::format("{} = {}, in the order {}", mesh.world(), sizes_text(mesh),
                                            to_text(config.parallel.order, mesh[Axis::cp] > 1))},
                      {"sequence parallel", config.parallel.sequence_parallel ? "yes" : "no"}}};
  if (mesh[Axis::cp] > 1)
    block.rows.push_back(
        {"context parallel",
         fmt::format("zigzag pieces of {}, {}, {}", counted(config.model.seq_length / (2 * mesh[Axis::cp]), "position"),
                     word_of(config.parallel.cp_comm_type),
                     config.overlap.overlap_cp_comm ? "overlapped" : "no overlap")});
  block.rows.push_back({"pipeline", mesh[Axis::pp] == 1 ? "none"
                                                        : fmt::format("{}, {} per rank, layers of each stage: {}",
                                                                      schedule.kind, counted(schedule.v, "chunk"),
                                                                      run_lengths(layout.layers_of_stage))});
  block.rows.push_back({"data parallel", mesh.size(kGradientAxes) == 1 ? "none" : data_parallel_text(config)});
  if (!gradients_in_order(schedule))  // a schedule from a file
    block.rows.push_back({"",
                          "it sums a stage's gradients in a different order than one rank does: losses may differ "
                          "in the last bits"});
  if (const std::string links = describe_links(config.comm, mesh); !links.empty())
    block.rows.push_back({"emulated links", links});
  return block;
}

std::string checkpoints_text(const Config& config) {
  const CheckpointConfig& c = config.checkpoint;
  if (config.train.skip_train) return "none: train.skip_train evaluates one";
  if (c.save_interval == 0) return "none: with checkpoint.save_interval 0 the weights are lost when the run ends";
  std::string kept = c.keep_last == 0 ? "all" : fmt::format("the last {}", c.keep_last);
  if (c.save_retain_interval > 0) kept += fmt::format(", those of every {}", counted(c.save_retain_interval, "step"));
  if (c.keep_best > 0) kept += fmt::format(", the best {}", c.keep_best);
  return fmt::format("every {} and the last one, in {}/checkpoints{}, {} kept", counted(c.save_interval, "step"),
                     config.train.run_dir, c.mirror.empty() ? "" : ", copied to " + c.mirror, kept);
}

TextBlock describe_work(const Config& config, const Layout& layout) {
  const int64_t samples = *config.batch.global_batch_size, tokens = samples * config.model.seq_length;
  const BatchSizes& sizes = layout.batch_sizes;
  const double all_tokens = samples_of_run(config, layout) * static_cast<double>(config.model.seq_length);
  const std::string ramp =
      layout.smaller.empty() ? "" : fmt::format("; {} at first, {} sizes", sizes.of_step(0), sizes.parts.size());
  const std::string from = layout.smaller.empty() ? "" : grouped(sizes.of_step(0) * config.model.seq_length) + " to ";
  const auto convention = config.train.flops_convention;
  const auto flops = flops_per_token(model_spec_of(config.model), convention);
  return {"work",
          {{"step", fmt::format("{} = {} x {} of {}{}", counted(samples, "sample"),
                                counted(layout.mesh[Axis::dp], "data-parallel rank"),
                                counted(layout.micro_batches, "micro-batch"), config.batch.micro_batch_size, ramp)},
           {"tokens", fmt::format("{}{} per step, {} in {}", from, grouped(tokens),
                                  all_tokens < 9e18 ? grouped(static_cast<int64_t>(all_tokens))
                                                    : fmt::format("{:.4g}", all_tokens),
                                  counted(config.train.train_iters, "step"))},
           {"model FLOPs", fmt::format("{:.6e} per token, {:.6e} per step (convention: {})", flops.total(),
                                       flops.total() * static_cast<double>(tokens), word_of(convention))},
           {"checkpoints", checkpoints_text(config)}}};
}

TextBlock describe_memory(const std::vector<MemoryPlan>& ranks) {
  // Marks the host memory of a rank on a GPU; on a CPU all memory is host memory.
  const auto name = [](const MemoryItem& item) { return item.name + (item.on_host ? " (host)" : ""); };
  const bool any_on_host = ranks[0].on_device() < ranks[0].total();
  if (ranks.size() == 1) {
    TextBlock block = {"memory per rank", {}, "lrr"};
    const auto row = [&](const std::string& of, int64_t bytes) {
      block.rows.push_back({of, bytes_text(bytes), grouped(bytes) + " bytes"});
    };
    for (const MemoryItem& item : ranks[0].items) row(name(item), item.bytes);
    if (any_on_host) row("device sum", ranks[0].on_device());
    row("sum", ranks[0].total());
    return block;
  }
  // One column per purpose, one row per pipeline rank.
  TextBlock block = {"memory per rank", {{"pipeline rank"}}};
  for (const MemoryItem& item : ranks[0].items) block.rows[0].push_back(name(item));
  if (any_on_host) block.rows[0].push_back("device sum");
  block.rows[0].push_back("sum");
  block.align = "l" + std::string(block.rows[0].size() - 1, 'r');
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<std::string>& row = block.rows.emplace_back(std::vector{std::to_string(rank)});
    for (const MemoryItem& item : ranks[rank].items) row.push_back(bytes_text(item.bytes));
    if (any_on_host) row.push_back(bytes_text(ranks[rank].on_device()));
    row.push_back(bytes_text(ranks[rank].total()));
  }
  return block;
}

}  // namespace

TextBlock describe_values(const LoadedConfig& loaded) {
  return by_section([&](const Field& field) -> std::vector<std::string> {
    const auto origin = loaded.origins.find(field.name);
    return {std::string(field.key()), format_field(field, loaded.config),
            to_string(origin == loaded.origins.end() ? Origin{} : origin->second)};
  });
}

std::vector<TextBlock> describe_run(const Config& config, const Layout& layout, const std::vector<MemoryPlan>& memory) {
  return {describe_model(config, layout), describe_parameters(config, layout), describe_layout(config, layout),
          describe_work(config, layout), describe_memory(memory)};
}

TextBlock describe_keys() {
  const Config defaults;
  return by_section([&](const Field& field) -> std::vector<std::string> {
    const std::string_view unit = field.numbers.unit;
    return {std::string(field.key()), field.required ? "required" : format_field(field, defaults),
            unit.empty() ? expected(field) : fmt::format("{} ({})", expected(field), unit), std::string(field.about)};
  });
}

}  // namespace trivet

#include "tests/support/random_runs.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <map>

#include "base/check.h"
#include "engine/config/fields.h"
#include "parallel/pipeline/check.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

std::string words_of(const Config& config) {
  const Config defaults = tiny_config();
  std::string words;
  for (const Field& field : fields())
    if (format_field(field, config) != format_field(field, defaults))
      words += fmt::format(" {}={}", field.name, format_field(field, config));
  return words;
}

// The model, which all three runs share.
Config draw_model(Draw& draw, const Runs& runs, bool sequence_parallel) {
  Config config = tiny_config();
  ModelConfig& model = config.model;
  model.num_attention_heads = runs.t * draw.of(1, 2);
  model.hidden_size = model.num_attention_heads * draw.among({4, 6, 8, 16});
  model.ffn_hidden_size = runs.t * draw.of(1, 24);
  model.seq_length = sequence_parallel ? runs.t * draw.of(1, 6) : draw.of(2, 20);
  model.vocab_size = draw.of(61, 70);
  model.make_vocab_size_divisible_by = draw.among({1, 8, 32});
  model.untie_embeddings_and_output_weights = draw.one_in(2);
  model.scale_output_layer_init = draw.one_in(2);
  model.normalization = draw.among({Norm::layernorm, Norm::rmsnorm});
  model.swiglu = draw.one_in(2);
  model.add_bias_linear = draw.one_in(2);
  model.add_qkv_bias = !model.add_bias_linear && draw.one_in(2);
  model.qk_layernorm = draw.one_in(3);
  if (draw.one_in(2)) model.num_query_groups = runs.t;
  if (draw.one_in(3)) model.kv_channels = draw.among({4, 6, 10});
  if (draw.one_in(2)) model.position_embedding_type = Positions::rope;
  if (draw.one_in(3)) model.hidden_dropout = 0.1;
  if (draw.one_in(3)) model.attention_dropout = 0.2;
  config.optimizer.decay_norms_and_biases = draw.one_in(3);
  config.optimizer.clip_grad = draw.among({0.0, 0.5, 1.0});
  config.optimizer.lr_decay_style = draw.among({LrDecay::cosine, LrDecay::linear, LrDecay::inverse_square_root});
  if (draw.one_in(3)) config.optimizer.decoupled_lr = config.optimizer.lr / 4;
  config.precision.dtype = draw.one_in(4) ? DType::bf16 : DType::f32;
  if (config.precision.dtype == DType::bf16 && draw.one_in(2))
    config.precision.fp8 = draw.among({Fp8::hybrid, Fp8::e4m3});
  if (config.precision.fp8 == Fp8::e4m3 && draw.one_in(2)) config.precision.fp8_recipe = Fp8Recipe::blockwise;
  config.batch.micro_batch_size = draw.of(1, 3);
  const int micro_batches = draw.of(1, runs.d > 2 ? 4 : 9);
  config.batch.global_batch_size = config.batch.micro_batch_size * runs.d * micro_batches;
  return config;
}

void draw_schedule(Draw& draw, Runs& runs, bool whole_backward_passes, const std::string& folder) {
  Config& config = runs.full;
  const int m = static_cast<int>(*config.batch.global_batch_size / config.batch.micro_batch_size / runs.d);
  ParallelConfig& c = config.parallel;
  c.pipeline_model_parallel_size = runs.p;
  int v = 1, chunks = 1;  // chunks: per rank; they share the rank's layers
  if (draw.one_in(3)) {
    v = draw.of(1, 3);
    const StageMap map = draw.one_in(2) ? StageMap::interleaved : StageMap::v_shaped;
    if (map == StageMap::interleaved) chunks = v;
    const Schedule schedule =
        random_schedule(draw.random(), runs.p, v, m, map, !whole_backward_passes && draw.one_in(2));
    check_schedule(schedule);
    check(gradients_in_order(schedule), "a schedule was drawn that adds gradients in another order");
    runs.schedule_text = to_text(schedule);
    c.pipeline_schedule = folder + "/random.txt";
    std::ofstream(c.pipeline_schedule) << runs.schedule_text;
  } else {
    std::vector<const char*> kinds{"gpipe", "1f1b", "1f1b-eager", "interleaved-bfs"};
    if (m >= runs.p) kinds.push_back("interleaved");
    if (!whole_backward_passes) kinds.insert(kinds.end(), {"zb-h1", "zb-h2", "zb-v"});
    if (!whole_backward_passes && m >= 2 * runs.p) kinds.push_back("dualpipe-v");
    c.pipeline_schedule = kinds[static_cast<size_t>(draw.of(0, static_cast<int>(kinds.size()) - 1))];
    const bool v_shaped = c.pipeline_schedule == "zb-v" || c.pipeline_schedule == "dualpipe-v";
    if (c.pipeline_schedule.starts_with("interleaved")) {
      v = chunks = draw.of(2, 3);
      c.virtual_pipeline_model_parallel_size = v;
    } else if (v_shaped) {
      v = 2;
    }
    if (c.pipeline_schedule == "interleaved" && draw.one_in(2)) c.microbatch_group_size_per_vp_stage = m;
  }
  // Layers for every stage, and possibly different numbers in the first and last.
  const int stages = runs.p * v;
  int layers = stages * draw.of(1, 2);
  if (runs.p > 1 && stages > 2 * chunks && draw.one_in(3)) {
    const int first = chunks * draw.of(0, 2), last = chunks * draw.of(0, 2);
    c.decoder_first_pipeline_num_layers = first;
    c.decoder_last_pipeline_num_layers = last;
    layers = (stages - 2 * chunks) * draw.of(1, 2) + first + last;
  } else if (stages > 1 && draw.one_in(3)) {
    layers = 2 * stages - 2;
    c.account_for_embedding_in_pipeline_split = c.account_for_loss_in_pipeline_split = true;
  }
  config.model.num_layers = layers;
}

// A batch that varies from step to step, including odd numbers of micro-batches: for schedules that accept any number.
void draw_batch_sizes(Draw& draw, Runs& runs) {
  Config& config = runs.full;
  const int64_t one = config.batch.micro_batch_size * runs.d;
  const auto most = static_cast<int>(*config.batch.global_batch_size / one);
  const std::string& schedule = config.parallel.pipeline_schedule;
  if (most < 2 || (schedule != "gpipe" && schedule != "1f1b" && schedule != "interleaved-bfs") || draw.one_in(3))
    return;
  int64_t sizes[3] = {draw.of(1, most) * one, draw.of(1, most) * one, draw.of(1, most) * one};
  sizes[draw.of(0, 2)] = most * one;
  if (std::ranges::all_of(sizes, [&](int64_t size) { return size == sizes[0]; })) sizes[0] = one;
  int64_t tokens = 0;
  for (const int64_t size : sizes) {
    config.batch.step_batch_size_schedule += fmt::format("{}{}:{}", tokens > 0 ? " " : "", tokens, size);
    tokens += size * config.model.seq_length;
  }
  config.train.train_iters = 0;
  config.train.train_samples = 3 * most * one;
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_iters.reset();
}

void draw_switches(Draw& draw, Runs& runs) {
  Config& config = runs.full;
  OverlapConfig& overlap = config.overlap;
  const Sharding strategy = config.parallel.data_parallel_sharding_strategy;
  const bool streams = streams_grads(strategy);
  overlap.overlap_p2p_comm = !draw.one_in(4) || runs.p == 1;
  if (overlap.overlap_p2p_comm && runs.p > 1) overlap.p2p_receive_ahead = draw.of(1, 4);
  if (runs.d > 1) {
    overlap.overlap_grad_reduce = draw.one_in(2);
    overlap.overlap_param_gather = strategy != Sharding::no_shard && draw.one_in(2);
    if (overlap.overlap_grad_reduce || overlap.overlap_param_gather) overlap.collectives_in_flight = draw.of(1, 3);
    config.precision.fp8_param_gather = config.precision.fp8 != Fp8::none &&
                                        config.precision.fp8_recipe == Fp8Recipe::tensorwise &&
                                        strategy != Sharding::no_shard && draw.one_in(2);
    overlap.align_grad_reduce = overlap.overlap_grad_reduce && runs.p > 1 && !streams && draw.one_in(2);
    if (!streams && draw.one_in(2)) config.parallel.bucket_size = draw.of(1, 5000);
  }
  // The embedding adds to a tied gradient on the same rank at a different time.
  overlap.defer_embedding_wgrad_compute =
      runs.p > 1 && !streams && config.model.untie_embeddings_and_output_weights && draw.one_in(3);
  if (overlap.defer_embedding_wgrad_compute) overlap.wgrad_deferral_limit = draw.of(0, 3);
  if (config.parallel.sequence_parallel) {
    using enum TensorOverlap;
    using Optional = std::optional<TensorOverlap>;
    overlap.tp_comm_overlap = draw.among({none, bulk, ring, pipeline});
    overlap.tp_comm_overlap_qkv = draw.among<Optional>({{}, none, bulk, ring, pipeline});
    overlap.tp_comm_overlap_fc2 = draw.among<Optional>({{}, none, ring, pipeline});
  }
  ModelConfig& model = config.model;
  if (draw.one_in(3)) {
    model.recompute_granularity = RecomputeGranularity::selective;
    using enum RecomputeModule;
    using Modules = std::vector<RecomputeModule>;
    model.recompute_modules =
        draw.among<Modules>({{core_attn}, {layernorm}, {mlp}, {core_attn, mlp}, {layernorm, core_attn, mlp}});
  } else if (draw.one_in(2)) {
    model.recompute_granularity = RecomputeGranularity::full;
    model.recompute_method = draw.among({RecomputeMethod::uniform, RecomputeMethod::block});
    model.recompute_num_layers = 1;
  }
  config.parallel.order = *parse_axis_order(draw.among({"tp-dp-pp", "tp-pp-dp", "pp-tp-dp", "dp-cp-pp-tp"}));
  runs.on_split_devices = draw.one_in(3);
  runs.ahead = draw.one_in(2);
  if (runs.on_split_devices) {
    if (draw.one_in(2)) config.device.cuda_graph_impl = CudaGraphs::local;
    config.device.kind.reset();  // the tests' device
  } else if (draw.one_in(4)) {
    config.comm.link_latency_us = 20;
    config.comm.link_gbps = 4;
  }
}

// Context parallelism: in `plain`, too, because its ranks sum in a different order.
void draw_context(Draw& draw, Runs& runs) {
  const ModelConfig& model = runs.full.model;
  const int64_t pieces = 4 * (runs.full.parallel.sequence_parallel ? runs.t : 1);
  const bool divides = model.seq_length % (model.attention_dropout > 0 ? 64 : pieces) == 0;
  if (!divides || runs.t * runs.p * runs.d > 4 || draw.one_in(2)) return;
  runs.c = 2;
  runs.same_order = false;
  runs.full.overlap.overlap_cp_comm = !draw.one_in(3);
  const CpCommType type = draw.among({CpCommType::p2p, CpCommType::all_gather});
  for (Config* const config : {&runs.plain, &runs.full}) {
    config->parallel.context_parallel_size = runs.c;
    config->parallel.cp_comm_type = type;
  }
}

// Document boundaries: in all runs, because they change the losses.
void draw_documents(Draw& draw, Runs& runs) {
  if (!draw.one_in(3)) return;
  const bool ids = !draw.one_in(4), mask = !draw.one_in(4), loss = !draw.one_in(4);
  for (Config* const config : {&runs.one, &runs.plain, &runs.full}) {
    config->data.reset_position_ids = ids, config->data.reset_attention_mask = mask;
    config->data.eod_mask_loss = loss;
  }
}

// A chunked loss: in `plain`, too, so that the output weight's gradient is summed in the same order.
void draw_loss_chunks(Draw& draw, Runs& runs) {
  if (runs.full.overlap.defer_embedding_wgrad_compute || draw.one_in(2)) return;
  runs.same_order = false;
  runs.full.model.cross_entropy_chunk_rows = runs.plain.model.cross_entropy_chunk_rows = draw.of(1, 40);
}

}  // namespace

std::string Runs::text() const {
  return fmt::format("{} ranks{}{}:{}\n{}", ranks(), on_split_devices ? ", split devices" : "",
                     ahead ? ", a step ahead" : "", words_of(full), schedule_text);
}

std::vector<std::string> Runs::choices() const {
  std::vector<std::string> result = {fmt::format("t {}", t),
                                     fmt::format("p {}", p),
                                     fmt::format("d {}", d),
                                     fmt::format("c {}", c),
                                     fmt::format("split devices {}", on_split_devices),
                                     fmt::format("ahead {}", ahead)};
  for (const Field& field : fields()) {
    const std::string_view section = field.section();
    std::string value = format_field(field, full);
    if (field.name == "parallel.pipeline_schedule" && !schedule_text.empty()) value = "drawn";
    else if (field.name == "batch.step_batch_size_schedule") value = value.empty() ? "constant" : "changes";
    else if (section == "train") continue;
    // Sizes by kind: 0, 1, 2, odd or even.
    else if (const auto n = parse_integer(value); n && *n > 2) value = *n % 2 == 1 ? "odd" : "even";
    result.push_back(fmt::format("{}={}", field.name, value));
  }
  return result;
}

CoveringDraws covering_draws(int count) {
  constexpr size_t kPool = 500;
  const TempDir dir;
  std::map<std::string, size_t> numbers;  // choice → index
  std::vector<std::vector<size_t>> pool;
  for (size_t i = 0; i < kPool; ++i) {
    std::vector<size_t>& mine = pool.emplace_back();
    for (const std::string& choice : draw_runs(static_cast<int>(i), dir / "").choices())
      mine.push_back(numbers.emplace(choice, numbers.size()).first->second);
    std::ranges::sort(mine);
  }
  const size_t n = numbers.size();
  std::vector<size_t> seen(n);  // number of draws with each choice
  for (const std::vector<size_t>& mine : pool)
    for (const size_t choice : mine) ++seen[choice];
  std::vector<std::vector<size_t>> pairs(kPool);
  std::vector<char> left(n * n);  // pairs of choices not yet covered
  CoveringDraws result;
  for (size_t i = 0; i < kPool; ++i) {
    std::erase_if(pool[i], [&](size_t choice) { return seen[choice] == kPool; });
    for (size_t a = 0; a < pool[i].size(); ++a)
      for (size_t b = a + 1; b < pool[i].size(); ++b) {
        const size_t pair = pairs[i].emplace_back(pool[i][a] * n + pool[i][b]);
        result.pairs += !left[pair];
        left[pair] = true;
      }
  }
  for (int k = 0; k < count; ++k) {
    std::vector<int64_t> gains;
    for (const std::vector<size_t>& mine : pairs)
      gains.push_back(std::ranges::count_if(mine, [&](size_t pair) { return left[pair]; }));
    const auto best = static_cast<size_t>(std::ranges::max_element(gains) - gains.begin());
    result.covered += gains[best];
    for (const size_t pair : pairs[best]) left[pair] = false;
    result.numbers.push_back(static_cast<int>(best));
  }
  return result;
}

Runs draw_runs(int number, const std::string& folder) {
  Draw draw(number);
  Runs runs;
  do {
    runs.t = draw.among({1, 1, 2, 2, 3, 4});
    runs.p = draw.among({1, 2, 2, 3, 4});
    runs.d = draw.among({1, 1, 2, 2, 3, 4});
  } while (runs.t * runs.p * runs.d > 12);
  const bool sequence_parallel = runs.t > 1 && draw.one_in(2);
  const Sharding strategy =
      draw.among({Sharding::no_shard, Sharding::optim, Sharding::optim_grads, Sharding::optim_grads_params});
  const bool streams = streams_grads(strategy);

  runs.full = draw_model(draw, runs, sequence_parallel);
  runs.full.parallel.tensor_model_parallel_size = runs.t;
  runs.full.parallel.sequence_parallel = sequence_parallel;
  runs.full.parallel.data_parallel_sharding_strategy = strategy;
  runs.full.overlap.average_in_collective = runs.d > 1 && draw.one_in(3);
  draw_schedule(draw, runs, streams, folder);
  draw_batch_sizes(draw, runs);

  runs.one = tiny_config();
  runs.one.train = runs.full.train;
  runs.one.model = runs.full.model;
  runs.one.optimizer = runs.full.optimizer;
  runs.one.precision = runs.full.precision;
  runs.one.batch = runs.full.batch;
  // Tied embeddings of two stages are summed in a different order, as are sums over tensor- and data-parallel ranks.
  const bool untied = runs.full.model.untie_embeddings_and_output_weights;
  runs.plain = runs.full;
  if (untied) runs.plain.parallel = runs.one.parallel;
  runs.plain.parallel.tensor_model_parallel_size = runs.t;
  runs.plain.parallel.sequence_parallel = sequence_parallel;
  runs.plain.parallel.data_parallel_sharding_strategy = streams ? strategy : Sharding::no_shard;
  // A strategy that shards gradients adds each micro-batch's gradient as a whole.
  runs.same_order = untied && !streams && runs.t == 1 && runs.d == 1;
  draw_switches(draw, runs);
  draw_context(draw, runs);
  draw_documents(draw, runs);
  draw_loss_chunks(draw, runs);
  return runs;
}

void exchange_two_ops(Draw& draw, const Runs& runs) {
  Schedule schedule = parse_schedule(runs.schedule_text, "drawn");
  Program& program = schedule.programs[static_cast<size_t>(draw.of(0, schedule.p - 1))];
  const int first = draw.of(0, static_cast<int>(program.size()) - 2);
  // Swaps neighbours: most programs changed like this can still run.
  const int second = std::min(first + draw.of(1, 3), static_cast<int>(program.size()) - 1);
  std::swap(program[static_cast<size_t>(first)], program[static_cast<size_t>(second)]);
  std::ofstream(runs.full.parallel.pipeline_schedule) << to_text(schedule);
}

// Sets one key of the model or its layout to a value that is legal on its own.
void change_a_key(Draw& draw, Config& config) {
  for (;;) {
    const Field& field = fields()[static_cast<size_t>(draw.of(0, static_cast<int>(fields().size()) - 1))];
    const auto section = field.section();
    if (section != "model" && section != "parallel" && section != "overlap" && section != "batch" &&
        section != "precision")
      continue;
    std::string text = fmt::format("{}", draw.of(0, 6));
    if (field.name == "model.vocab_size") text = fmt::format("{}", draw.of(61, 70));  // at least the dataset's 61
    else if (field.name == "parallel.pipeline_schedule")
      text = schedule_kinds()[static_cast<size_t>(draw.of(0, 8))].name;
    else if (!field.words.empty())
      text = field.words[static_cast<size_t>(draw.of(0, static_cast<int>(field.words.size()) - 1))];
    else if (field.noun == "true or false") text = draw.one_in(2) ? "true" : "false";
    else if (field.key().ends_with("dropout")) text = "0.3";
    else if (field.noun == "a number" || field.noun == "text") continue;
    parse_field(field, {.text = text}, config);
    return;
  }
}

}  // namespace trivet::test

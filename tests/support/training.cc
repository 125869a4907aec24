#include "tests/support/training.h"

#include <cstring>
#include <gtest/gtest.h>
#include <sstream>
#include <unistd.h>
#include <utility>

#include "engine/config/fields.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/training_data.h"
#include "engine/train/run.h"
#include "kernels/philox.h"
#include "parallel/comm/staged_comm.h"
#include "parallel/comm/world.h"
#include "tests/support/split_device.h"
#include "tests/support/temp_dir.h"

namespace trivet::test {

Config tiny_config() {
  Config config;
  config.model = {.num_layers = 4,
                  .hidden_size = 32,
                  .ffn_hidden_size = 128,
                  .num_attention_heads = 4,
                  .seq_length = 16,
                  .vocab_size = 61,
                  .make_vocab_size_divisible_by = 1};
  config.batch = {.micro_batch_size = 2, .global_batch_size = 8};
  config.optimizer.lr = 3e-3;
  config.optimizer.min_lr = 3e-4;
  config.optimizer.lr_warmup_iters = 2;
  config.optimizer.lr_decay_iters = 20;
  config.train.train_iters = 20;
  config.device.kind = DeviceKind::cpu;  // even if there are GPUs
  config.device.threads_per_rank = 1;
  config.data.path = "tiny";  // opened by the tests themselves
  config.data.prefetch = 1;
  return config;
}

void as_llama(Config& config) {
  ModelConfig& model = config.model;
  model.normalization = Norm::rmsnorm;
  model.position_embedding_type = Positions::rope;
  model.swiglu = true;
  model.add_bias_linear = false;
  model.ffn_hidden_size = 88;
  model.num_attention_heads = 8;
  model.num_query_groups = 4;
  model.kv_channels = 8;
  model.untie_embeddings_and_output_weights = true;
}

void set_key(Config& config, std::string_view key, std::string_view value) {
  const Field* field = find_field(key);
  check(field, std::string(key) + " is no key");
  if (const auto problem = parse_field(*field, {.text = std::string(value)}, config)) fail(*problem);
}

Config cut(Config config, const Cut& how) {
  config.parallel.tensor_model_parallel_size = how.t;
  config.parallel.pipeline_model_parallel_size = how.p;
  config.parallel.context_parallel_size = how.c;
  config.parallel.cp_comm_type = how.cp_comm_type;
  config.parallel.sequence_parallel = how.sequence_parallel;
  config.parallel.pipeline_schedule = how.schedule;
  if (how.v > 0) config.parallel.virtual_pipeline_model_parallel_size = how.v;
  set_key(config, "parallel.data_parallel_sharding_strategy", how.strategy);
  return config;
}

void PrintTo(const LayoutCase& c, std::ostream* out) { *out << c.name; }

Config config_of(const LayoutCase& c) {
  Config config = cut(tiny_config(), c.cut);
  c.set(config);
  return config;
}

Resolved resolved(const Config& config, int ranks) {
  LoadedConfig loaded{.config = config, .origins = {}, .path = "test"};
  const Layout layout = resolve(loaded, {.world_size = ranks});
  return {loaded.config, layout};
}

std::string tiny_dataset_prefix() {
  static const TempDir dir;
  static const std::string prefix = [] {
    IndexedDatasetWriter writer(dir / "tiny", TokenType::u16);
    for (uint64_t document = 0; document < 60; ++document) {
      std::vector<int32_t> tokens(5 + philox4x32(document, 0, 7).w[0] % 80);
      int32_t token = static_cast<int32_t>(document % 61);
      for (size_t i = 0; i < tokens.size(); ++i) {
        const PhiloxWords random = philox4x32(document, i, 9);
        token = random.w[0] % 4 == 0 ? static_cast<int32_t>(random.w[1] % 61) : (token * 3 + 1) % 61;
        tokens[i] = token;
      }
      writer.add_document(tokens);
    }
    writer.finish();
    return dir / "tiny";
  }();
  return prefix;
}

std::shared_ptr<const IndexedDataset> tiny_dataset() {
  static const auto dataset = std::make_shared<const IndexedDataset>(tiny_dataset_prefix());
  return dataset;
}

void run_traced(Config config, const std::string& run_dir, int ranks) {
  config.data.path = tiny_dataset_prefix();
  config.data.split = {100, 0, 0};
  config.train.train_iters = 3;
  config.optimizer.lr_decay_iters = 3;
  config.train.trace = true;
  config.train.run_dir = run_dir;
  config.device.peak_tflops = 1;
  const LoadedConfig loaded{.config = std::move(config), .origins = {}, .path = "test"};
  run_thread_ranks(ranks, [&](Communicator& world) {
    std::ostringstream log;
    run_training(loaded, {}, world, log);
  });
}

namespace {

uint64_t hash_bytes(const void* data, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3ull;
  return hash;
}

}  // namespace

Backend make_split_backend(const Config&, Communicator& world, int threads) {
  Backend backend;
  backend.device = create_split_device();
  backend.ops = create_split_ops(*backend.device, threads);
  backend.host = world.twin("device memory", comm_of("data"));
  backend.exchange = create_staged_communicator(*backend.host, *backend.device);
  return backend;
}

std::vector<std::byte> bytes_of(Trainer& trainer, Tensor tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
  trainer.device().copy_to_host(tensor, bytes.data(), *trainer.rank().compute);
  trainer.rank().compute->synchronize();
  return bytes;
}

namespace {

GptDataset part_of_dataset(size_t part, const Config& config) {
  const auto dataset = tiny_dataset();
  return GptDataset(dataset, split_documents(std::vector<double>{80, 20, 0}, dataset->sequences())[part],
                    {.name = "train",
                     .seq_length = config.model.seq_length,
                     .vocab_size = *config.model.vocab_size,
                     .seed = config.data.seed});
}

Trainer::Options with_faults(Trainer::Options options, FaultInjector& faults) {
  if (!faults.none()) options.faults = &faults;
  return options;
}

}  // namespace

TinyData::TinyData(const Config& config, const BatchPlan& plan)
    : train_data(part_of_dataset(0, config)),
      valid_data(part_of_dataset(1, config)),
      train(train_data, plan, config.data.prefetch, document_rules(config.data, kTinyEod)),
      valid(valid_data, plan.of_full_batches(), config.data.prefetch, document_rules(config.data, kTinyEod)) {}

TinyTrainer::TinyTrainer(const Config& config, Communicator& world, Trainer::Options options,
                         const std::vector<std::string>& faults)
    : run_(resolved(config, world.size())),
      data_(run_.config, batch_plan_of(run_.config, run_.layout, world.rank())),
      faults_(parse_faults(faults), world.rank(), world.size()),
      trainer_(run_.config, run_.layout, world, &data_.train, with_faults(std::move(options), faults_)) {}

void with_trainers(const Config& config, int ranks, const std::function<void(Trainer&)>& use,
                   const Trainer::Options& options, const std::vector<std::string>& faults) {
  tiny_dataset();  // created before the ranks use it
  run_thread_ranks(ranks, [&](Communicator& world) { use(*TinyTrainer(config, world, options, faults)); });
}

double evaluate(Trainer& trainer, BatchSource& valid, int64_t batches) {
  const int64_t labels = batches * *trainer.config().batch.global_batch_size * trainer.config().model.seq_length;
  return *trainer.evaluate(valid, batches, labels, [] { return false; });
}

double evaluate(Trainer& trainer, int64_t batches) {
  const BatchPlan plan = batch_plan_of(trainer.config(), trainer.rank().layout, trainer.world().rank());
  const GptDataset data = part_of_dataset(1, trainer.config());
  BatchLoader loader(data, plan.of_full_batches(), trainer.config().data.prefetch,
                     document_rules(trainer.config().data, kTinyEod));
  return evaluate(trainer, loader, batches);
}

void expect_equal(const Curve& curve, const Curve& reference, const std::string& what) {
  EXPECT_EQ(curve.losses, reference.losses) << what;
  EXPECT_EQ(curve.norms, reference.norms) << what;
  EXPECT_EQ(curve.validation_loss, reference.validation_loss) << what;
}

void expect_near(const Curve& curve, const Curve& reference, const std::string& what) {
  constexpr double kTolerance = 2e-5;
  ASSERT_EQ(curve.losses.size(), reference.losses.size()) << what;
  for (size_t i = 0; i < reference.losses.size(); ++i)
    EXPECT_NEAR(curve.losses[i], reference.losses[i], kTolerance * reference.losses[i]) << what << ", step " << i + 1;
  // Adam is insensitive to a gradient that is too large in every step; the norms show it.
  ASSERT_EQ(curve.norms.size(), reference.norms.size()) << what;
  for (size_t i = 0; i < reference.norms.size(); ++i)
    EXPECT_NEAR(curve.norms[i], reference.norms[i], 10 * kTolerance * reference.norms[i]) << what << ", step " << i + 1;
  EXPECT_NEAR(curve.validation_loss, reference.validation_loss, kTolerance * reference.validation_loss) << what;
}

Curve train(const Config& config, Communicator& world, int steps, const Trainer::Options& options, bool ahead) {
  TinyTrainer made(config, world, options);
  Trainer& trainer = *made;
  Curve curve;
  const auto add = [&](const StepResult& result) {
    curve.losses.push_back(result.loss);
    curve.norms.push_back(result.grad_norm);
  };
  for (int i = 0; i < steps; ++i) {
    if (const auto earlier = trainer.queue_step()) add(*earlier);
    if (!ahead || i + 1 == steps) add(trainer.finish_step());
  }
  curve.validation_loss = evaluate(trainer, 3);  // one more than the host may queue, so it waits for the device

  // The weights of each parameter, wherever they are stored; under ZeRO-3 no rank keeps them whole.
  trainer.data_parallel().weights.finish();
  uint64_t hash = 0;
  for (const Param& param : trainer.state().params.all()) {
    if (!param.weight) continue;
    const std::vector<std::byte> bytes = bytes_of(trainer, param.weight);
    hash = hash * 31 + hash_bytes(bytes.data(), bytes.size());
  }
  const std::vector<int64_t> hashes = trainer.host().gather(static_cast<int64_t>(hash));
  curve.weights_hash = hash_bytes(hashes.data(), hashes.size() * sizeof hashes[0]);
  return curve;
}

std::vector<Span> TracedStep::spans(const std::string& row, const std::string& name) const {
  std::vector<Span> found;
  for (size_t i = 0; i < rows.size(); ++i)
    if (names[i].starts_with(row))
      for (const Span& span : rows[i])
        if (span.info.name == name) found.push_back(span);
  return found;
}

std::vector<TracedStep> traced_steps(const Config& config, int ranks) {
  std::vector<TracedStep> steps(static_cast<size_t>(ranks));
  with_trainers(config, ranks, [&](Trainer& trainer) {
    TracedStep& step = steps[static_cast<size_t>(trainer.world().rank())];
    for (const TraceRow& row : trainer.trace().rows()) step.names.push_back(row.name());
    step.rows.resize(step.names.size());
    for (int i = 0; i < 3; ++i) {
      const StepResult result = trainer.step();
      if (i == 2) {  // the gathers after the last step belong to it, however late they run
        trainer.data_parallel().weights.finish();
        trainer.rank().compute->synchronize();
      }
      size_t number = 0;
      for (TraceRow& row : trainer.trace().rows()) row.take(step.rows[number++]);
      step.start_ns = result.start_ns, step.end_ns = result.end_ns;
    }
  });
  return steps;
}

Curve train_on_threads(const Config& config, int ranks, int steps, const Trainer::Options& options, bool ahead) {
  tiny_dataset();
  Curve curve;
  run_thread_ranks(ranks, [&](Communicator& world) {
    const Curve mine = train(config, world, steps, options, ahead);
    if (world.rank() == 0) curve = mine;
  });
  return curve;
}

}  // namespace trivet::test

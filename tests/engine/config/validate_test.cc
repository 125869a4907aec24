#include "engine/config/validate.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "engine/config/fields.h"
#include "engine/config/rules.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/rank_state.h"
#include "tests/engine/config/config_text.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

std::string resolve_error(const std::vector<std::string>& sets, RunFacts facts = {}) {
  LoadedConfig loaded = load_good(sets);
  return message_of([&] { resolve(loaded, facts); });
}
std::string load_error(const std::vector<std::string>& sets) {
  return message_of([&] { load_good(sets); });
}
void says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Resolve, FillsInWhatWasLeftOut) {
  LoadedConfig loaded = load_good({"model.vocab_size=auto", "batch.micro_batch_size=3", "optimizer.lr=0.5"});
  const Layout layout = resolve(loaded, {.world_size = 4, .dataset_vocab_size = 300});

  EXPECT_EQ(loaded.config.model.ffn_hidden_size, 32);
  EXPECT_EQ(loaded.config.model.vocab_size, 300);
  EXPECT_EQ(loaded.config.batch.global_batch_size, 12);
  EXPECT_EQ(loaded.config.optimizer.min_lr, 0.05);
  EXPECT_EQ(loaded.config.optimizer.lr_decay_iters, 10);
  EXPECT_EQ(to_string(loaded.origins.at("model.ffn_hidden_size")), "derived: 4 * hidden_size");
  EXPECT_EQ(to_string(loaded.origins.at("model.vocab_size")), "derived: the dataset's tokenizer");
  EXPECT_EQ(to_string(loaded.origins.at("optimizer.lr_decay_iters")), "derived: train_iters");
  EXPECT_EQ(layout.padded_vocab, 384);
  EXPECT_EQ(layout.micro_batches, 1);
  EXPECT_EQ(layout.mesh[Axis::dp], 4);
}

TEST(Resolve, KeepsWhatWasGiven) {
  LoadedConfig loaded = load_good({"model.ffn_hidden_size=24", "batch.global_batch_size=24", "batch.micro_batch_size=2",
                                   "optimizer.min_lr=0", "optimizer.lr_decay_iters=7", "optimizer.lr_warmup_iters=7",
                                   "parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true",
                                   "parallel.order=tp-pp-dp"});
  const Layout layout = resolve(loaded, {.world_size = 6, .dataset_vocab_size = 100});
  EXPECT_EQ(loaded.config.model.ffn_hidden_size, 24);
  EXPECT_EQ(loaded.config.model.vocab_size, 100);
  EXPECT_EQ(loaded.config.optimizer.min_lr, 0);
  EXPECT_EQ(layout.mesh[Axis::tp], 2);
  EXPECT_EQ(layout.mesh[Axis::dp], 3);
  EXPECT_EQ(layout.mesh.order, parse_axis_order("tp-pp-dp"));
  EXPECT_EQ(layout.micro_batches, 4);
  EXPECT_EQ(layout.padded_vocab, 256);  // a multiple of 128 * 2
}

TEST(Resolve, ALinkIsThatOfAllGroupsUnlessAGroupHasItsOwn) {
  for (const std::string_view own : kCommClasses) {
    LoadedConfig loaded =
        load_good({"comm.link_latency_us=5", "comm.link_gbps=10", "parallel.tensor_model_parallel_size=2",
                   "parallel.context_parallel_size=2", "parallel.pipeline_model_parallel_size=2",
                   fmt::format("comm.{}_link_gbps=0", own), fmt::format("comm.{}_link_latency_us=7", own)});
    resolve(loaded, {.world_size = 16});
    const Links links = links_of(loaded.config.comm);
    for (const std::string_view name : kCommClasses) {
      EXPECT_EQ(links.at(std::string(name)).latency_us, name == own ? 7 : 5) << name << " beside " << own;
      EXPECT_EQ(links.at(std::string(name)).gbps, name == own ? std::numeric_limits<double>::infinity() : 10)
          << name << " beside " << own << "; 0: no limit";
      for (const std::string key : {"link_gbps", "link_latency_us"})
        EXPECT_EQ(to_string(loaded.origins.at(fmt::format("comm.{}_{}", name, key))),
                  name == own ? "--set" : "derived: " + key);
    }
  }
}

TEST(Resolve, APortIsSharedByLinksOfOneBandwidth) {
  const auto error = [](std::vector<std::string> sets, int ranks) -> std::string {
    sets.insert(sets.begin(), {"comm.shared_port=true", "parallel.pipeline_model_parallel_size=2"});
    try {
      LoadedConfig loaded = load_good(sets);
      for (const std::string& note : resolve(loaded, {.world_size = ranks}).notes) return note;
      EXPECT_TRUE(loaded.config.comm.shared_port);
      return "";
    } catch (const ConfigError& problem) {
      return problem.what();
    }
  };
  EXPECT_EQ(error({"comm.link_gbps=10"}, 4), "");
  EXPECT_EQ(error({"comm.link_gbps=10", "comm.tensor_link_gbps=0", "parallel.tensor_model_parallel_size=2"}, 8), "")
      << "a class without a bandwidth does not use it";
  EXPECT_EQ(error({"comm.link_latency_us=10"}, 4),
            "--set: comm.shared_port: true needs emulated links with a bandwidth (comm.link_gbps) of at least two "
            "classes of groups, found 0: there is nothing to share");
  EXPECT_EQ(error({"comm.link_gbps=10"}, 2),
            "--set: comm.shared_port: true has no effect: only one of the tensor, context, pipeline and data "
            "groups (of 1, 1, 2, 1 ranks) has several ranks and an emulated link with a bandwidth; it is left out");
  EXPECT_EQ(error({"comm.link_gbps=10", "comm.data_link_gbps=5"}, 4),
            "--set: comm.shared_port: true, but the links have bandwidths from 5 to 10 Gbit/s: a port has a single "
            "one, expected the same for all classes (or 0 for a class that does not use it)");

  LoadedConfig measured = load_good({"comm.measure_links=true", "comm.link_gbps=10"});
  EXPECT_EQ(resolve(measured, {.world_size = 2}).notes,
            std::vector<std::string>{"--set: comm.measure_links: true has no effect: no group of several ranks is "
                                     "without an emulated link; it is left out"});
  EXPECT_FALSE(measured.config.comm.measure_links);
}

TEST(Load, ANegativeLinkIsNamed) {
  for (const char* key :
       {"comm.link_latency_us", "comm.link_gbps", "comm.tensor_link_latency_us", "comm.tensor_link_gbps",
        "comm.context_link_latency_us", "comm.context_link_gbps", "comm.pipeline_link_latency_us",
        "comm.pipeline_link_gbps", "comm.data_link_latency_us", "comm.data_link_gbps"})
    EXPECT_NE(load_error({std::string(key) + "=-1"}).find(std::string(key) + ": found -1, expected a number of at"),
              std::string::npos)
        << load_error({std::string(key) + "=-1"});
}

TEST(Resolve, TheResolvedFileGivesTheSameRun) {
  const std::vector<std::string> settings[] = {
      {"optimizer.lr_decay_style=cosine"},
      {"optimizer.lr_decay_style=constant"},
      {"optimizer.lr_decay_style=WSD", "optimizer.lr_wsd_decay_iters=3", "optimizer.lr_warmup_fraction=0.4"}};
  for (const auto& sets : settings) {
    LoadedConfig loaded = load_good(sets);
    resolve(loaded, {.world_size = 2});
    LoadedConfig again = parse_config(to_yaml(loaded.config), "config.resolved.yaml");
    resolve(again, {.world_size = 2});
    EXPECT_EQ(to_yaml(loaded.config), to_yaml(again.config));
  }
}

TEST(Resolve, ConfigsMadeInCodeAreJudgedToo) {
  LoadedConfig loaded;
  loaded.config.model.num_layers = 1;
  loaded.config.model.hidden_size = 8;
  loaded.config.model.num_attention_heads = 2;
  loaded.config.model.seq_length = 4;
  loaded.config.model.vocab_size = 9;
  loaded.config.data.path = "x";
  loaded.config.precision.dtype = DType::i32;
  EXPECT_EQ(
      message_of([&] { resolve(loaded, {}); }),
      "the configuration has 2 problems:\n"
      "precision.dtype: found 2, expected one of fp32, bf16\n"
      "train.train_iters: is required, or train.train_samples: optimizer steps, an integer from 1 to 1000000000000");
}

TEST(Validate, SizesThatDoNotDivide) {
  says(load_error({"model.num_attention_heads=3"}),
       {"--set: model.num_attention_heads: 3", "hidden_size (8)", "1, 2, 4 or 8"});
  says(load_error({"parallel.tensor_model_parallel_size=8", "model.hidden_size=16"}),
       {"--set: parallel.tensor_model_parallel_size: 8", "num_attention_heads (4)", "1, 2 or 4"});
  says(load_error({"parallel.tensor_model_parallel_size=4", "model.ffn_hidden_size=30"}),
       {"--set: parallel.tensor_model_parallel_size: 4", "ffn_hidden_size (30)", "1 or 2"});
  says(load_error({"parallel.tensor_model_parallel_size=3", "parallel.sequence_parallel=true"}),
       {"--set: parallel.tensor_model_parallel_size: 3", "num_attention_heads (4)", "ffn_hidden_size (32)",
        "seq_length (16)", "1, 2 or 4"});
  load_good({"parallel.tensor_model_parallel_size=4", "model.seq_length=18"});  // only sequence parallelism splits it
  says(load_error({"model.hidden_size=12288", "model.num_attention_heads=100"}),
       {"--set: model.num_attention_heads: 100", "hidden_size (12288)", "24, 32, 48, 64, 96 or 128"});
}

TEST(Validate, HeadsAndGroups) {
  load_good({"model.num_query_groups=2", "model.kv_channels=6", "parallel.tensor_model_parallel_size=2"});
  load_good({"model.num_attention_heads=3", "model.kv_channels=6"});  // heads need not add up to hidden_size
  says(load_error({"model.num_query_groups=3"}),
       {"--set: model.num_query_groups: 3", "num_attention_heads (4)", "1, 2 or 4"});
  says(load_error({"model.num_query_groups=2", "parallel.tensor_model_parallel_size=4"}),
       {"--set: parallel.tensor_model_parallel_size: 4", "num_query_groups (2)", "1 or 2"});
  says(load_error({"model.num_attention_heads=1000", "model.kv_channels=4001"}),
       {"--set: model.kv_channels: 4001 x num_attention_heads (1000)", "4000000"});
}

TEST(Validate, Rope) {
  const std::string rope = "model.position_embedding_type=rope", scaled = "model.use_rope_scaling=true";
  load_good({rope, "model.rotary_base=500000", scaled, "model.rope_scaling_factor=32"});
  load_good({rope, "model.rotary_percent=0.5", "model.kv_channels=5"});
  says(load_error({rope, "model.kv_channels=3"}), {"run.yaml: model.rotary_percent: 1"});
  says(load_error({"model.rotary_percent=0.5"}),
       {"--set: model.rotary_percent: 0.5", "position_embedding_type", "learned_absolute"});
  says(load_error({rope, "model.rope_scaling_factor=4"}), {"--set: model.rope_scaling_factor: 4", "use_rope_scaling"});
  says(load_error({rope, scaled, "model.rope_scaling_high_freq_factor=1"}),
       {"--set: model.rope_scaling_high_freq_factor: 1", "rope_scaling_low_freq_factor (1)"});
  says(load_error({rope, scaled, "model.rope_scaling_factor=1"}),
       {"--set: model.use_rope_scaling", "rope_scaling_factor"});
  says(load_error({"model.add_qkv_bias=true"}), {"--set: model.add_qkv_bias", "add_bias_linear"});
}

TEST(Resolve, AGatedMlpHasAsManyWeights) {
  const auto derived = [](int64_t hidden) {
    LoadedConfig loaded = load_good({"model.swiglu=true", "model.hidden_size=" + std::to_string(hidden)});
    resolve(loaded, {});
    return *loaded.config.model.ffn_hidden_size;
  };
  EXPECT_EQ(derived(768), 2048);
  EXPECT_EQ(derived(4096), 10880);  // Megatron's rule; Llama's widths do not follow it
  EXPECT_EQ(derived(8), 64);
}

TEST(Validate, SizesWhoseBytesWouldOverflow) {
  says(load_error({"model.seq_length=10000000", "batch.micro_batch_size=1000000"}),
       {"--set: model.seq_length: 10000000 x micro_batch_size (1000000) x 100", "3638"});
}

TEST(Validate, SequenceParallelNeedsTensorParallel) {
  says(load_error({"parallel.sequence_parallel=true"}),
       {"parallel.sequence_parallel: true has no effect with tensor_model_parallel_size 1"});
}

TEST(Validate, Schedule) {
  says(load_error({"optimizer.min_lr=1"}), {"--set: optimizer.min_lr: 1", "0.0003"});
  says(load_error({"optimizer.lr_warmup_iters=11"}), {"--set: optimizer.lr_warmup_iters: 11", "train_iters (10)"});
  says(load_error({"optimizer.lr_warmup_iters=6", "optimizer.lr_decay_iters=5"}),
       {"--set: optimizer.lr_warmup_iters: 6", "lr_decay_iters (5)"});
  says(load_error({"optimizer.lr_decay_style=constant", "optimizer.min_lr=1e-5"}),
       {"--set: optimizer.min_lr: 1e-05", "lr_decay_style"});
  says(load_error({"optimizer.lr_decay_style=constant", "optimizer.lr_decay_iters=5"}),
       {"--set: optimizer.lr_decay_iters: 5", "lr_decay_style"});
  says(load_error({"optimizer.lr_decay_style=cosin"}),
       {"--set: optimizer.lr_decay_style", "\"cosin\"", "inverse-square-root"});
  for (const char* warmup : {"optimizer.lr_warmup_fraction=0.5", "optimizer.lr_warmup_iters=auto"})
    EXPECT_NE(
        load_error({"optimizer.lr_decay_style=WSD", "train.train_iters=20", warmup, "optimizer.lr_wsd_decay_iters=20"})
            .find("found 20, expected 1 to 1"),  // 10, 18
        std::string::npos)
        << warmup;
  const std::vector<std::string> samples = {"train.train_iters=0", "train.train_samples=1000"};
  const auto sized = [&](const std::string& set, const char* other) {
    return load_error({samples[0], samples[1], set, other});
  };
  EXPECT_NE(
      sized("batch.step_batch_size_schedule=0:2 64:4294967298", "train.seed=1").find("and 1 to 100000000 samples"),
      std::string::npos);
  EXPECT_NE(sized("batch.rampup_batch_size=1,1,1000000000", "batch.global_batch_size=100000000")
                .find("has 99999999 sizes up to global_batch_size, expected at most 10000"),
            std::string::npos);
  says(load_error({"optimizer.lr_wsd_decay_iters=3"}), {"--set: optimizer.lr_wsd_decay_iters: 3", "lr_decay_style"});
  for (const char* found : {"0", "9"})
    EXPECT_EQ(load_error({"optimizer.lr_decay_style=WSD", "optimizer.lr_warmup_iters=2",
                          std::string("optimizer.lr_wsd_decay_iters=") + found}),
              std::string("--set: optimizer.lr_wsd_decay_iters: found ") + found +
                  ", expected 1 to 8: WSD decays after the warm-up, until lr_decay_iters (10)");
  says(load_error({"optimizer.lr_decay_style=WSD", "optimizer.lr_warmup_iters=10", "optimizer.lr_wsd_decay_iters=1"}),
       {"--set: optimizer.lr_warmup_iters", "10", "lr_decay_iters (10)"});
  says(load_error({"optimizer.lr_warmup_fraction=0.5", "optimizer.lr_warmup_iters=2"}),
       {"--set: optimizer.lr_warmup_fraction: 0.5", "lr_warmup_iters (2)"});
  says(load_error({"optimizer.weight_decay_incr_style=linear", "optimizer.start_weight_decay=0.1"}),
       {"run.yaml: optimizer.end_weight_decay: weight_decay_incr_style", "start_weight_decay", "end_weight_decay"});
  says(load_error({"optimizer.weight_decay_incr_style=linear", "optimizer.start_weight_decay=0.2",
                   "optimizer.end_weight_decay=0.1"}),
       {"--set: optimizer.end_weight_decay: 0.1", "start_weight_decay (0.2)"});
  says(load_error({"optimizer.override_opt_param_scheduler=true", "optimizer.use_checkpoint_opt_param_scheduler=true"}),
       {"--set: optimizer.use_checkpoint_opt_param_scheduler", "override_opt_param_scheduler"});
  says(load_error({"optimizer.decoupled_min_lr=1"}), {"--set: optimizer.decoupled_min_lr: 1", "0.0003"});
}

// Each schedule key, under each kind of schedule, either changes the values that steps train with or is refused.
TEST(Validate, NoKeyOfAScheduleIsWithoutEffect) {
  using Sets = std::vector<std::string>;
  const auto run_of = [](const Sets& sets) {
    LoadedConfig loaded = load_good(sets);
    const Layout layout = resolve(loaded, {.world_size = 1});
    std::vector<double> steps;
    for (int64_t step = 1, samples = 0; step <= loaded.config.train.train_iters; ++step) {
      const int64_t batch = layout.batch_sizes.of_step(samples);
      samples += batch;
      const LearningRates rates = learning_rates(loaded.config, step, samples);
      for (const double value : {rates.all, rates.decoupled, weight_decay(loaded.config, step, samples)})
        steps.push_back(value);
      steps.push_back(static_cast<double>(batch));
    }
    return steps;
  };
  const Sets counted_samples = {"train.train_iters=0", "train.train_samples=160", "batch.global_batch_size=8"};
  std::vector<Sets> kinds = {{}, counted_samples};
  for (const char* style : {"linear", "constant", "inverse-square-root"})
    kinds.push_back({std::string("optimizer.lr_decay_style=") + style});
  kinds.push_back({"optimizer.lr_decay_style=WSD", "optimizer.lr_wsd_decay_iters=3"});
  kinds.push_back(
      {"optimizer.weight_decay_incr_style=linear", "optimizer.start_weight_decay=0", "optimizer.end_weight_decay=0.4"});
  kinds.push_back({counted_samples[0], counted_samples[1], counted_samples[2], "batch.rampup_batch_size=2,2,40"});
  const auto has_style = [](const Sets& kind) {
    return !kind.empty() && kind[0].starts_with("optimizer.lr_decay_style");
  };
  int accepted = 0, refused = 0;
  for (const Sets& kind : kinds)
    for (const Sets& warmup : {Sets{}, Sets{"optimizer.lr_warmup_iters=4"}, Sets{"optimizer.lr_warmup_fraction=0.4"}})
      for (const char* change :
           {"lr=0.0004", "min_lr=2e-4", "lr_warmup_iters=3", "lr_warmup_samples=24", "lr_warmup_fraction=0.3",
            "lr_warmup_init=1e-5", "lr_decay_iters=8", "lr_decay_samples=80", "lr_decay_style=cosine",
            "lr_wsd_decay_iters=2", "lr_wsd_decay_samples=16", "lr_wsd_decay_style=linear", "decoupled_lr=0.0002",
            "decoupled_min_lr=2e-4", "weight_decay=0.3", "start_weight_decay=0.2", "end_weight_decay=0.3",
            "weight_decay_incr_style=cosine"}) {
        Sets sets = kind;
        sets.insert(sets.end(), warmup.begin(), warmup.end());
        std::vector<double> before, after;
        try {
          before = run_of(sets);
          sets.push_back(std::string("optimizer.") + change);
          after = run_of(sets);
        } catch (const ConfigError&) {
          ++refused;
          continue;
        }
        ++accepted;
        const bool is_said_again = std::string_view(change) == "lr_decay_style=cosine" && !has_style(kind);
        EXPECT_TRUE(before != after || is_said_again) << fmt::format("{}", fmt::join(sets, " "));
      }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 50);
}

TEST(Validate, AnAutomaticWarmupCountsWhatTheRunCounts) {
  const auto warmup = [](const std::vector<std::string>& sets) {
    LoadedConfig loaded = load_good(sets);
    resolve(loaded, {.world_size = 1});
    return std::pair(*loaded.config.optimizer.lr_warmup_iters, *loaded.config.optimizer.lr_warmup_samples);
  };
  const std::string iters = "optimizer.lr_warmup_iters=auto", samples = "optimizer.lr_warmup_samples=auto";
  const std::string by_samples = "train.train_samples=800", no_steps = "train.train_iters=0";
  EXPECT_EQ(warmup({iters, by_samples, no_steps}), std::pair(int64_t{0}, int64_t{80}));
  EXPECT_EQ(warmup({iters, "optimizer.lr_warmup_samples=0", by_samples, no_steps}), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(warmup({samples, "train.train_iters=50"}), std::pair(int64_t{5}, int64_t{0}));
  EXPECT_EQ(warmup({samples, "optimizer.lr_warmup_iters=3", "train.train_iters=50"}),
            std::pair(int64_t{3}, int64_t{0}));
}

TEST(Validate, AConstantRateIsReadBackWithASmallerDecoupledOne) {
  LoadedConfig loaded = load_good({"optimizer.lr_decay_style=constant", "optimizer.decoupled_lr=1e-5"});
  resolve(loaded, {.world_size = 1});
  const TempDir dir;
  write_text(dir / "resolved.yaml", to_yaml(loaded.config));
  EXPECT_EQ(to_yaml(load_config(dir / "resolved.yaml").config), to_yaml(loaded.config));
}

TEST(Validate, PartsOfSchedulesWithoutEffect) {
  says(load_error({"optimizer.lr_warmup_init=3e-4", "optimizer.lr_warmup_iters=2"}),
       {"--set: optimizer.lr_warmup_init: 0.0003", "0.0003"});
  EXPECT_NE(
      load_error({"train.train_samples=800", "batch.step_batch_size_schedule=0:8 2560:8"}).find("has one size, 8"),
      std::string::npos);
  const std::vector<std::string> ramp = {"optimizer.weight_decay_incr_style=linear", "optimizer.start_weight_decay=0",
                                         "optimizer.end_weight_decay=0.2"};
  const auto with = [](std::vector<std::string> sets, const std::string& set) {
    sets.push_back(set);
    return load_error(sets);
  };
  load_good(ramp);
  const std::string half = load_error({"optimizer.start_weight_decay=0.2"});  // one cause is reported as one problem
  EXPECT_EQ(half.find('\n'), std::string::npos) << half;
  says(half, {"optimizer.start_weight_decay: 0.2 has no effect with weight_decay_incr_style constant"});
  says(with(ramp, "optimizer.weight_decay=0.3"),
       {"optimizer.weight_decay: 0.3 has no effect with a weight_decay_incr_style", "start_weight_decay"});
  EXPECT_EQ(with(ramp, "optimizer.start_weight_decay=0.2"),
            "--set: optimizer.weight_decay_incr_style: linear has no effect: the ramp starts and ends at 0.2; expected "
            "constant, with that as weight_decay");
  says(load_error({"optimizer.weight_decay=0", "optimizer.decay_norms_and_biases=true"}),
       {"--set: optimizer.decay_norms_and_biases", "weight_decay"});
  const std::vector<std::string> constant = {"optimizer.lr_decay_style=constant", "optimizer.decoupled_lr=1e-4"};
  load_good(constant);
  EXPECT_EQ(with(constant, "optimizer.decoupled_min_lr=1e-5"),
            "--set: optimizer.decoupled_min_lr: 1e-05 has no effect with lr_decay_style constant, only with "
            "cosine or linear");
  const std::vector<std::string> samples = {"train.train_iters=0", "train.train_samples=1000"};
  EXPECT_EQ(with(samples, "batch.step_batch_size_schedule=0:8"),
            "--set: batch.step_batch_size_schedule: has one size, 8; expected a second one, or global_batch_size set "
            "to that one");
  for (const char* global : {"batch.global_batch_size=8", "batch.global_batch_size=auto"}) {
    LoadedConfig loaded =
        load_good({samples[0], samples[1], "batch.micro_batch_size=8", global, "batch.rampup_batch_size=8,8,100"});
    EXPECT_EQ(message_of<ConfigError>([&] { resolve(loaded, {.world_size = 1}); }),
              "--set: batch.rampup_batch_size: 8 by 8 does not reach global_batch_size (8): expected a start below it "
              "and an increment that divides the difference");
  }
}

TEST(Validate, Data) {
  says(load_error({"data.path=0.5,a,b"}), {"--set: data.path", "\"0.5,a,b\": \"b\"", "0.3", "0.7"});
  says(load_error({"data.path=", "data.train_path=a", "data.valid_path=-1,a,2,b"}),
       {"--set: data.valid_path", "\"-1,a,2,b\"", "-1", "0.3", "0.7"});
  says(load_error({"data.path="}), {"--set: data.path", "data.train_path"});
  says(load_error({"data.train_path=b"}), {"--set: data.train_path", "data.path", "data.split", "--set"});
  says(load_error({"data.valid_path=b"}), {"--set: data.valid_path", "data.train_path", "data.path", "data.split"});
  says(load_error({"data.path=", "data.train_path=b", "data.split=90,10,0"}),
       {"--set: data.split: \"90,10,0\"", "data.train_path", "data.path"});
  says(load_error({"data.path=", "data.train_path=b", "train.eval_interval=5"}),
       {"--set: train.eval_interval: 5", "data.valid_path", "data.train_path"});
  says(load_error({"data.split=100,0,0", "train.eval_interval=5"}),
       {"--set: train.eval_interval: 5", "data.split (100,0,0)"});
  says(load_error({"data.split=0,1,0"}), {"--set: data.split: 0,1,0"});
  says(load_error({"data.test_path=b"}), {"--set: data.test_path", "data.train_path", "data.path", "data.split"});
  load_good({"data.path=", "data.train_path=a", "data.valid_path=b", "data.test_path=c", "train.eval_interval=5"});
  // An evaluation needs a validation or a test set, and nothing that only training needs.
  for (const char* split : {"0,1,0", "0,0,1", "1,1,1"})
    load_good({"train.skip_train=true", "train.train_iters=0", "data.split=" + std::string(split)});
  load_good({"train.skip_train=true", "data.path=", "data.train_path=a", "data.test_path=b"});
  says(load_error({"train.skip_train=true", "data.split=1"}), {"--set: train.skip_train", "data.split (1)"});
  says(load_error({"train.skip_train=true", "data.path=", "data.train_path=a"}),
       {"--set: train.skip_train", "data.valid_path or data.test_path"});
  for (const std::string split :
       {"", ",", "98,", "a", "1,2,3,4", "a,b", "1,,2", "-1,2", "0,0,0", "nan", "nan,1,1", "inf,1", "1;2"})
    EXPECT_EQ(load_error({"data.split=" + split}),
              "--set: data.split: found \"" + split +
                  "\", expected up to three shares of train, validation and test such as 98,2,0");
  for (const char* key : {"data.path", "data.train_path", "data.valid_path", "data.test_path"}) {
    const std::string message = load_error({"data.path=", "data.train_path=a", std::string(key) + "=1e308,a,1e308,b"});
    EXPECT_NE(message.find(std::string(key) + ": found \"1e308,a,1e308,b\": the sum of the weights is not finite"),
              std::string::npos)
        << message;
  }
  load_good({"data.path=1e-320,a,1e-320,b"});
  load_good({"data.split=9, 1"});
  load_good({"data.path=", "data.train_path=a", "data.valid_path=b", "train.eval_interval=5"});
  says(load_error({"data.path=", "data.train_path=a", "data.valid_path=b"}),
       {"--set: data.valid_path: \"b\"", "eval_interval"});
  load_good({"data.path=\"\"", "data.train_path=a"});  // quoted as in YAML
  says(load_error({"data.prefetch=0"}), {"--set: data.prefetch", "10000"});
}

TEST(Validate, Fp8IsRefusedWithTheReason) {
  const auto error = [](std::vector<std::string> sets) {
    sets.insert(sets.begin(), {"precision.dtype=bf16", "precision.fp8=hybrid"});
    return load_error(sets);
  };
  says(load_error({"precision.fp8=e4m3"}), {"precision.fp8: e4m3", "precision.dtype bf16", "fp32"});
  says(error({"precision.fp8_recipe=delayed"}), {"precision.fp8_recipe", "delayed", "tensorwise", "history"});
  says(error({"precision.fp8_accumulator_bits=16"}), {"precision.fp8_accumulator_bits: found 16", "24 or 14"});
  says(error({"precision.fp8_recipe=mxfp8"}), {"precision.fp8_recipe", "mxfp8", "tensorwise"});
  says(error({"precision.fp8_recipe=blockwise"}), {"precision.fp8: found hybrid, expected e4m3"});
  const Config blocks =
      load_good({"precision.dtype=bf16", "precision.fp8=e4m3", "precision.fp8_recipe=blockwise"}).config;
  for (const int64_t gpus : {0, 1}) EXPECT_EQ(on_gpus(blocks, std::vector<int64_t>{gpus}), gpus == 1);
  says(error({"precision.first_last_layers_bf16=true"}), {"precision.first_last_layers_bf16", "num_layers (2)"});
  says(error({"precision.num_layers_at_end_in_bf16=2"}),
       {"precision.num_layers_at_end_in_bf16", "first_last_layers_bf16"});
  says(error({"precision.first_last_layers_bf16=true", "precision.num_layers_at_start_in_bf16=0",
              "precision.num_layers_at_end_in_bf16=0"}),
       {"precision.first_last_layers_bf16", "both numbers are 0"});
  says(load_error({"precision.fp8_recipe=tensorwise", "precision.first_last_layers_bf16=true"}),
       {"precision.first_last_layers_bf16", "precision.fp8"});
  says(error({"precision.first_last_layers_bf16=true", "precision.num_layers_at_start_in_bf16=9223372036854775807"}),
       {"precision.num_layers_at_start_in_bf16", "10000"});
  says(error({"precision.fp8_format=hybrid"}), {"precision.fp8_format", "precision has dtype, fp8"});
  says(load_error({"model.fp8_param_gather=true"}), {"model.fp8_param_gather", "precision.fp8_param_gather"});
  says(load_error({"precision.fp8_param_gather=true"}), {"precision.fp8_param_gather: true", "without precision.fp8"});
}

TEST(Validate, Recompute) {
  says(load_error({"model.recompute_granularity=half"}), {"--set: model.recompute_granularity", "\"half\""});
  says(load_error({"model.recompute_method=uniform"}), {"--set: model.recompute_method", "recompute_granularity"});
  says(load_error({"model.recompute_granularity=selective", "model.recompute_num_layers=2"}),
       {"--set: model.recompute_num_layers: 2", "recompute_granularity"});
  says(load_error({"model.recompute_granularity=full", "model.recompute_num_layers=1"}),
       {"run.yaml: model.recompute_method: recompute_granularity"});
  says(load_error({"model.recompute_granularity=full", "model.recompute_method=block"}),
       {"run.yaml: model.recompute_num_layers: recompute_granularity"});
  says(load_error({"model.recompute_modules=mlp"}),
       {"--set: model.recompute_modules: \"mlp\"", "recompute_granularity"});
  says(load_error({"model.recompute_granularity=selective", "model.recompute_modules=mlp,moe"}),
       {"--set: model.recompute_modules", "\"moe\"", "core_attn"});
  load_good({"model.recompute_granularity=selective", "model.recompute_modules=layernorm, mlp"});
}

TEST(Validate, ALossInChunksKeepsNoGradientsOfLogits) {
  says(load_error({"model.cross_entropy_chunk_rows=-1"}), {"cross_entropy_chunk_rows: ", "-1"});
  says(resolve_error({"model.cross_entropy_chunk_rows=4", "overlap.defer_embedding_wgrad_compute=true",
                      "parallel.pipeline_model_parallel_size=2"},
                     {.world_size = 2}),
       {"model.cross_entropy_chunk_rows: 4 excludes defer_embedding_wgrad_compute", "expected 0 or auto"});
}

TEST(Validate, RangesOfTheRest) {
  for (const std::string set : {"model.hidden_dropout=1",
                                "model.attention_dropout=-0.1",
                                "model.layernorm_epsilon=0",
                                "model.normalization=layernorm",
                                "model.rotary_base=0",
                                "model.rotary_percent=1.5",
                                "model.num_query_groups=0",
                                "model.kv_channels=0",
                                "model.init_method_std=0",
                                "model.vocab_size=0",
                                "model.make_vocab_size_divisible_by=0",
                                "parallel.tensor_model_parallel_size=0",
                                "parallel.order=dp-tp",
                                "parallel.bucket_size=0",
                                "batch.micro_batch_size=0",
                                "batch.global_batch_size=0",
                                "optimizer.lr=0",
                                "optimizer.min_lr=-1",
                                "optimizer.lr_warmup_iters=-1",
                                "optimizer.adam_beta2=1",
                                "optimizer.adam_eps=0",
                                "optimizer.weight_decay=-1",
                                "optimizer.clip_grad=-1",
                                "data.seed=-1",
                                "comm.backend=gloo",
                                "train.train_iters=-1",
                                "train.eval_interval=-1",
                                "train.eval_iters=0",
                                "train.log_interval=0",
                                "train.flops_convention=9n",
                                "device.kind=gpu",
                                "device.cpu_isa=avx",
                                "device.threads_per_rank=-1",
                                "device.peak_tflops=0"}) {
    const std::string key = set.substr(0, set.find('='));
    const std::string error = load_error({set});
    EXPECT_TRUE(error.starts_with("--set: " + key + ": found ")) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << "a consequence is no problem of its own: " << error;
  }
}

TEST(Validate, AnUnknownScheduleIsAmongTheProblems) {
  says(load_error({"optimizer.lr=-1", "parallel.pipeline_schedule=1fb1"}),
       {"--set: optimizer.lr", "-1", "--set: parallel.pipeline_schedule", "1f1b-eager",
        "interleaved-bfs, zb-h1, zb-h2, zb-v, dualpipe-v"});
}

TEST(Validate, Ranks) {
  const RunFacts six = {.world_size = 6};
  says(resolve_error({"parallel.tensor_model_parallel_size=4"}, six),
       {"--set: parallel.tensor_model_parallel_size: 4", "1, 2, 3 or 6", "4 or 8"});
  says(resolve_error({"parallel.tensor_model_parallel_size=2"}, {}), {"--set: parallel.tensor_model_parallel_size: 2"});
  says(resolve_error({"parallel.pipeline_model_parallel_size=4"}, six),
       {"--set: parallel.pipeline_model_parallel_size: 4", "1, 2, 3 or 6", "4 or 8"});
  says(resolve_error({"parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2"}, six),
       {"--set: parallel.tensor_model_parallel_size: 2 x pipeline_model_parallel_size (2)", "1 or 3", "4 or 8"});
  says(resolve_error({"parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2"},
                     {.world_size = 3}),
       {"--set: parallel.tensor_model_parallel_size: 2 x pipeline_model_parallel_size (2)"});
  says(resolve_error({"batch.micro_batch_size=4", "batch.global_batch_size=30"}, six),
       {"--set: batch.global_batch_size: 30", "micro_batch_size (4)", "24", "24 or 48"});
  says(resolve_error({"batch.global_batch_size=5"}, six),
       {"--set: batch.global_batch_size: 5", "micro_batch_size (1)"});
}

// Each error names the numbers that disagree and values that would work.
TEST(Validate, PipelinesThatCannotBe) {
  const RunFacts four = {.world_size = 4};
  const auto error = [&](std::vector<std::string> sets) {
    sets.insert(sets.begin(),
                {"model.num_layers=8", "parallel.pipeline_model_parallel_size=4", "batch.global_batch_size=8"});
    return resolve_error(sets, four);
  };
  says(error({"model.num_layers=3"}), {"model.num_layers: 3 cannot", "4 pipeline stages", "; 4 or 8 would"});
  says(error({"model.num_layers=10"}), {"model.num_layers: 10 cannot", "; 8 or 12 would"});
  says(load_error({"parallel.pipeline_schedule=2f2b"}), {"parallel.pipeline_schedule", "'2f2b'", "1f1b, 1f1b-eager"});
  says(error({"parallel.pipeline_schedule=interleaved", "parallel.virtual_pipeline_model_parallel_size=3"}),
       {"model.num_layers: 8 cannot", "12 pipeline stages", "; 12 or 24 would"});
  says(error({"parallel.pipeline_schedule=interleaved", "parallel.virtual_pipeline_model_parallel_size=1"}),
       {"--set: parallel.virtual_pipeline_model_parallel_size: ", "v >= 2", "v = 1", "use 1f1b"});
  says(error({"parallel.virtual_pipeline_model_parallel_size=2"}),
       {"--set: parallel.virtual_pipeline_model_parallel_size: ", "schedule 1f1b", "v = 2", "interleaved"});
  says(error({"parallel.pipeline_schedule=zb-v", "parallel.virtual_pipeline_model_parallel_size=4"}),
       {"zb-v has v = 2", "v = 4"});
  says(error({"parallel.pipeline_schedule=interleaved", "batch.global_batch_size=3"}),
       {"--set: batch.global_batch_size: ", "m = 3 and p = 4", "interleaved-bfs and 1f1b take any m"});
  says(error({"parallel.pipeline_schedule=interleaved", "batch.global_batch_size=9",
              "parallel.microbatch_group_size_per_vp_stage=4"}),
       {"--set: parallel.microbatch_group_size_per_vp_stage: ", "last group of 1", "fewer than p = 4",
        "a group size of 5 works"});
  says(load_error({"parallel.microbatch_group_size_per_vp_stage=4"}),
       {"--set: parallel.microbatch_group_size_per_vp_stage: ",
        "4 has no effect without pipeline_schedule interleaved"});
  says(error({"parallel.pipeline_schedule=dualpipe-v", "batch.global_batch_size=7"}), {"m >= 2 p = 8", "m = 7"});
  says(error({"parallel.decoder_first_pipeline_num_layers=1"}),
       {"model.num_layers: 8, of which 7 layers are left for 3 stages, cannot"});
  says(error({"parallel.decoder_first_pipeline_num_layers=6", "parallel.decoder_last_pipeline_num_layers=6"}),
       {"--set: parallel.decoder_first_pipeline_num_layers: ", "hold 6 and 6 layers", "the model has 8"});
  says(load_error({"parallel.pipeline_model_parallel_size=4", "parallel.decoder_last_pipeline_num_layers=2",
                   "parallel.account_for_loss_in_pipeline_split=true"}),
       {"--set: parallel.account_for_loss_in_pipeline_split: true has no effect with decoder_first_pipeline_num_layers "
        "or"});
  says(error({"parallel.pipeline_schedule=interleaved", "parallel.decoder_first_pipeline_num_layers=3"}),
       {"--set: parallel.decoder_first_pipeline_num_layers: 3 is not a multiple of the 2 chunks"});
  says(error({"parallel.account_for_loss_in_pipeline_split=true"}), {"accounted for at the ends", "9 layers"});
  says(resolve_error({"parallel.account_for_embedding_in_pipeline_split=true"}),
       {"--set: parallel.account_for_embedding_in_pipeline_split: true has no effect with one pipeline stage"});
  says(error({"batch.global_batch_size=100000000"}),
       {"m = 100000000 micro-batches", "4e+08 forward passes, expected at most 10000000"});
  says(error({"model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=3"}),
       {"model.recompute_num_layers: 3 is above the 2 layers of the largest stage"});
  says(error({"parallel.pipeline_schedule=./none.txt"}), {"parallel.pipeline_schedule", "./none.txt"});
  const TempDir dir;
  write_text(dir / "schedule.txt", to_text(make_schedule({.kind = "1f1b", .p = 4, .m = 8})));
  const std::string file = "parallel.pipeline_schedule=" + (dir / "schedule.txt");
  says(error({file, "batch.global_batch_size=4"}), {"parallel.pipeline_schedule: ", "4 pipeline ranks and 8 micro-"});
  says(error({file, "parallel.virtual_pipeline_model_parallel_size=2"}),
       {"parallel.virtual_pipeline_model_parallel_size: 2 is not the 1 of the schedule"});
  says(load_error({file, "parallel.microbatch_group_size_per_vp_stage=4"}),
       {"parallel.microbatch_group_size_per_vp_stage: 4 has no effect without pipeline_schedule interleaved"});
  says(load_error({"parallel.pipeline_model_parallel_size=4", "overlap.p2p_receive_ahead=4",
                   "overlap.overlap_p2p_comm=false"}),
       {"overlap.p2p_receive_ahead: 4 has no effect with overlap_p2p_comm false"});
  says(load_error({"overlap.overlap_p2p_comm=false"}),
       {"overlap.overlap_p2p_comm: false has no effect with pipeline_model_parallel_size 1"});
  says(load_error({"overlap.p2p_receive_ahead=4"}),
       {"overlap.p2p_receive_ahead: 4 has no effect with pipeline_model_parallel_size 1"});
}

TEST(Validate, MoreRanksThanThereCanBe) {
  says(load_error({"model.num_attention_heads=65536", "model.hidden_size=65536",
                   "parallel.tensor_model_parallel_size=65536", "parallel.pipeline_model_parallel_size=65536"}),
       {"--set: parallel.tensor_model_parallel_size: 65536 x pipeline_model_parallel_size (65536)", "4294967296",
        "1000000"});
}

TEST(Validate, SwitchesThatCannotApply) {
  says(load_error({"device.cuda_graph_impl=local", "device.kind=cpu"}),
       {"--set: device.cuda_graph_impl", "device.kind"});
  says(load_error({"train.exit_duration_in_mins=1e300"}), {"--set: train.exit_duration_in_mins", "1e+300", "10000000"});
  says(load_error({"device.tf32=true", "precision.dtype=bf16"}), {"--set: device.tf32", "precision.dtype"});
  says(load_error({"checkpoint.async_save=true", "checkpoint.keep_last=3"}),
       {"--set: checkpoint.keep_last: 3", "save_interval", "--set: checkpoint.async_save"});
  says(load_error({"train.non_finite_policy=skip", "train.check_for_nan_in_loss_and_grad=false"}),
       {"--set: train.non_finite_policy", "check_for_nan_in_loss_and_grad"});
  for (const auto& [set, problem] : std::vector<std::pair<std::string, std::string>>{
           {"checkpoint.max_failed_saves=5", "5 has no effect with save_interval 0: nothing is saved"},
           {"train.eval_iters=5", "5 has no effect with eval_interval 0: nothing is evaluated"},
           {"train.full_validation=true", "true has no effect with eval_interval 0: nothing is evaluated"},
           {"train.spike_policy=skip",
            "skip has no effect with spike_factor 0: nothing looks for spikes, as a factor above 1 does"},
           {"train.max_consecutive_skips=5",
            "5 has no effect where neither non_finite_policy nor spike_policy is skip: no step is skipped"},
           {"model.recompute_modules=mlp,core_attn,mlp", "\"mlp,core_attn,mlp\" names mlp twice"}})
    EXPECT_EQ(load_error({set}), "--set: " + set.substr(0, set.find('=')) + ": " + problem);
  says(load_error({"train.straggler_factor=0", "train.straggler_interval=5"}),
       {"--set: train.straggler_interval: 5", "straggler_factor"});
  says(load_error({"train.full_validation=true", "train.eval_interval=2", "train.eval_iters=5"}),
       {"--set: train.eval_iters: 5", "full_validation"});
  says(load_error({"train.full_validation=true", "train.eval_interval=2", "train.eval_samples=5"}),
       {"--set: train.full_validation", "eval_samples"});
  load_good({"train.eval_interval=2", "train.eval_samples=5"});
  load_good({"train.straggler_interval=5", "train.spike_factor=3", "train.spike_policy=skip", "train.eval_interval=5",
             "train.eval_iters=5", "train.max_consecutive_skips=5"});
  says(load_error({"train.run_dir="}), {"--set: train.run_dir"});
  load_good({"device.tf32=true"});
  load_good({"checkpoint.async_save=true", "checkpoint.save_interval=1"});
}

// A value in the file that a --set makes ineffective is not an error: it is left out with a note, and the resolved file
// is valid again. If both are given in the same place, that is an error.
TEST(Resolve, ASetThatSwitchesSomethingOffLeavesOutWhatNeedsIt) {
  const std::string file = kGoodConfig +
                           "  eval_interval: 5\n  eval_iters: 3\n  straggler_interval: 7\n  spike_factor: 3\n"
                           "  spike_policy: skip\n  max_consecutive_skips: 4\n"
                           "checkpoint: {save_interval: 5, keep_last: 3, async_save: true, max_failed_saves: 2}\n"
                           "parallel: {tensor_model_parallel_size: 2, sequence_parallel: true, bucket_size: 1000}\n"
                           "overlap: {tp_comm_overlap: ring, p2p_receive_ahead: 2}\n"
                           "optimizer: {min_lr: 1e-5}\n"
                           "precision: {dtype: fp32}\ndevice: {tf32: true}\n";
  struct Off {
    const char* set;
    std::vector<const char*> left_out;
  };
  for (const auto& [set, left_out] :
       std::vector<Off>{{"checkpoint.save_interval=0",
                         {"checkpoint.keep_last: 3", "checkpoint.async_save: true", "checkpoint.max_failed_saves: 2"}},
                        {"train.eval_interval=0", {"train.eval_iters: 3"}},
                        {"train.straggler_factor=0", {"train.straggler_interval: 7"}},
                        {"train.spike_factor=0", {"train.spike_policy: skip", "train.max_consecutive_skips: 4"}},
                        {"parallel.tensor_model_parallel_size=1",
                         {"parallel.sequence_parallel: true", "overlap.tp_comm_overlap: ring"}},
                        {"parallel.data_parallel_sharding_strategy=optim_grads", {"parallel.bucket_size: 1000"}},
                        {"precision.dtype=bf16", {"device.tf32: true"}},
                        {"optimizer.lr_decay_style=constant", {"optimizer.min_lr: 1e-05"}}}) {
    const std::vector<std::string> sets = {set};
    LoadedConfig loaded = parse_config(file, "run.yaml", sets);
    const Layout layout = resolve(loaded, {.world_size = 4});
    ASSERT_EQ(layout.notes.size(), left_out.size()) << set << ": " << fmt::format("{}", fmt::join(layout.notes, "\n"));
    for (size_t i = 0; i < left_out.size(); ++i) {
      EXPECT_TRUE(layout.notes[i].starts_with("run.yaml:")) << layout.notes[i];
      EXPECT_NE(layout.notes[i].find(left_out[i]), std::string::npos) << layout.notes[i];
      EXPECT_TRUE(layout.notes[i].ends_with("; it is left out")) << layout.notes[i];
    }
    LoadedConfig again = parse_config(to_yaml(loaded.config), "config.resolved.yaml");
    EXPECT_TRUE(resolve(again, {.world_size = 4}).notes.empty()) << set;
    EXPECT_EQ(to_yaml(again.config), to_yaml(loaded.config)) << set;
  }
}

// The same holds for pipeline schedules and for mutually exclusive lengths.
TEST(Resolve, ASetOfAnotherScheduleLeavesOutWhatWasOfTheOldOne) {
  const std::string pipeline = "parallel: {pipeline_model_parallel_size: 2, pipeline_schedule: interleaved";
  const std::string samples = "  train_samples: 4000\nbatch: {global_batch_size: 16, rampup_batch_size: \"8,8,800\"}\n";
  const std::string no_steps = "train.train_iters=0";
  struct Off {
    std::string file;
    std::vector<std::string> sets;
    std::string left_out;
  };
  for (const auto& [file, sets, left_out] : std::vector<Off>{
           {pipeline + ", decoder_first_pipeline_num_layers: 2}\n",
            {"parallel.pipeline_model_parallel_size=1", "parallel.pipeline_schedule=1f1b"},
            "decoder_first_pipeline_num_layers: 2"},
           {pipeline + ", account_for_loss_in_pipeline_split: true}\n",
            {"parallel.pipeline_model_parallel_size=1", "parallel.pipeline_schedule=1f1b"},
            "account_for_loss_in_pipeline_split: true"},
           {pipeline + ", microbatch_group_size_per_vp_stage: 4}\n",
            {"parallel.pipeline_schedule=1f1b"},
            "microbatch_group_size_per_vp_stage: 4"},
           {samples, {"train.train_samples=0"}, "rampup_batch_size: needs train.train_samples"},
           {samples, {"batch.step_batch_size_schedule=0:8 1280:16", no_steps}, "rampup_batch_size: excludes"},
           {"optimizer: {lr_warmup_fraction: 0.5}\n", {"optimizer.lr_warmup_iters=2"}, "lr_warmup_fraction: 0.5"},
           {"device: {tf32: true}\n", {"device.kind=cpu"}, "tf32: true has no effect where a run computes on CPUs"},
           {"device: {cpu_isa: avx2}\n",
            {"device.kind=cuda"},
            "cpu_isa: avx2 has no effect where a run computes on GPUs"}}) {
    LoadedConfig loaded = parse_config(kGoodConfig + file, "run.yaml", sets);
    const Layout layout = resolve(loaded, {.world_size = 2});
    EXPECT_TRUE(std::ranges::any_of(layout.notes,
                                    [&](const std::string& note) {
                                      return note.starts_with("run.yaml:") && note.find(left_out) != note.npos &&
                                             note.ends_with("it is left out");
                                    }))
        << left_out << "\n"
        << fmt::format("{}", fmt::join(layout.notes, "\n"));
  }
}

// `trivet config` has no GPUs to ask, and says it all the same.
TEST(Resolve, WhatGpusLackIsRefusedWhereTheConfigurationAsksForThem) {
  const auto error = [](std::vector<std::string> sets) {
    LoadedConfig loaded = load_good(sets);
    resolve(loaded, {.world_size = 2});  // without device.kind, GPUs need not be there
    sets.emplace_back("device.kind=cuda");
    return message_of<ConfigError>([&] {
      LoadedConfig on_gpus = load_good(sets);
      resolve(on_gpus, {.world_size = 2});
    });
  };
  const std::vector<std::string> fp8 = {"precision.dtype=bf16", "precision.fp8=hybrid"};
  const auto with = [&](const char* set) { return std::vector<std::string>{fp8[0], fp8[1], set}; };
  says(error(with("precision.fp8_accumulator_bits=14")), {"precision.fp8_accumulator_bits: found 14", "device.kind"});
  says(error(with("precision.fp8_report=true")), {"precision.fp8_report: found true", "device.kind"});
  says(error({"comm.link_gbps=10"}), {"comm.data_link_gbps: found 10", "device.kind: cpu"});
}

TEST(Resolve, SaysThatATestSetIsHeldBack) {
  LoadedConfig loaded = load_good({"data.split=90,5,5"});
  const std::vector<std::string> notes = resolve(loaded, {.world_size = 1}).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0], "data.split reserves a test set, which this run never evaluates (train.eval_interval 0)");
  LoadedConfig evaluated = load_good({"data.split=90,5,5", "train.eval_interval=5"});
  EXPECT_TRUE(resolve(evaluated, {.world_size = 1}).notes.empty());
}

// A file written for many ranks also runs on a few.
TEST(Resolve, WhatNeedsMoreRanksIsLeftOutOnFew) {
  const std::string file = kGoodConfig +
                           "parallel: {data_parallel_sharding_strategy: optim, bucket_size: 1000}\n"
                           "overlap: {overlap_grad_reduce: true, overlap_param_gather: true, collectives_in_flight: 2, "
                           "average_in_collective: true}\n"
                           "comm: {link_gbps: 10, data_link_gbps: 5, tensor_link_latency_us: 3}\n";
  LoadedConfig eight = parse_config(file, "run.yaml");
  const Layout wide = resolve(eight, {.world_size = 8});
  ASSERT_EQ(wide.notes.size(), 2u);
  EXPECT_TRUE(wide.notes[1].ends_with(
      "comm.link_gbps: 10 has no effect: each class of groups with several ranks has its own value; it is left out"))
      << wide.notes[1];
  EXPECT_EQ(wide.notes[0],
            "run.yaml:13: comm.tensor_link_latency_us: 3 has no effect: the tensor parallel size is 1 (world 8 over "
            "tensor 1 x pipeline 1); it is left out");
  EXPECT_EQ(eight.config.overlap.collectives_in_flight, 2);
  LoadedConfig one = parse_config(file, "run.yaml");
  const Layout layout = resolve(one, {.world_size = 1});
  EXPECT_EQ(layout.notes[0],
            "run.yaml:11: parallel.data_parallel_sharding_strategy: optim has no effect: the data parallel size is 1 "
            "(world 1 over tensor 1 x pipeline 1); it is left out");
  EXPECT_EQ(layout.notes.size(), 9u) << fmt::format("{}", fmt::join(layout.notes, "\n"));
  EXPECT_EQ(one.config.parallel.data_parallel_sharding_strategy, Sharding::no_shard);
  EXPECT_EQ(one.config.parallel.bucket_size, default_bucket_size(1));
  EXPECT_FALSE(one.config.overlap.overlap_grad_reduce);
  EXPECT_EQ(one.config.comm.links[class_of(comm_of("data"))].gbps, 0);
  LoadedConfig again = parse_config(to_yaml(one.config), "config.resolved.yaml");
  EXPECT_TRUE(resolve(again, {.world_size = 1}).notes.empty());

  LoadedConfig alone = load_good({"train.straggler_interval=7", "parallel.order=dp-tp-pp"});
  EXPECT_EQ(resolve(alone, {.world_size = 2}).notes.size(), 1u) << "two peers in one dimension";
  LoadedConfig lonely = load_good({"train.straggler_interval=7", "parallel.order=dp-tp-pp"});
  EXPECT_EQ(resolve(lonely, {.world_size = 1}).notes,
            (std::vector<std::string>{"--set: train.straggler_interval: 7 has no effect: there is one rank (world 1 "
                                      "over tensor 1 x pipeline 1); it is left out",
                                      "--set: parallel.order: \"dp-tp-pp\" has no effect: at most one dimension has "
                                      "several ranks (world 1 over tensor 1 x pipeline 1); it is left out"}));

  LoadedConfig deferred = load_good({"parallel.pipeline_model_parallel_size=2", "batch.global_batch_size=4",
                                     "overlap.wgrad_deferral_limit=5", "overlap.defer_embedding_wgrad_compute=true"});
  EXPECT_EQ(
      resolve(deferred, {.world_size = 2}).notes,
      std::vector<std::string>{"--set: overlap.wgrad_deferral_limit: 5 is above the micro-batches of a step (4): all "
                               "are deferred, as with 0; it is left out"});
  EXPECT_EQ(deferred.config.overlap.wgrad_deferral_limit, 0);
}

// min_lr's default is the number that a person would write.
TEST(Resolve, ATenthOfTheLearningRateIsDecimal) {
  for (const auto& [lr, tenth] : std::vector<std::pair<std::string, double>>{
           {"3e-3", 3e-4}, {"6e-4", 6e-5}, {"0.7", 0.07}, {"1e-300", 1e-301}, {"2.5e-5", 2.5e-6}}) {
    LoadedConfig loaded = load_good({"optimizer.lr=" + lr});
    resolve(loaded, {});
    EXPECT_EQ(loaded.config.optimizer.min_lr, tenth) << lr;
  }
}

TEST(Validate, DataParallel) {
  const RunFacts two = {.world_size = 2};
  says(resolve_error({"overlap.overlap_param_gather=true"}, two),
       {"--set: overlap.overlap_param_gather", "data_parallel_sharding_strategy", "no_shard"});
  says(resolve_error({"precision.dtype=bf16", "precision.fp8=hybrid", "precision.fp8_param_gather=true"}, two),
       {"--set: precision.fp8_param_gather", "data_parallel_sharding_strategy", "no_shard"});
  says(resolve_error({"overlap.collectives_in_flight=2"}, two),
       {"--set: overlap.collectives_in_flight: 2", "overlap_grad_reduce or overlap_param_gather"});
  says(resolve_error({"parallel.data_parallel_sharding_strategy=optim_grads", "parallel.bucket_size=1000"}, two),
       {"--set: parallel.bucket_size: 1000", "optim_grads"});
  says(load_error({"parallel.data_parallel_sharding_strategy=zero1"}),
       {"--set: parallel.data_parallel_sharding_strategy", "\"zero1\"", "no_shard", "optim_grads, optim_grads_params"});
  says(resolve_error({"overlap.align_grad_reduce=true"}, two),
       {"--set: overlap.align_grad_reduce", "overlap_grad_reduce"});
  says(resolve_error({"overlap.align_grad_reduce=true", "overlap.overlap_grad_reduce=true"}, two),
       {"--set: overlap.align_grad_reduce", "pipeline_model_parallel_size"});
  says(load_error({"overlap.tp_comm_overlap=ring"}),
       {"overlap.tp_comm_overlap: ring has no effect without sequence_parallel", "tensor_model_parallel_size above 1"});
  says(load_error({"overlap.tp_comm_overlap_proj=bulk"}), {"--set: overlap.tp_comm_overlap_proj", "\"bulk\""});
  EXPECT_EQ(load_good({"device.cuda_graph_impl=local"}).config.device.cuda_graph_impl, CudaGraphs::local);
  const std::string halves =
      resolve_error({"parallel.data_parallel_sharding_strategy=optim_grads", "parallel.pipeline_schedule=zb-h1",
                     "parallel.pipeline_model_parallel_size=2", "batch.global_batch_size=4"},
                    {.world_size = 4});
  EXPECT_NE(halves.find("optim_grads needs whole backward passes, but the schedule zb-h1"), std::string::npos)
      << halves;
}

TEST(Validate, Vocabulary) {
  says(resolve_error({"model.vocab_size=auto"}),
       {"--set: model.vocab_size", "corpus.json, corpus.tokenizer.json", "corpus.model"});
  says(resolve_error({"model.vocab_size=auto"}, {.has_dataset = false}),
       {"run.yaml", "8: data.path", "corpus.idx", "corpus.bin", "model.vocab_size"});
  EXPECT_EQ(
      resolve_error({"model.vocab_size=auto", "data.path=", "data.train_path=b"}, {.has_dataset = false}).substr(0, 30),
      "--set: data.train_path: found ");
  says(resolve_error({}, {.dataset_vocab_size = 101}),
       {"run.yaml", "6: model.vocab_size: 100", "101", "make_vocab_size_divisible_by"});
  LoadedConfig larger = load_good({});  // a vocabulary larger than the dataset's, as in imported models
  EXPECT_NO_THROW(resolve(larger, {.dataset_vocab_size = 99}));
}

TEST(Validate, SeveralProblemsOfARunInOneError) {
  says(resolve_error({"batch.global_batch_size=5", "model.vocab_size=auto"}, {.world_size = 2}),
       {"--set: batch.global_batch_size: 5", "micro_batch_size (1)", "4 or 6", "--set: model.vocab_size",
        "corpus.json, corpus.tokenizer.json", "corpus.model"});
}

}  // namespace
}  // namespace trivet

// Every wait is needed: running streams as late or as early as their waits allow (tests/support/hostile.h) changes no
// number, but leaving out any one wait in parallel/ or engine/ makes some case give different numbers, fail or crash.
//
// TRIVET_WAITS=all leaves out each wait in turn, which takes two minutes; TRIVET_WAITS=executor.cc, those in that file.
// By default, every sixteenth wait is left out; which ones depends on the addresses in the binary.
#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <iostream>
#include <map>
#include <mutex>
#include <set>

#include "base/files.h"
#include "engine/train/checkpointing.h"
#include "engine/train/inference.h"
#include "kernels/philox.h"
#include "parallel/comm/world.h"
#include "tests/support/hostile.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test::waits {
namespace {

constexpr uint64_t kSeeds = 4;

struct Case {
  const char* name;
  std::function<std::string(const MakeBackend&)> run;
  bool staged = false;
};

std::string text(const Curve& curve) {
  std::string all = fmt::format("{:a} {:x}", curve.validation_loss, curve.weights_hash);
  for (const double loss : curve.losses) all += fmt::format(" {:a}", loss);
  for (const double norm : curve.norms) all += fmt::format(" {:a}", norm);
  return all;
}

// Three steps, each queued before the previous one's result is read, and an evaluation.
Case training(const char* name, const Cut& how, std::function<void(Config&)> set, bool staged = false) {
  const auto run = [=](const MakeBackend& make) {
    Config config = cut(tiny_config(), how);
    config.model.num_layers = 4;
    config.model.seq_length = 8;
    config.model.hidden_dropout = 0.1;
    set(config);
    return text(train_on_threads(config, how.ranks(), 3, {.poison = true, .make_backend = make}, true));
  };
  return {name, run, staged};
}

// Prepares the device, compares replicas and saves a checkpoint at each step, then resumes from the first one.
std::string save_and_resume(const MakeBackend& make, bool async) {
  const TempDir dir;
  Config config = cut(tiny_config(), {.d = 2, .strategy = "optim"});
  overlap_data_parallel(config);
  config.train.check_weight_hash_across_dp_replicas_interval = 1;
  config.train.run_dir = dir / "run";
  config.checkpoint.save_interval = 1;
  config.checkpoint.async_save = async;
  std::filesystem::create_directories(config.train.run_dir);
  const Layout layout = resolved(config, 2).layout;
  std::string all;
  for (const bool resumes : {false, true})
    with_trainers(config, 2,
                  [&](Trainer& trainer) {
                    Checkpointing checkpointing(trainer.config(), layout, trainer, nullptr, {}, now_ns());
                    if (!resumes) trainer.prepare_device();
                    else checkpointing.resume(CheckpointStore(config.train.run_dir + "/checkpoints").path_of(1), false);
                    std::string mine;
                    for (int i = 0; i < 2; ++i) {
                      const StepResult step = trainer.step();
                      mine += fmt::format(" {:a} {:a}", step.loss, step.grad_norm);
                      checkpointing.after_step(trainer.host().sum(checkpointing.votes()));
                    }
                    Votes end = trainer.host().sum(checkpointing.votes());
                    end.stop_signal = 1;  // saves the last step
                    checkpointing.after_step(end);
                    if (trainer.host().rank() == 0) all += mine;
                  },
                  {.poison = true, .make_backend = make});
  for (const int step : {1, 2, 3})
    for (int rank = 0; rank < 2; ++rank)
      all += ' ' + content_hash(read_small_file(
                       fmt::format("{}/rank-{:05d}.safetensors",
                                   CheckpointStore(config.train.run_dir + "/checkpoints").path_of(step), rank),
                       int64_t{1} << 30));
  return all;
}

// Searches for a non-finite gradient: its tensor, rank and samples.
std::string find_a_nan(const MakeBackend& make, const char* fault) {
  try {
    with_trainers(cut(tiny_config(), {.p = 2, .d = 2}), 4, [](Trainer& trainer) { trainer.step(), trainer.step(); },
                  {.make_backend = make}, {fault});
  } catch (const NumericsError& error) {
    return error.what();
  }
  return "nothing was found";
}

// The logits after two or more tokens, from a model trained for one step.
std::string generate(const MakeBackend& make) {
  Config config = cut(tiny_config(), {.t = 2, .p = 2, .sequence_parallel = true});
  const std::vector<int32_t> tokens{3, 10, 31, 4, 4};
  std::string all;
  with_trainers(config, 4,
                [&](Trainer& trainer) {
                  trainer.step();
                  std::string mine;
                  for (size_t n = 2; n <= tokens.size(); ++n)
                    for (const float logit : trainer.rank().next_token_logits(std::span(tokens).first(n)))
                      mine += fmt::format(" {:a}", logit);
                  if (trainer.world().rank() == 0) all = mine;
                },
                {.make_backend = make});
  return all;
}

const std::vector<Case>& cases() {
  const auto tensor = [](TensorOverlap overlap) { return [=](Config& c) { c.overlap.tp_comm_overlap = overlap; }; };
  const auto three = [](Config& c) {
    overlap_data_parallel(c);
    c.overlap.collectives_in_flight = 3;
    c.parallel.bucket_size = 2000;
  };
  static const std::vector<Case> all = {
      training("1f1b", {.p = 2, .d = 2}, [](Config& c) { c.overlap.overlap_grad_reduce = true; }),
      training("no_overlap", {.p = 2, .d = 2, .strategy = "optim"},
               [](Config& c) { c.overlap.overlap_p2p_comm = false; }),
      training("interleaved", {.p = 2, .d = 2, .schedule = "interleaved", .v = 2, .strategy = "optim"},
               [](Config& c) {
                 overlap_data_parallel(c);
                 c.overlap.align_grad_reduce = c.overlap.align_param_gather = true;
                 c.batch.global_batch_size = 16;
               }),
      training("zb_v", {.p = 2, .d = 2, .schedule = "zb-v", .strategy = "optim"}, three),
      training("zb_h1", {.p = 2, .schedule = "zb-h1"},
               [](Config& c) {  // a message arrives while a weight gradient still reads the next message's buffer
                 c.overlap.p2p_receive_ahead = 1;
                 c.batch = {.micro_batch_size = 1, .global_batch_size = 8};
               }),
      training("optim_grads", {.d = 2, .strategy = "optim_grads"}, overlap_data_parallel),
      training("optim_grads_params", {.d = 2, .strategy = "optim_grads_params"},
               [](Config& c) {
                 overlap_data_parallel(c);
                 c.overlap.collectives_in_flight = 3;
               }),
      training(
          "unused_prefetch", {.d = 2, .strategy = "optim_grads_params"},
          [](Config& c) {  // a group's last block is prefetched, but recomputation begins with the group's first block
            overlap_data_parallel(c);
            c.overlap.collectives_in_flight = 2;
            c.model.recompute_granularity = RecomputeGranularity::full;
            c.model.recompute_method = RecomputeMethod::uniform;
            c.model.recompute_num_layers = 2;
          }),
      training("unused_last_prefetch", {.p = 2, .d = 2, .strategy = "optim_grads_params"},
               [](Config& c) {  // a later stage's first block, recomputed last, prefetches the second block
                 overlap_data_parallel(c);
                 c.overlap.collectives_in_flight = 2;
                 c.model.recompute_granularity = RecomputeGranularity::full;
                 c.model.recompute_method = RecomputeMethod::uniform;
                 c.model.recompute_num_layers = 1;
               }),
      training("streamed_pipeline", {.p = 2, .d = 2, .strategy = "optim_grads_params"}, overlap_data_parallel),
      training("ring", {.t = 4, .sequence_parallel = true}, tensor(TensorOverlap::ring)),
      training("pipeline", {.t = 2, .sequence_parallel = true}, tensor(TensorOverlap::pipeline)),
      training("bulk", {.t = 2, .sequence_parallel = true}, tensor(TensorOverlap::bulk)),
      training("context_ring", {.c = 4}, [](Config&) {}),
      training("context_gathered", {.t = 2, .sequence_parallel = true, .c = 2, .cp_comm_type = CpCommType::all_gather},
               [](Config& c) {  // one part of the heads is gathered while another is computed
                 c.model.num_attention_heads = 8;
                 c.model.kv_channels = 4;
               }),
      training("staged", {.t = 2, .p = 2, .d = 2, .sequence_parallel = true, .strategy = "optim"}, three, true),
      {"save", [](const MakeBackend& make) { return save_and_resume(make, false); }},
      {"save_beside", [](const MakeBackend& make) { return save_and_resume(make, true); }},
      {"nan", [](const MakeBackend& make) { return find_a_nan(make, "nan:1:2:reduce"); }},
      {"nan_of_the_sum", [](const MakeBackend& make) { return find_a_nan(make, "nan:1:2:optimizer"); }},
      {"generate", generate}};
  return all;
}

// Waits whose absence no case notices: the waiting function, its caller (empty: any), and why the wait stays.
struct Excuse {
  const char *function, *caller, *why;
};
constexpr Excuse kExcused[] = {
    {"StagingPair::~StagingPair", "", "for a reader or a writer that throws while a copy is in flight"},
    {"StagingPair::wait", "read_tensors", "the third buffer of 64 MiB is the first that waits"},
    {"StepInput::take", "next_token_logits", "the host has read the last token's logits"},
    {"CommStreams::after_compute", "TensorCommStream::TensorCommStream", "takes the stream, which nothing uses yet"},
    {"read_tensors", "", "a copy that has failed says so"},
    {"Trainer::finish_step", "", "a stream that has failed says so; the numbers were waited for"},
    {"SendEnd::synchronize", "", "the spans of a step's sends; the receiver goes on when it has the data"},
    {"ParamGather::wait_for_prefetches", "", "what would read weights that change is not used; yet nobody may read so"},
    {"Executor::send", "", "all that overlap_p2p_comm: false does; it takes time and changes no number"},
    {"Trainer::warm_up", "", "kernels are loaded before ranks communicate, and before clocks start"},
    {"Trainer::prepare_device", "", "likewise"},
    {"Trainer::resume", "", "the clock of the first step starts when the weights are there"},
};

class Waits : public testing::TestWithParam<size_t> {};

TEST_P(Waits, TheOrderOfStreamsChangesNoNumber) {
  const Case& c = cases()[GetParam()];
  const std::string expected = c.run(make_backend);
  for (uint64_t seed = 0; seed < (kMatrixStride == 1 ? 3 : 1); ++seed) {
    EXPECT_EQ(c.run(make_hostile_backend({.seed = seed, .staged = c.staged})), expected) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Waits, testing::Range(size_t{0}, cases().size()),
                         [](const auto& info) { return std::string(cases()[info.param].name); });

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers report only that a wait is missing
// Shortens "function(arguments) at directory/../file:line" to "function file:line".
std::string short_name(const std::string& name) {
  const size_t at = name.rfind(" at "), up = name.rfind("/../");
  const std::string function = name.substr(0, std::min(at, name.find("(trivet")));
  return function + (at == std::string::npos ? "" : " " + name.substr(up == std::string::npos ? at + 4 : up + 4));
}

TEST(Waits, EachIsNeeded) {
  tiny_dataset();
  // given: where the cases wait, by line and calling function, and the numbers they give
  std::vector<std::string> expected;
  std::map<Place, std::set<size_t>> cases_of;
  for (size_t i = 0; i < cases().size(); ++i) {
    const Ended ended = run_hostile(cases()[i].run, {.staged = cases()[i].staged});
    ASSERT_EQ(ended.how, "") << cases()[i].name;
    expected.push_back(ended.result);
    for (const Place& place : ended.places) cases_of[place].insert(i);
  }
  std::vector<Place> places;
  uint64_t sum = 0;
  for (const auto& [place, in] : cases_of) {
    places.push_back(place);
    sum += place[0];
  }
  const std::vector<std::vector<std::string>> names = names_of(places);
  struct Wait {
    std::vector<Place> places;
    std::set<size_t> cases;
    std::string caller;
  };
  std::map<std::string, Wait> waits;  // by waiting line and calling function
  for (size_t n = 0; n < places.size(); ++n) {
    if (names[n][0].find("/tests/") != std::string::npos) continue;  // the tests' own
    const std::string caller = names[n][1].substr(0, names[n][1].rfind(" at "));
    Wait& wait = waits[short_name(names[n][0]) + " called by " + short_name(caller)];
    wait.places.push_back(places[n]);
    wait.cases.merge(std::set(cases_of[places[n]]));
    wait.caller = caller;
  }
  EXPECT_GT(waits.size(), 40u);

  const char* const asked = std::getenv("TRIVET_WAITS");
  constexpr uint64_t kStride = 16;
  size_t number = 0, tried = 0, missed = 0, excused = 0;
  for (const auto& [name, wait] : waits) {
    const auto* const excuse = std::ranges::find_if(kExcused, [&](const Excuse& e) {
      return name.find(e.function) < name.find(" called by ") && wait.caller.find(e.caller) != std::string::npos;
    });
    if (!asked && excuse != std::end(kExcused)) continue;
    ++number;
    if (asked ? std::string_view(asked) != "all" && name.find(asked) == std::string::npos
              : number % kStride != sum % kStride)
      continue;
    ++tried;
    // when: that wait is left out
    std::string by;
    for (uint64_t seed = 0; seed < kSeeds && by.empty(); ++seed)
      for (const size_t i : wait.cases) {
        const Case& c = cases()[i];
        const Ended ended = run_hostile(c.run, {.seed = seed, .staged = c.staged, .skipped = wait.places});
        if (ended.result == expected[i]) continue;
        by =
            fmt::format("{}, seed {}: {}", c.name, seed, ended.how.empty() ? "other numbers" : ended.how.substr(0, 99));
        break;
      }
    // then: some case notices
    missed += !by.empty();
    if (!by.empty()) {
      std::cout << "missed  " << name << "\n        by " << by << std::endl;
    } else if (excuse != std::end(kExcused)) {
      ++excused;
      std::cout << "stays   " << name << "\n        " << excuse->why << std::endl;
    } else {
      ADD_FAILURE() << "no case misses the wait of " << name;
    }
  }
  std::cout << fmt::format("of {} waits {} were left out in turn: {} were missed, {} stay for other reasons\n",
                           waits.size(), tried, missed, excused);
}
#endif

}  // namespace
}  // namespace trivet::test::waits

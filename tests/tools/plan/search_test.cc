// Bounds compared with rehearsals, and a search compared with rehearsing every layout.
#include "tools/plan/search.h"

#include <gtest/gtest.h>
#include <set>

#include "base/files.h"
#include "tests/support/message_of.h"
#include "tests/support/random_runs.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"
#include "tests/support/where.h"
#include "tools/plan/bound.h"
#include "tools/plan/device_memory.h"
#include "tools/plan/search_report.h"
#include "tools/study/plan.h"
#include "tools/study/study_file.h"

namespace trivet::test {
namespace {

constexpr int kRanks = 8;

// Nodes of four GPUs. Launches cost little by default: at the spec's cost they would dominate so small a model.
System system_of(const std::vector<std::string>& sets = {"host_us=0.01"}) {
  std::vector<std::string> all = sets;
  all.emplace_back("gpus_per_node=4");
  return load_system("h100-sxm", all, source_path("configs/systems"));
}

LoadedConfig tiny_run(bool llama = false) {
  LoadedConfig run{.config = tiny_model(llama), .origins = {}, .path = "test"};
  set_key(run.config, "precision.dtype", "bf16");
  set_key(run.config, "batch.global_batch_size", "32");
  set_key(run.config, "device.cuda_graph_impl", "none");
  return run;
}

// Filters: only 1f1b pipelines; no recomputation.
bool is_plain(const LayoutShape& shape) { return shape.schedule == "1f1b"; }
bool is_none(const Recomputing& how) { return how == Recomputing{}; }

RunFacts facts_of(const LoadedConfig& run) {
  return {.world_size = kRanks, .dataset_vocab_size = run.config.model.vocab_size};
}

struct Rehearsed {
  LayoutShape shape;
  ResolvedCandidate run;
  LayoutBound bound;
};

// Randomly drawn layouts with their bounds.
std::vector<Rehearsed> sample(const LoadedConfig& run, const System& system, int number, size_t count) {
  Bounds bounds(run, system);
  const std::vector<LayoutShape> shapes = list_shapes(run.config, kRanks);
  Draw draw(number);
  const auto among = [&](const auto& list) {
    return static_cast<size_t>(draw.of(0, static_cast<int>(list.size()) - 1));
  };
  std::vector<Rehearsed> all;
  while (all.size() < count) {
    const LayoutShape& shape = shapes[among(shapes)];
    const auto legal = resolve_candidate(with_layout(run, kRanks, shape, {}, Sharding::no_shard), facts_of(run));
    if (!legal) continue;
    const auto how = list_recomputings(std::ranges::max(legal->layout.layers_of_stage));
    const auto shardings = list_shardings(kRanks / (shape.t * shape.p));
    const auto of_shape = bounds.of(shape, *legal, how, shardings);
    const size_t i = among(how), k = among(shardings);
    auto chosen = resolve_candidate(with_layout(run, kRanks, shape, how[i], shardings[k]), facts_of(run));
    if (chosen) all.push_back({shape, std::move(*chosen), of_shape[i][k]});
  }
  return all;
}

TEST(Bounds, NoRehearsalIsFasterOrSmaller) {
  double sum_of_ratios = 0;
  int count = 0;
  for (const auto& sets : std::vector<std::vector<std::string>>{
           {"host_us=0.01"}, {"host_us=0.01", "network_gb_per_s=0.5", "kernel_us=0.2"}, {}})
    for (const bool llama : {false, true}) {
      const System system = system_of(sets);
      LoadedConfig run = tiny_run(llama);
      if (sets.size() > 1) {
        set_key(run.config, "precision.fp8", "hybrid");
        set_key(run.config, "precision.fp8_param_gather", "true");
        set_key(run.config, "precision.first_last_layers_bf16", llama ? "true" : "false");
      }
      for (const Rehearsed& one : sample(run, system, count, 8)) {
        const Prediction p = predict(one.run.config, one.run.layout, system);
        const std::string text = to_yaml(one.run.open.config);
        EXPECT_LE(one.bound.seconds, p.step.step_seconds) << text;
        EXPECT_LE(one.bound.memory_bytes, p.memory_bytes) << text;
        sum_of_ratios += one.bound.seconds / p.step.step_seconds;
        ++count;
      }
    }
  EXPECT_GT(sum_of_ratios / count, 0.5);
}

// Context ranks share optimizer state, gradients and weights with data-parallel ranks.
TEST(Bounds, ContextRanksShareStateToo) {
  const auto saved = [](const char* context_ranks, Sharding sharding) {
    LoadedConfig run = tiny_run();
    set_key(run.config, "parallel.context_parallel_size", context_ranks);
    const LayoutShape shape{.t = 1, .p = 1};
    const auto legal = resolve_candidate(with_layout(run, kRanks, shape, {}, Sharding::no_shard), facts_of(run));
    const auto bounds = Bounds(run, system_of()).of(shape, legal.value(), {{}}, {Sharding::no_shard, sharding});
    return bounds[0][0].memory_bytes - bounds[0][1].memory_bytes;
  };
  for (const Sharding sharding : {Sharding::optim, Sharding::optim_grads, Sharding::optim_grads_params}) {
    EXPECT_GT(saved("1", sharding), 0) << word_of(sharding);
    EXPECT_EQ(saved("2", sharding), saved("1", sharding)) << word_of(sharding);
  }
}

// A benchmark's rules fix the model; bounds are computed from smaller models.
TEST(Bounds, OfABenchmark) {
  const LoadedConfig run = load_untrained(source_path("configs/mlperf/llama31_8b.yaml"));
  const RunFacts facts{.world_size = 64, .dataset_vocab_size = run.config.model.vocab_size};
  const LayoutShape shape{.t = 8, .p = 8};
  const auto legal = resolve_candidate(with_layout(run, 64, shape, {}, Sharding::no_shard), facts);
  ASSERT_TRUE(legal);
  EXPECT_GT(Bounds(run, system_of()).of(shape, *legal, {{}}, {Sharding::no_shard})[0][0].seconds, 0);
}

TEST(Search, CommunicatorsAreThoseOfARecording) {
  const System system = system_of();
  for (const Rehearsed& one : sample(tiny_run(), system, 5, 10))
    for (int pp = 0; pp < one.shape.p; ++pp) {
      TapeGroups groups;
      const int rank = rank_of({{Axis::pp, pp}}, one.run.layout.mesh);
      const Tape tape = record_tape(one.run.config, one.run.layout, rank, groups, {.steps = 1});
      EXPECT_EQ(communicators_of(one.run.config, one.run.layout, pp), static_cast<int>(tape.groups.size()))
          << to_yaml(one.run.open.config);
    }
}

// On a system with so little memory that only some layouts fit.
TEST(Search, FindsTheBestOfAll) {
  LoadedConfig run = tiny_run();
  set_key(run.config, "batch.global_batch_size", "8");
  const System roomy = system_of();
  std::vector<std::pair<double, int64_t>> all;  // seconds, bytes
  for (const LayoutShape& shape : list_shapes(run.config, kRanks)) {
    if (!is_plain(shape)) continue;
    for (const Sharding sharding : list_shardings(kRanks / (shape.t * shape.p)))
      if (const auto legal = resolve_candidate(with_layout(run, kRanks, shape, {}, sharding), facts_of(run))) {
        const Prediction p = predict(legal->config, legal->layout, roomy);
        all.emplace_back(p.step.step_seconds, p.memory_bytes);
      }
  }
  std::ranges::sort(all);
  ASSERT_GT(all.size(), 30u);
  const int64_t limit = all[all.size() / 2].second - 1;
  const System tight =
      system_of({"host_us=0.01", fmt::format("memory_gib={:.17g}", static_cast<double>(limit) / (1 << 30))});
  std::erase_if(all, [&](const auto& one) { return one.second > device_bytes(tight, 1); });
  const SearchResult result = search(
      run, facts_of(run), tight, {.shapes = is_plain, .recomputings = is_none, .best = 3, .refined = 0, .threads = 2});
  ASSERT_GE(result.found.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result.found[i].prediction.step.step_seconds, all[i].first);
    EXPECT_TRUE(result.found[i].prediction.fits());
  }
  EXPECT_TRUE(result.ended);
  EXPECT_GT(result.too_large, 0);
  EXPECT_GT(result.pruned, 0);
  EXPECT_GE(result.left_seconds, all[2].first);
  EXPECT_EQ(result.rehearsed, static_cast<int64_t>(result.found.size()));
}

TEST(Search, ItsBestIsARunThatIsPlannedAlike) {
  const TempDir dir;
  const LoadedConfig run = tiny_run();
  const System system = system_of();
  const SearchResult result = search(run, facts_of(run), system, {.shapes = is_plain, .best = 1, .refined = 1});
  const Candidate& best = result.found.front();
  EXPECT_EQ(result.refined, 1u);
  write_file(dir / "best.yaml", to_yaml(best.open.config));
  LoadedConfig again = load_config(dir / "best.yaml");
  const Layout layout = resolve(again, facts_of(run));
  EXPECT_EQ(predict(again.config, layout, system).step.step_seconds, best.prediction.step.step_seconds);
  EXPECT_EQ(to_yaml(with_sets(run, best.sets).config), to_yaml(best.open.config));
}

// If collectives slow GEMMs down, a search's last phase turns overlap off that the search began with.
TEST(Search, NamesWhatItChangedOnce) {
  LoadedConfig run = tiny_run();
  set_key(run.config, "parallel.tensor_model_parallel_size", "2");
  const System slow = system_of({"host_us=0.01", "contention=4", "nvlink_gb_per_s=0.1", "network_gb_per_s=0.1"});
  const auto best = [&](size_t refined) {
    return search(run, facts_of(run), slow, {.best = 1, .refined = refined}).found.front();
  };
  const Candidate last = best(1);
  EXPECT_LT(last.seconds(), best(0).seconds());
  std::set<std::string> keys;
  for (const std::string& set : last.sets) EXPECT_TRUE(keys.insert(set.substr(0, set.find('='))).second) << set;
}

// A search chooses the "auto" values anyway. The study of the results contains each result as a point that can run.
TEST(Search, OfARunLeftToThePlannerAsAStudy) {
  const TempDir dir;
  write_file(dir / "run.yaml", to_yaml(tiny_run().config) + "\n");
  const std::vector<std::string> sets = {"batch.micro_batch_size=auto", "optimizer.clip_grad=0.5"};
  const LoadedConfig run = load_untrained(dir / "run.yaml", sets);
  const SearchResult result =
      search(run, facts_of(run), system_of(), {.shapes = is_plain, .recomputings = is_none, .best = 3, .refined = 0});
  ASSERT_GE(result.found.size(), 3u);
  const System node_of_eight = load_system("h100-sxm", {}, source_path("configs/systems"));
  make_folder(dir / "of");
  write_file(dir / "of/best.yaml", study_of(result, run, node_of_eight, dir / "of/best.yaml", 3));
  const Study study = load_study(dir / "of/best.yaml");
  EXPECT_EQ(study.name, "best");
  const Plan plan = make_plan(study);
  EXPECT_TRUE(plan.dropped.empty()) << plan.dropped.front().reason;
  ASSERT_EQ(plan.points.size(), 3u);
  EXPECT_EQ(plan.points[0].launch.ranks, kRanks);
  for (size_t i = 0; i < 3; ++i) {
    const Config point = load_config(dir / "run.yaml", plan.points[i].sets).config, found = result.found[i].open.config;
    EXPECT_EQ(point.optimizer.clip_grad, 0.5);
    EXPECT_EQ(point.batch.micro_batch_size, found.batch.micro_batch_size);
    EXPECT_EQ(point.parallel.tensor_model_parallel_size, found.parallel.tensor_model_parallel_size);
    EXPECT_EQ(point.parallel.pipeline_model_parallel_size, found.parallel.pipeline_model_parallel_size);
    EXPECT_EQ(point.parallel.data_parallel_sharding_strategy, found.parallel.data_parallel_sharding_strategy);
  }
}

TEST(Search, RecomputesNoMoreThanMemoryNeeds) {
  LoadedConfig run = tiny_run();
  set_key(run.config, "parallel.tensor_model_parallel_size", "2");
  set_key(run.config, "parallel.pipeline_model_parallel_size", "4");  // no data-parallel ranks to shard over
  const SearchOptions only{.shapes =
                               [&](const LayoutShape& shape) {
                                 return shape.t == 2 && shape.p == 4 && is_plain(shape) && !shape.sequence_parallel &&
                                        !shape.ends_count && shape.micro_batch == run.config.batch.micro_batch_size;
                               },
                           .refined = 0};
  const SearchResult roomy = search(run, facts_of(run), system_of(), only);
  // One of the two results is the run itself, which recomputes and is rehearsed in any case.
  const auto recomputes = [](const Candidate& found) {
    return found.open.config.model.recompute_granularity != RecomputeGranularity::none;
  };
  ASSERT_EQ(roomy.found.size(), 2u);
  EXPECT_FALSE(recomputes(roomy.found[0]));
  EXPECT_TRUE(recomputes(roomy.found[1]));
  EXPECT_GT(roomy.dominated, 5);
  const double less = static_cast<double>(roomy.found[0].prediction.memory_bytes - 1) / (1 << 30);
  const SearchResult tight =
      search(run, facts_of(run), system_of({"host_us=0.01", fmt::format("memory_gib={:.17g}", less)}), only);
  EXPECT_TRUE(std::ranges::all_of(tight.found, recomputes));
  EXPECT_TRUE(std::ranges::any_of(tight.found, [](const Candidate& found) { return found.recompute_share > 0; }));
}

TEST(Search, EndsWhenItIsAskedTo) {
  const LoadedConfig run = tiny_run();
  SearchOptions options{.shapes = is_plain, .recomputings = is_none};
  size_t rehearsed = 0;
  options.progress = [&](const SearchProgress& progress) { rehearsed = progress.rehearsed; };
  options.stop = [&] { return rehearsed >= 2; };
  const SearchResult result = search(run, facts_of(run), system_of(), options);
  EXPECT_FALSE(result.ended);
  EXPECT_EQ(result.found.size(), 2u);
  EXPECT_GT(result.not_visited, 0);
  EXPECT_GT(result.left_seconds, 0);
  EXPECT_NE(extent_of(result, 10).find("not visited"), std::string::npos);
}

// On CPUs there are no bounds, so every legal layout that fits is rehearsed.
TEST(Search, OnCpusVisitsAll) {
  LoadedConfig run = tiny_run();
  set_key(run.config, "device.kind", "cpu");
  set_key(run.config, "precision.dtype", "fp32");
  const System cpus = load_system("cpu", {}, source_path("configs/systems"));
  const RunFacts facts{.world_size = 2, .dataset_vocab_size = run.config.model.vocab_size};
  const SearchResult result = search(run, facts, cpus,
                                     {.shapes = [](const LayoutShape& shape) { return shape.micro_batch == 1; },
                                      .recomputings = is_none,
                                      .refined = 0});
  EXPECT_TRUE(result.ended);
  EXPECT_GT(result.rehearsed, 8);
  EXPECT_EQ(result.rehearsed, result.layouts - result.illegal);
  LoadedConfig best{.config = result.found.front().open.config, .origins = {}, .path = "best"};
  const Layout layout = resolve(best, facts);
  EXPECT_EQ(predict(best.config, layout, cpus).step.step_seconds, result.found.front().prediction.step.step_seconds);
}

TEST(Search, SaysWhyThereIsNothing) {
  LoadedConfig run = tiny_run();
  const auto message = [&](const System& system) {
    return message_of([&] { search(run, facts_of(run), system, {.shapes = is_plain, .recomputings = is_none}); });
  };
  EXPECT_NE(message(system_of({"memory_gib=1"})).find("legal layouts fits in 1.00 GiB per rank"), std::string::npos);
  run.config.batch.global_batch_size.reset();
  EXPECT_NE(message(system_of()).find("batch.global_batch_size: is auto"), std::string::npos);
}

TEST(Search, AParetoFrontHasLessMemoryForMoreTime) {
  std::vector<Candidate> found(4);
  for (size_t i = 0; i < found.size(); ++i) found[i].prediction.memory_bytes = std::array{5, 7, 3, 3}[i];
  const std::vector<const Candidate*> front = pareto_of(found);
  EXPECT_EQ(front, (std::vector<const Candidate*>{&found[0], &found[2]}));
}

}  // namespace
}  // namespace trivet::test

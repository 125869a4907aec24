// Checks from the trace of a step that the overlap switches do what they say: which collectives overlap with compute,
// how many, and what they wait for. layout_test.cc and sharding_test.cc check that they change no number.
//
// Times are compared only if a wait or program order guarantees the result, never if it is merely likely.
#include "parallel/tensor/overlap.h"

#include <condition_variable>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <mutex>

#include "engine/config/validate.h"
#include "engine/train/rank_state.h"
#include "parallel/comm/world.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int64_t kLayers = 4, kMicroBatches = 4;  // of tiny_config on one data-parallel rank

Config data_parallel_config(int64_t bucket_size) {
  Config config = tiny_config();
  config.model.untie_embeddings_and_output_weights = true;
  config.parallel.bucket_size = bucket_size;
  return config;
}

TEST(Overlap, GradientsAreReducedOnLanesOfTheirOwn) {
  Config config = data_parallel_config(1);  // one bucket per parameter
  const size_t parameters = 12 * kLayers + 5;
  EXPECT_EQ(traced_steps(config, 2)[0].spans("gradients", "all_reduce").size(), 0u);
  config.overlap.overlap_grad_reduce = true;
  for (const TracedStep& step : traced_steps(config, 2)) {
    EXPECT_EQ(step.spans("gradients", "all_reduce").size(), parameters);
    EXPECT_EQ(step.spans("gradients", "reduce_scatter").size(), 0u);
  }
  config.parallel.data_parallel_sharding_strategy = Sharding::optim;
  config.overlap.collectives_in_flight = 3;
  for (const TracedStep& step : traced_steps(config, 2)) {
    size_t sum = 0;
    for (const char* comm_stream : {"gradients 0", "gradients 1", "gradients 2"}) {
      const size_t count = step.spans(comm_stream, "reduce_scatter").size();
      EXPECT_GE(count, parameters / 3) << comm_stream;
      sum += count;
    }
    EXPECT_EQ(sum, parameters);
  }
}

TEST(Overlap, WeightsAreGatheredOnLanesOfTheirOwn) {
  Config config = data_parallel_config(1 << 30);
  config.parallel.data_parallel_sharding_strategy = Sharding::optim;
  TracedStep step = traced_steps(config, 2)[0];
  EXPECT_EQ(step.spans("weights", "all_gather").size(), 0u);
  EXPECT_EQ(step.spans("compute", "all_gather").size(), 1u);
  config.overlap.overlap_param_gather = true;
  step = traced_steps(config, 2)[0];
  EXPECT_GE(step.spans("weights", "all_gather").size(), 1u);
  EXPECT_EQ(step.spans("compute", "all_gather").size(), 0u);
}

// ZeRO-3 gathers every unit for every forward pass and, except for a stage's last unit, again for its backward pass.
TEST(Overlap, StreamedUnitsTravelForEveryMicroBatch) {
  Config config = data_parallel_config(0);
  config.parallel.bucket_size.reset();
  config.parallel.data_parallel_sharding_strategy = Sharding::optim_grads_params;
  config.overlap.overlap_grad_reduce = config.overlap.overlap_param_gather = true;
  const TracedStep step = traced_steps(config, 2)[0];
  const size_t units = kLayers + 2, micro_batches = kMicroBatches / 2;
  EXPECT_EQ(step.spans("gradients", "reduce_scatter").size(), units * micro_batches);
  EXPECT_GE(step.spans("weights", "all_gather").size(), units * micro_batches);
}

Config aligned_config() {
  Config config = data_parallel_config(1 << 30);  // one bucket per chunk
  config.parallel.data_parallel_sharding_strategy = Sharding::optim;
  config.parallel.pipeline_model_parallel_size = 2;
  config.parallel.pipeline_schedule = "interleaved";
  config.parallel.virtual_pipeline_model_parallel_size = 2;
  config.batch.global_batch_size = 16;
  config.overlap.overlap_grad_reduce = config.overlap.overlap_param_gather = true;
  return config;
}

TEST(Overlap, AlignedReductionsWaitForTheFirstStage) {
  Config config = aligned_config();
  config.overlap.align_grad_reduce = true;
  const std::vector<TracedStep> steps = traced_steps(config, 4);
  for (size_t rank = 0; rank < 4; ++rank) {
    const size_t pipeline_rank = rank / 2;
    const std::vector<Span> backward = steps[rank].spans("compute", "B");
    const std::vector<Span> reduced = steps[rank].spans("gradients", "reduce_scatter");
    ASSERT_EQ(reduced.size(), 2u);  // of chunk 1, which finishes first, and of chunk 0
    size_t last = 0;                // backward pass of chunk 1
    for (size_t i = 0; i < backward.size(); ++i)
      if (backward[i].info.label.chunk == 1) last = i;
    ASSERT_LT(last + pipeline_rank, backward.size());
    EXPECT_GE(reduced[0].start_ns, backward[last + pipeline_rank].start_ns) << "rank " << rank;
  }
}

TEST(Overlap, AlignedGathersWaitForTheirTurn) {
  Config config = aligned_config();
  config.overlap.align_param_gather = true;
  for (const TracedStep& step : traced_steps(config, 4)) {
    const int64_t first = step.spans("compute", "F").front().start_ns, last = step.spans("compute", "B").back().end_ns;
    int within = 0;  // within the passes: chunk 1's gather. Chunk 0's follows the last update, at once or later
    for (const Span& span : step.spans("weights", "all_gather"))
      within += span.start_ns >= first && span.end_ns <= last;
    EXPECT_GE(within, 1);
  }
}

// Three chunks of a rank whose forward passes lag the first rank's by `ahead`: how many chunks' weights have been
// requested when each pass begins. Without side streams, that is the order on the compute stream.
TEST(Overlap, ALaterRankGathersSoManyPassesEarlier) {
  const auto gathered_at_each_pass = [](int ahead) {
    std::vector<size_t> gathered;
    run_thread_ranks(2, [&](Communicator& world) {
      const auto device = create_cpu_device();
      const auto ops = create_cpu_ops(1);
      const auto compute = device->create_compute_stream();
      TraceRow row("compute");
      compute->set_trace_row(&row);
      ParamList params;
      for (const int chunk : {0, 1, 2}) {
        params.begin_unit(chunk);
        params.declare({.name = std::to_string(chunk), .global_shape = {256}});
      }
      Arena weights(*device, "weights"), gradients(*device, "gradients");
      FlatBuffer flat(params, {.sharding = Sharding::optim, .rank = world.rank(), .ranks = 2}, weights, gradients);
      const std::vector<int> chunks{0, 0, 1, 1, 2, 2};
      ParamGather gather(flat, *ops, {*device, *compute, world}, {.forward_chunks = chunks, .ahead = ahead});
      gather.updated();
      size_t count = 0;
      std::vector<Span> spans;
      for (const int chunk : chunks) {
        gather.begin_forward_pass();
        gather.before_forward(chunk);
        gather.before_forward(chunk);  // a recomputed unit: no pass of its own
        row.take(spans);
        for (const Span& span : spans) count += span.info.name == std::string("all_gather");
        if (world.rank() == 0) gathered.push_back(count);
      }
    });
    return gathered;
  };
  EXPECT_EQ(gathered_at_each_pass(0), (std::vector<size_t>{2, 2, 3, 3, 3, 3}));
  EXPECT_EQ(gathered_at_each_pass(1), (std::vector<size_t>{2, 3, 3, 3, 3, 3}));
}

// Records a stage's hook calls in order.
struct ToldHooks : UnitHooks {
  void begin_pass(Pass pass) override { tell("begin ", pass == Pass::forward ? 0 : 1); }
  void end_pass(Pass pass) override { tell("end ", pass == Pass::forward ? 0 : 1); }
  void before_forward(int unit) override { tell("F", unit); }
  void before_backward(int unit) override { tell("B", unit); }
  void after_backward(int unit) override { tell("done ", unit); }
  void tell(const char* what, int of) { told += what + std::to_string(of) + " "; }
  std::string take() { return std::exchange(told, ""); }
  std::string told;
};

TEST(UnitHooks, APassEndsBehindItsWeightHalvesAndRecomputeBeginsNone) {
  Config config = tiny_config();
  config.model.num_layers = 2;
  config.model.recompute_granularity = RecomputeGranularity::full;
  config.model.recompute_method = RecomputeMethod::uniform;
  config.model.recompute_num_layers = 1;
  const auto [run, layout] = resolved(config, 1);
  run_thread_ranks(1, [&, &run = run, &layout = layout](Communicator& world) {
    const auto device = create_cpu_device();
    const auto ops = create_cpu_ops(1);
    const auto compute = device->create_compute_stream();
    RankState state(run, layout, {}, *device);
    state.flat.initialize([](const Param&) {}, *ops, *compute);
    state.flat.clear_grads(*ops, *compute);
    for (const Tensor labels : {state.stages[0].tokens(0), state.stages[0].labels(0)})
      ops->run(op::Fill{labels, 0}, *compute);
    WeightGradQueue queue;
    ToldHooks hooks;
    Context ctx{.ops = *ops,
                .compute = *compute,
                .tensor = {world, false},
                .weight_grads = queue,
                .units = hooks,
                .scratch = state.scratch};
    state.stages[0].forward(ctx, 0, {}, state.loss);
    EXPECT_EQ(hooks.take(), "begin 0 F0 F1 F2 F3 end 0 ");
    queue.defer(0);
    state.stages[0].backward(ctx, 0, -1, {}, Residual(state.boundary_buffers[0]));
    EXPECT_EQ(hooks.take(), "begin 1 B3 F2 B2 F1 B1 B0 ");
    queue.run(0);
    EXPECT_EQ(hooks.take(), "done 3 done 2 done 1 done 0 end 1 ");
  });
}

// One layer's calls on the tensor stream in a micro-batch, forward and backward.
struct LaneCalls {
  const char* mode;
  int64_t gathers, reductions, broadcasts, transfers;
};

TEST(Overlap, TensorLaneRunsWhatTheModeSays) {
  const int64_t t = 2, cuts = 4;  // of s/t = 8 rows
  for (const LaneCalls& calls :
       {LaneCalls{"none", 0, 0, 0, 0}, LaneCalls{"bulk", 2, 2, 0, 0},
        // forward, four linears gather or reduce; backward, the two row-parallel ones gather
        LaneCalls{"ring", 2, 2, 0, 6 * (t - 1)}, LaneCalls{"pipeline", 2, 2 + 2 * cuts, 4 * t, 0}}) {
    Config config = tiny_config();
    config.parallel.tensor_model_parallel_size = t;
    config.parallel.sequence_parallel = true;
    set_key(config, "overlap.tp_comm_overlap", calls.mode);
    const TracedStep step = traced_steps(config, t)[0];
    const auto count = [&](const char* name) { return static_cast<int64_t>(step.spans("tensor", name).size()); };
    const int64_t times = kLayers * kMicroBatches;
    EXPECT_EQ(count("all_gather"), times * calls.gathers) << calls.mode;
    EXPECT_EQ(count("reduce_scatter"), times * calls.reductions) << calls.mode;
    EXPECT_EQ(count("broadcast"), times * calls.broadcasts) << calls.mode;
    EXPECT_EQ(count("send"), times * calls.transfers) << calls.mode;
    EXPECT_EQ(count("recv"), times * calls.transfers) << calls.mode;
  }
}

// Each linear has its own key: row-parallel ones use a ring in both passes, column-parallel ones in the forward pass.
TEST(Overlap, EachLinearHasTheModeOfItsKey) {
  for (const auto& [key, rings] :
       {std::pair("qkv", 1), std::pair("proj", 2), std::pair("fc1", 1), std::pair("fc2", 2)}) {
    Config config = tiny_config();
    config.parallel.tensor_model_parallel_size = 2;
    config.parallel.sequence_parallel = true;
    set_key(config, std::string("overlap.tp_comm_overlap_") + key, "ring");
    const TracedStep step = traced_steps(config, 2)[0];
    EXPECT_EQ(step.spans("tensor", "send").size(), static_cast<size_t>(rings * kLayers * kMicroBatches)) << key;
  }
}

// The timelines of parallel/tensor/overlap.h. Rank 0's part is the code under test; the others' is played here: what is
// in flight during a GEMM of rank 0 leaves only when that GEMM has begun. If it waits for what it does not read, it
// never begins.
TEST(Overlap, AGemmWaitsOnlyForTheRowsThatItMultiplies) {
  constexpr int t = 4;
  constexpr int64_t rows = 4, splits = 4;
  for (const TensorOverlap mode : {TensorOverlap::ring, TensorOverlap::pipeline}) {
    std::mutex mutex;
    std::condition_variable begins;
    int64_t begun = 0;  // GEMMs of rank 0
    run_thread_ranks(t, [&](Communicator& world) {
      const auto device = create_cpu_device();
      const auto ops = create_cpu_ops(1);
      const auto compute = device->create_compute_stream();
      Arena arena(*device, "overlap");
      Scratch scratch(arena, 1 << 16);
      TensorCommStream wire({*device, *compute, world});
      const FailureGuard guard(world);
      const Shape slice{rows, 1, 8}, sequence{t * rows, 1, 8};
      const Residual own(arena.allocate(DType::f32, slice));
      ops->run(op::Fill{own, 0}, *compute);
      if (world.rank() == 0) {
        WeightGradQueue queue;
        UnitHooks hooks;
        Context ctx{.ops = *ops,
                    .compute = *compute,
                    .tensor = {world, true},
                    .weight_grads = queue,
                    .units = hooks,
                    .scratch = scratch,
                    .tensor_comm_stream = &wire};
        const auto multiply = [&](auto&&...) {
          const std::lock_guard lock(mutex);
          ++begun;
          begins.notify_all();
        };
        Scratch::Frame frame(scratch);
        gather_and_multiply(ctx, mode, own, frame, multiply);
        multiply_and_reduce(ctx, mode, own, multiply);
      } else {
        const auto begins_gemm = [&](int64_t number) {
          std::unique_lock lock(mutex);
          if (!begins.wait_for(lock, std::chrono::seconds(20), [&] { return begun >= number; }))
            fail(fmt::format("rank 0 began {} GEMMs and waits, expected {}", begun, number));
        };
        const Whole whole(arena.allocate(DType::f32, sequence));
        const Partial partial(arena.allocate(DType::f32, sequence)), received(arena.allocate(DType::f32, sequence));
        for (const Tensor& all : {Tensor(whole), Tensor(partial)}) ops->run(op::Fill{all, 0}, *compute);
        const auto at = [&](int hops) { return (world.rank() + hops + t) % t; };
        const auto of = [&](const auto& all, int owner) { return all.slice(owner * rows, rows); };
        for (int i = 0; i < t; ++i) {
          begins_gemm(i);  // of what came before: first of rank 0's own rows
          if (mode == TensorOverlap::pipeline) wire.broadcast(of(whole, i), i);
          else if (i > 0) wire.exchange(of(whole, at(1 - i)), at(1), of(whole, at(-i)), at(-1));
        }
        if (mode == TensorOverlap::ring) {
          for (int i = 1; i < t; ++i) {
            begins_gemm(t + i + 1);
            wire.exchange(of(partial, at(i)), at(i), of(received, at(-i)), at(-i));
          }
        } else {
          for (int64_t i = 1; i <= splits; ++i) {
            begins_gemm(t + std::min(i * t + 1, splits * t));
            wire.reduce(partial.slice(0, t * rows / splits), own.slice(0, rows / splits));
          }
        }
        wire.join();
      }
      compute->synchronize();
    });
    EXPECT_EQ(begun, t + (mode == TensorOverlap::ring ? t : splits * t));
  }
}

TEST(Overlap, DeferredHeadsRunBehindTheLastBackward) {
  Config config = tiny_config();
  config.parallel.pipeline_model_parallel_size = 2;
  const auto gemms_behind = [&] {
    const TracedStep step = traced_steps(config, 2)[1];
    const int64_t last = step.spans("compute", "B").back().end_ns;
    int count = 0;
    for (const Span& span : step.spans("compute", "matmul")) count += span.start_ns >= last;
    return count;
  };
  EXPECT_EQ(gemms_behind(), 0);
  config.overlap.defer_embedding_wgrad_compute = true;
  EXPECT_EQ(gemms_behind(), kMicroBatches);
  config.overlap.wgrad_deferral_limit = 3;
  EXPECT_EQ(gemms_behind(), 3);
}

TEST(Overlap, WithoutItASenderWaits) {
  Config config = tiny_config();
  config.parallel.pipeline_model_parallel_size = 2;
  config.overlap.overlap_p2p_comm = false;
  const TracedStep step = traced_steps(config, 2)[0];
  const std::vector<Span> forward = step.spans("compute", "F"), sent = step.spans("pp 0 -> pp 1", "send");
  ASSERT_EQ(forward.size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_LE(sent[i].end_ns, forward[i].end_ns) << "forward " << i;
}

TEST(Overlap, ReceivesTakeTheBuffersOfAsManyAsArePostedAhead) {
  const auto buffers = [](bool overlap, int ahead) {
    Config config = cut(tiny_config(), {.p = 2});
    config.overlap.overlap_p2p_comm = overlap;
    config.overlap.p2p_receive_ahead = ahead;
    const auto [run, layout] = resolved(config, 2);
    int64_t bytes = 0;
    for (const MemoryItem& item : plan_memory(run, layout, {{Axis::pp, 1}}).items)
      if (item.name == "activations") bytes = item.bytes;
    return bytes / (16 * 2 * 32 * 4);  // s b h fp32
  };
  EXPECT_EQ(buffers(true, 4) - buffers(true, 2), 2);
  EXPECT_EQ(buffers(true, 2) - buffers(false, 2), 1);
}

}  // namespace
}  // namespace trivet::test

// Rank: one rank of a model, put together in one place and one order: back end, groups, streams, memory, what runs
// beside compute, chunks, executor. Training and inference have one each.
//
// Building one makes what its back end gives it and nothing more: no weights are drawn or read, no thread is started,
// no file is opened, and no rank is asked but by the communicator when a group is split off. On a planning device, with
// a planning communicator, a rank of any layout is built by one thread alone. Members stand in the order in which they
// are built; what queued copies read and write comes before the streams, so that it outlives them.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/config/validate.h"
#include "engine/model/gpt_chunk.h"
#include "engine/model/step_input.h"
#include "engine/train/backend.h"
#include "engine/train/rank_state.h"
#include "kernels/base/trace.h"
#include "parallel/comm/world.h"
#include "parallel/data/data_parallel.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"

namespace trivet {

struct RankOptions {
  int64_t positions = 0;     // as RankState has it; 0: the rank trains
  bool poison = false;       // for tests: NaN into whatever must not be read
  Trace* trace = nullptr;    // of its streams; null: nothing is recorded
  Memory* memory = nullptr;  // of weights and gradients; null: the device's, registered with NCCL where asked for
};

class Rank {
 public:
  // Every rank of the layout makes the same call. `world`: the ranks, in host memory. What is passed by reference
  // outlives the rank, `config` excepted.
  Rank(const Config& config, const Layout& layout, Backend backend, Communicator& world, const RankOptions& options);

  // The weights that training begins with, with `threads` host threads, and the optimizer's. REQUIRES: it trains.
  void initialize_weights(uint64_t seed, int threads);
  // The step's gradients are those of the global batch, in each rank's own part. REQUIRES: it trains.
  void finish_gradients();
  // What the model expects after `context`, 1 to as many tokens as the rank has positions: [vocab_size], the same on
  // every rank. Collective over the model's ranks.
  std::vector<float> next_token_logits(std::span<const int32_t> context);

  Backend backend;
  std::unique_ptr<GraphOps> graphs;  // null: what is queued is not repeated as a whole
  Device& device;
  Ops& ops;
  std::unique_ptr<Communicator> ranks;  // of the world, for the device's memory; its groups have the emulated links
  Mesh mesh;
  const Schedule& schedule;
  StepInput input;
  HostBuffer host_numbers;  // [2, RankState::kStepNumbers] fp32: of the last two steps
  std::unique_ptr<Stream> compute;
  TraceRow* host_row;  // of what the host does; null: nothing is recorded
  RankState state;
  std::unique_ptr<TensorCommStream> tensor_comm_stream;  // null: no tensor-parallel communication is overlapped
  std::unique_ptr<DataParallel> data_parallel;           // null: the rank does not train
  std::unique_ptr<Communicator> embedding_group;  // first and last stage, where they share the embedding; else null
  StepBatches batches;                            // of the step under way
  std::deque<WeightGradQueue> weight_grads;       // [chunk]
  std::deque<GptChunk> chunks;                    // [chunk]
  Executor executor;

 private:
  Context context_of_chunk();
  std::vector<float> read_logits(int64_t position);

  UnitHooks no_hooks_;
  FailureGuard guard_;  // last: it is the first to end
};

}  // namespace trivet

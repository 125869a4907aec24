// Rank: one rank of a model, for training or inference, built in this order: backend, groups, streams, memory,
// communication streams, chunks, executor.
//
// The constructor neither draws nor reads weights, starts no thread, opens no file, and communicates only to split
// groups. On a planning device, with a planning communicator, one thread can build a rank of any layout. Members are in
// the order of construction; buffers of queued copies come before the streams, and so outlive them.
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
#include "parallel/context/attention.h"
#include "parallel/data/data_parallel.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"

namespace trivet {

struct RankOptions {
  int64_t positions = 0;     // as in RankState
  bool poison = false;       // for tests: fills memory that must not be read with NaN
  Trace* trace = nullptr;    // for its streams; null: nothing is recorded
  Memory* memory = nullptr;  // for weights and gradients; null: the device's, registered with NCCL if configured
};

class Rank {
 public:
  // Collective. `world`: the ranks, in host memory. All references except `config` must outlive the rank.
  Rank(const Config& config, const Layout& layout, Backend backend, Communicator& world, const RankOptions& options);

  // Initialises weights, with `threads` host threads, and optimizer state. Collective. REQUIRES: the rank trains.
  void initialize_weights(uint64_t seed, int threads);
  // Sets the number of micro-batches per step from now on: the layout's, or that of a smaller batch.
  void use_micro_batches(int64_t m);
  // Completes the reduction of each rank's own part of the step's gradients. REQUIRES: the rank trains.
  void finish_gradients();
  // True if a reduction adds other ranks' gradients to this rank's.
  bool sums_gradients() const;
  // The logits that follow `context`, which may fill the rank's positions: [vocab_size], the same on every rank. known:
  // the length of a prefix, shorter than `context`, shared with the last call's context, if nothing has run since. If
  // each layer's activations are saved, the prefix's keys and values still exist, and only the other tokens are
  // computed. On a CPU the logits are bitwise the same for any `known`. Collective over the model's ranks.
  std::vector<float> next_token_logits(std::span<const int32_t> context, int64_t known = 0);

  Backend backend;
  std::unique_ptr<GraphOps> graphs;  // null: no CUDA graphs
  Device& device;
  Ops& ops;
  std::unique_ptr<Communicator> ranks;  // the world, for the device's memory, over emulated links
  Mesh mesh;
  const Layout& layout;
  const Schedule& schedule;  // for the largest batch
  StepInput input;
  HostBuffer host_numbers;  // [2, RankState::kStepNumbers] fp32: of the last two steps
  std::unique_ptr<Stream> compute;
  TraceRow* host_row;  // the host's spans; null: nothing is recorded
  RankState state;
  std::unique_ptr<TensorCommStream> tensor_comm_stream;  // null: no tensor-parallel communication is overlapped
  std::unique_ptr<ContextGroup> context_group;           // null: the rank holds whole sequences
  std::unique_ptr<DataParallel> data_parallel;           // null: the rank does not train
  std::unique_ptr<Communicator> embedding_group;         // first and last stage, if they share the embedding; else null
  StepBatches batches;                                   // of the current step
  std::deque<WeightGradQueue> weight_grads;              // [chunk]
  std::deque<GptChunk> chunks;                           // [chunk]
  Executor executor;

 private:
  Context context_of_chunk();
  std::vector<float> read_logits();

  UnitHooks no_hooks_;
  FailureGuard guard_;  // last, so that it is destroyed first
};

}  // namespace trivet

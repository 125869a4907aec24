// Inference: forward passes only, with the weights of a checkpoint of any layout in the run's dtype, the keys and
// values of every layer, the other activations of one block at a time, and no gradients or optimizer.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>

#include "engine/checkpoint/open_checkpoint.h"
#include "engine/config/load.h"
#include "engine/train/rank.h"
#include "parallel/comm/host_world.h"

namespace trivet {

// Runs f on all ranks, and returns the error to throw on each: its own, or if another rank had one a DataError with
// that text, or nothing. A Rank has to end before it is thrown.
template <class F>
std::exception_ptr failure_of_all(HostWorld host, const F& f) {
  try {
    f();
  } catch (const Error& error) {
    host.first_problem(error.what());
    return std::current_exception();
  }
  const std::string problem = host.first_problem("");
  return problem.empty() ? nullptr : std::make_exception_ptr(DataError(problem));
}

// The config of a run that samples from `checkpoint`: its model and precision, on `tensor` x `pipeline` ranks, one
// sequence at a time. `sets`: as of load_config(). Throws ConfigError, DataError.
LoadedConfig inference_config(const OpenCheckpoint& checkpoint, int tensor, int pipeline,
                              std::span<const std::string> sets);

// A rank with its weights. Collective over `world`, which like `layout` outlives it. `config`: inference_config(),
// resolved. positions: of the longest context, at most the model's seq_length; the memory of activations grows with it.
std::unique_ptr<Rank> open_model(const Config& config, const Layout& layout, Communicator& world,
                                 const OpenCheckpoint& checkpoint, int64_t positions);

// Compute threads of a CPU rank that generates one token at a time: device.threads_per_rank, or by the size of the MLP's
// matrices, as the threads of a small model would wait for each other longer than they work. Logits have the same bits
// with any number.
int threads_for_tokens(const Config& config, Communicator& world);

// Reads the weights of a rank that does not train, in its dtype.
void read_weights(Rank& rank, const OpenCheckpoint& checkpoint, int64_t seq_length);

// The file of the tokenizer of the run that saved the checkpoint, for load_tokenizer(), or "bytes"; "": the run's files
// do not lead to it.
std::string tokenizer_of(const OpenCheckpoint& checkpoint);

}  // namespace trivet

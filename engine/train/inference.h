// Inference: forward passes only. A rank holds weights in the run's dtype, from a checkpoint of any layout, the keys
// and values of every layer, and one block's other activations at a time; no gradients or optimizer.
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

// Runs f on all ranks and returns the error that each must throw: its own, a DataError with the text of another
// rank's error, or null. A Rank must be destroyed before the error is thrown.
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
// sequence at a time. `sets`: as in load_config(). Throws ConfigError, DataError.
LoadedConfig inference_config(const OpenCheckpoint& checkpoint, int tensor, int pipeline,
                              std::span<const std::string> sets);

// A rank with its weights. Collective over `world`, which, like `layout`, must outlive the rank. `config`: resolved
// inference_config(). positions: the longest context, up to the model's seq_length; activation memory grows with it.
std::unique_ptr<Rank> open_model(const Config& config, const Layout& layout, Communicator& world,
                                 const OpenCheckpoint& checkpoint, int64_t positions);

// Compute threads of a CPU rank that generates one token at a time: device.threads_per_rank, or a number chosen by the
// size of the MLP's matrices, because the threads of a small model would spend more time waiting than working. Logits
// are bitwise the same with any number of threads.
int threads_for_tokens(const Config& config, Communicator& world);

// Reads the weights of a rank that does not train, in the rank's dtype.
void read_weights(Rank& rank, const OpenCheckpoint& checkpoint, int64_t seq_length);

// The tokenizer file, for load_tokenizer(), of the run that saved the checkpoint, or "bytes"; "" if none is found
// through the checkpoint's configuration.
std::string tokenizer_of(const OpenCheckpoint& checkpoint);

}  // namespace trivet

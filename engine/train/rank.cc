#include "engine/train/rank.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/model/init.h"

namespace trivet {
namespace {

std::unique_ptr<Stream> make_compute_stream(Device& device, Trace* trace) {
  auto stream = device.create_compute_stream();
  if (trace) stream->set_trace_row(trace->add_row("compute"));
  return stream;
}

std::vector<int> forward_chunks_of(const Schedule& schedule, int rank) {
  std::vector<int> chunks;
  for (const Op& op : schedule.programs[static_cast<size_t>(rank)])
    if (op.kind == OpKind::forward) chunks.push_back(op.chunk);
  return chunks;
}

std::unique_ptr<DataParallel> make_data_parallel(const Config& config, const Layout& layout, Rank& rank,
                                                 const RankOptions& options) {
  const OverlapConfig& overlap = config.overlap;
  const int pp = rank.mesh.at[Axis::pp];
  const GradSync::Options reduce{.comm_streams = overlap.overlap_grad_reduce ? overlap.collectives_in_flight : 0,
                                 .micro_batches = static_cast<int>(layout.micro_batches),
                                 .op = overlap.average_in_collective ? Reduce::average : Reduce::sum,
                                 .delay = overlap.align_grad_reduce ? std::optional(pp) : std::nullopt,
                                 .registered = config.comm.nccl_ub ? &rank.state.gradient_arena : nullptr,
                                 .poison = options.poison,
                                 .non_finite = config.train.check_for_nan_in_loss_and_grad && rank.sums_gradients()
                                                   ? rank.state.non_finite_of(RankState::kLocalSearch)
                                                   : Tensor{}};
  ParamGather::Options gather{.comm_streams = overlap.overlap_param_gather ? overlap.collectives_in_flight : 0,
                              .poison = options.poison,
                              .ahead = pp,
                              .registered = config.comm.nccl_ub ? &rank.state.weight_arena : nullptr,
                              .tensor = rank.mesh.tensor->size() > 1 ? rank.mesh.tensor.get() : nullptr};
  if (overlap.align_param_gather) gather.forward_chunks = forward_chunks_of(layout.schedule, pp);
  return std::make_unique<DataParallel>(rank.state.flat, rank.ops,
                                        CommStreamSite{rank.device, *rank.compute, *rank.mesh.data, options.trace},
                                        reduce, gather);
}

// The ranks of the first and last stage if they share tied embeddings; null on other ranks, or if one rank has both.
std::unique_ptr<Communicator> make_embedding_group(const Mesh& mesh, const GptShape& shape, const Schedule& schedule) {
  const int first = schedule.rank_of(0), last = schedule.rank_of(schedule.stages() - 1);
  if (!shape.tied_embeddings || first == last) return nullptr;
  return mesh.pipeline->split({first, last}, "embedding", comm_of("pipeline"));
}

}  // namespace

Rank::Rank(const Config& config, const Layout& layout, Backend given, Communicator& world, const RankOptions& options)
    : backend(std::move(given)),
      graphs(make_graphs(config, backend)),
      device(*backend.device),
      ops(graphs ? *graphs : *backend.ops),
      ranks(with_links(backend.exchange ? *backend.exchange : world, links_of(config.comm), config.comm.shared_port)),
      mesh(make_mesh(*ranks, layout.mesh)),
      layout(layout),
      schedule(layout.schedule),
      input(device, trains(config, options.positions) ? layout.micro_batches : 1,
            config.batch.micro_batch_size *
                (options.positions ? options.positions : config.model.seq_length / layout.mesh[Axis::cp])),
      host_numbers(device, 2 * RankState::kStepNumbers * int64_t{sizeof(float)}),
      compute(make_compute_stream(device, options.trace)),
      host_row(options.trace ? options.trace->add_row("host") : nullptr),
      state(config, layout, mesh.at, device, options.positions,
            options.memory        ? options.memory
            : config.comm.nccl_ub ? mesh.data->buffer_memory()
                                  : nullptr),
      tensor_comm_stream(state.shape.overlaps_tensor_comm() ? std::make_unique<TensorCommStream>(CommStreamSite{
                                                                  device, *compute, *mesh.tensor, options.trace})
                                                            : nullptr),
      context_group(state.shape.c > 1 ? std::make_unique<ContextGroup>(
                                            CommStreamSite{device, *compute, *mesh.context, options.trace},
                                            state.shape.cut(), state.shape.cp_comm_type, config.overlap.overlap_cp_comm)
                                      : nullptr),
      data_parallel(state.optimizer ? make_data_parallel(config, layout, *this, options) : nullptr),
      embedding_group(state.optimizer ? make_embedding_group(mesh, state.shape, schedule) : nullptr),
      executor(schedule, *mesh.pipeline, device, *compute, options.trace, state.boundary_buffers,
               pipeline_options_of(config, layout, options.poison)),
      guard_(*ranks) {
  if (options.trace) options.trace->set_room(state.most_spans);
  std::vector<Stage*> stages;
  for (GptStage& stage : state.stages)
    stages.push_back(&chunks.emplace_back(stage, context_of_chunk(), device, batches, state.loss));
  executor.set_stages(std::move(stages));
}

Context Rank::context_of_chunk() {
  return {.ops = ops,
          .compute = *compute,
          .tensor = {*mesh.tensor, state.shape.sequence_parallel},
          .weight_grads = weight_grads.emplace_back(),
          .units = data_parallel ? *data_parallel : no_hooks_,
          .scratch = state.scratch,
          .tensor_comm_stream = tensor_comm_stream.get(),
          .context = context_group.get(),
          .sequence = context_group ? mesh.context.get() : nullptr};
}

void Rank::initialize_weights(uint64_t seed, int threads) {
  state.flat.initialize([&](const Param& param) { initialize_weight(param, seed, threads, device, *compute); }, ops,
                        *compute);
  state.optimizer->reset(ops, *compute);
  ops.run(op::Clear{{state.non_finite}}, *compute);
  if (!state.flat.options.gathers_fp8) return;
  // The full weights are gone: quantise and gather them, first without the other ranks (Trainer::prepare_device).
  for (const bool prepares : {true, false}) {
    ranks->only_prepare(prepares);
    data_parallel->weights.updated();
    data_parallel->weights.finish();
    compute->synchronize();
    ranks->barrier();
  }
}

void Rank::use_micro_batches(int64_t m) {
  const Schedule& next = layout.schedule_of(m);
  if (&executor.schedule() == &next) return;
  executor.use(next);
  data_parallel->weights.set_forward_chunks(forward_chunks_of(next, mesh.at[Axis::pp]));
}

void Rank::finish_gradients() {
  data_parallel->grads.finish({{{Axis::tp}, mesh.tensor.get()}, {{Axis::pp}, embedding_group.get()}});
}

bool Rank::sums_gradients() const {
  return mesh.data->size() > 1 || std::ranges::any_of(state.flat.partial_grads, [&](const auto& partial) {
           return mesh.shape.size(partial.first) > 1;
         });
}

std::vector<float> Rank::next_token_logits(std::span<const int32_t> context, int64_t known) {
  const GptShape& shape = state.shape;
  const auto size = static_cast<int64_t>(context.size());
  check(size > 0 && size <= shape.whole_seq() && known >= 0 && known < size,
        fmt::format("a context has 1 to {} tokens, of which some are new, not {} and {}", shape.whole_seq(), size,
                    size - known));
  // Sequence parallelism splits whole groups of t positions, so a few known positions are recomputed.
  const int64_t unit = shape.sequence_parallel ? shape.t : 1;
  const int64_t first = state.keeps_keys ? known / unit * unit : 0, count = (size - first + unit - 1) / unit * unit;
  const std::span<HostBatch> taken = input.take();
  taken.front().fill_with(context.subspan(static_cast<size_t>(first)), static_cast<size_t>(shape.micro_batch));
  batches = {.batches = taken, .training = false, .positions = PositionRange{first, count, size - 1 - first}};
  // No graphs: no two passes over a text make the same calls.
  executor.run_forward_only(1, {shape.with_positions(count).local_seq()});
  input.queued(*compute);
  return read_logits();
}

// The logits of the last pass, for batch entry 0 of micro-batch 0, from the last stage.
std::vector<float> Rank::read_logits() {
  const GptShape& shape = state.shape;
  const int last_stage = schedule.stages() - 1, last_rank = schedule.rank_of(last_stage);
  const int64_t columns = shape.padded_vocab / shape.t;
  Scratch::Frame frame(state.scratch);
  const Tensor whole = frame.tensor(DType::f32, {shape.t, columns});
  if (mesh.at[Axis::pp] == last_rank) {
    const GptStage& stage = state.stages[static_cast<size_t>(schedule.chunk_of(last_stage))];
    const Tensor row = stage.logits(executor.slot_of(last_stage, 0)).slice(0, 1);
    const Tensor mine = whole.slice(mesh.at[Axis::tp], 1);
    ops.run(op::Convert{row, mine}, *compute);
    if (shape.t > 1) mesh.tensor->all_gather(mine, whole, *compute);
  }
  if (schedule.p > 1) mesh.pipeline->broadcast(whole, last_rank, *compute);
  std::vector<float> logits(static_cast<size_t>(whole.numel()));
  device.copy_to_host(whole, logits.data(), *compute);
  compute->synchronize();
  logits.resize(static_cast<size_t>(shape.vocab));  // the rest is padding
  return logits;
}

}  // namespace trivet

#include "parallel/pipeline/executor.h"

#include <algorithm>
#include <set>

#include "parallel/pipeline/check.h"

namespace trivet {
namespace {

bool needs_gradient(const Op& op) { return op.kind == OpKind::backward || op.kind == OpKind::backward_input; }

// Peak number of gradient buffers in use: the current op's, those passed between stages of this rank (v-shaped maps),
// and one more if gradients are sent, so that the next op does not wait for the last transfer.
int gradient_buffers(const Schedule& schedule, int rank) {
  int waiting = 0, most = 1, sends = 0;
  for (const Op& op : schedule.programs[static_cast<size_t>(rank)]) {
    if (!needs_gradient(op)) continue;
    const int stage = schedule.stage_of(rank, op.chunk);
    if (stage + 1 < schedule.stages() && !schedule.receives(rank, op)) --waiting;
    most = std::max(most, waiting + 1);
    if (schedule.sends(rank, op)) sends = 1;
    else if (stage > 0) ++waiting;
  }
  return most + sends;
}

}  // namespace

int Executor::boundary_buffers(const Schedule& schedule, int rank, const PipelineOptions& options) {
  std::set<Channel> received;
  for (const Op& op : schedule.programs[static_cast<size_t>(rank)])
    if (const auto channel = schedule.receives(rank, op)) received.insert(*channel);
  return gradient_buffers(schedule, rank) + static_cast<int>(received.size()) * options.receives_posted;
}

Executor::Executor(const Schedule& schedule, Communicator& pipeline, Device& device, Stream& compute, Trace* trace,
                   const std::vector<Tensor>& buffers, PipelineOptions options)
    : schedule_(&schedule),
      rank_(pipeline.rank()),
      options_(options),
      pipeline_(pipeline),
      device_(device),
      compute_(compute),
      plan_(plan_slots(program(), schedule.v, SlotPool::per_chunk)) {
  size_t next_buffer = 0;
  const auto take_buffer = [&] { return buffers.at(next_buffer++); };
  for (const auto& [channel, traffic] : traffic_of(*schedule_)) {  // in the same order on every rank
    auto pair = pipeline.split({channel.from, channel.to}, to_string(channel), comm_of("pipeline"));
    if (!pair) continue;
    TraceRow* row = trace ? trace->add_row(to_string(channel)) : nullptr;
    if (rank_ == channel.from) {
      sends_[channel] = std::make_unique<SendEnd>(std::move(pair), device_, row);
    } else {
      std::deque<BoundaryBuffer> ahead;
      for (int i = 0; i < options_.receives_posted; ++i) ahead.push_back({take_buffer()});
      receives_[channel] = std::make_unique<ReceiveEnd>(std::move(pair), device_, row, std::move(ahead));
    }
  }
  while (next_buffer < buffers.size()) gradients_.push_back(take_buffer());
}

void Executor::set_stages(std::vector<Stage*> stages) {
  check(static_cast<int>(stages.size()) == schedule_->v, "one stage for each chunk of the schedule");
  stages_ = std::move(stages);
}

void Executor::use(const Schedule& schedule) {
  check(schedule.p == schedule_->p && schedule.v == schedule_->v && schedule.map == schedule_->map,
        "the schedules of an executor have the same stages");
  schedule_ = &schedule;
  plan_ = plan_slots(program(), schedule.v, SlotPool::per_chunk);
}

void Executor::run_ops(int microbatches, const BoundaryRows& rows, bool forward_only) try {
  rows_ = rows;
  std::vector<size_t> ops;  // of the program
  for (size_t i = 0; i < program().size(); ++i)
    if (program()[i].microbatch < microbatches && (!forward_only || program()[i].kind == OpKind::forward))
      ops.push_back(i);
  // Receives are posted ahead, in the order of the program, so that a transfer begins as soon as its sender is ready.
  const auto label_of = [](const Op& op) { return SpanLabel{.microbatch = op.microbatch, .chunk = op.chunk}; };
  for (auto& [channel, receive] : receives_) {
    std::deque<SpanLabel> messages;
    for (const size_t i : ops)
      if (schedule_->receives(rank_, program()[i]) == channel) messages.push_back(label_of(program()[i]));
    receive->start(std::move(messages), rows);
  }
  // Run the program.
  size_t done = 0;
  for (const size_t i : ops) {
    const Op& op = program()[i];
    const ScopedLabel label(compute_, label_of(op));
    ScopedPhase phase(compute_, {letter_of(op.kind), Category::phase});
    Stage& stage = *stages_[static_cast<size_t>(op.chunk)];
    if (op.kind == OpKind::forward) forward(op, plan_.slot[i]);
    else if (op.kind == OpKind::backward_weight) stage.backward_weight(plan_.stash[i]);
    else backward(op, plan_.slot[i], plan_.stash[i]);
    const bool frees_slot = op.kind == OpKind::backward || op.kind == OpKind::backward_weight;
    // The output must have been received by now, because its gradient has arrived.
    if (options_.poison_slots && frees_slot && !forward_only) stage.poison(plan_.slot[i]);
    if (on_progress_ && !forward_only) on_progress_(++done, ops.size());
  }
} catch (const std::exception& error) {
  // Transfers in flight on the channels' streams end only with their peers: abort the world first, or the destructors
  // would wait for them.
  pipeline_.abort(error.what());
  throw;
}

void Executor::forward(const Op& op, int slot) {
  Stage& stage = *stages_[static_cast<size_t>(op.chunk)];
  const int number = schedule_->stage_of(rank_, op.chunk);
  // 1. The input. The first stage of the model has none: it embeds tokens.
  if (const auto channel = schedule_->receives(rank_, op)) {
    const Tensor old = stage.input(slot);
    compute_.record(free_event(old));
    ReceiveEnd& end = *receives_.at(*channel);
    stage.set_input(slot, end.take(compute_));
    end.give({old, &free_event(old)});
  } else if (number > 0) {  // the previous stage is on this rank: it keeps its output until its backward
    const Stage& before = *stages_[static_cast<size_t>(schedule_->chunk_of(number - 1))];
    stage.copy_input(slot, rows_.of(before.output(forward_slot_.at({number - 1, op.microbatch}))));
  }
  forward_slot_[{number, op.microbatch}] = slot;

  // 2. The slot's earlier output must have been sent first.
  compute_.wait(free_event(stage.output(slot)));
  stage.forward(op.microbatch, slot);
  // 3.
  if (const auto channel = schedule_->sends(rank_, op)) send(*channel, stage.output(slot));
}

void Executor::backward(const Op& op, int slot, int stash) {
  Stage& stage = *stages_[static_cast<size_t>(op.chunk)];
  const Tensor gradient = take_gradient(op);  // 1.
  // 2. In place: `gradient` becomes the gradient of the stage's input.
  stage.backward(op.microbatch, slot, stash, gradient);
  pass_on_gradient(op, gradient);  // 3.
}

Tensor Executor::take_gradient(const Op& op) {
  const int number = schedule_->stage_of(rank_, op.chunk);
  const auto channel = schedule_->receives(rank_, op);
  if (!channel && number + 1 < schedule_->stages()) {
    auto gradient = local_gradients_.extract({number, op.microbatch});
    check(!gradient.empty(), "a backward runs before the gradient of its output is there");
    return gradient.mapped();
  }
  check(!gradients_.empty(), "no gradient buffer is free");
  const Tensor free = gradients_.front();
  gradients_.pop_front();
  if (!channel) {  // the model's last stage begins the backward pass
    compute_.wait(free_event(free));
    return free;
  }
  ReceiveEnd& end = *receives_.at(*channel);
  const Tensor gradient = end.take(compute_);
  end.give({free, &free_event(free)});
  return gradient;
}

void Executor::pass_on_gradient(const Op& op, Tensor gradient) {
  const int number = schedule_->stage_of(rank_, op.chunk);
  const auto channel = schedule_->sends(rank_, op);
  if (!channel && number > 0) {
    local_gradients_[{number - 1, op.microbatch}] = gradient;
    return;
  }
  if (channel) send(*channel, gradient);
  else compute_.record(free_event(gradient));
  gradients_.push_back(gradient);
}

void Executor::send(const Channel& channel, Tensor data) {
  Event& sent = free_event(data);
  sends_.at(channel)->send(rows_.of(data), compute_, sent);
  if (!options_.overlap_p2p_comm) compute_.wait(sent);
}

Event& Executor::free_event(Tensor buffer) {
  std::unique_ptr<Event>& event = free_events_[buffer.data];
  if (!event) event = device_.create_event();
  return *event;
}

}  // namespace trivet

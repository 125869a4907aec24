#include "tools/plan/tape.h"

#include <algorithm>
#include <boost/functional/hash.hpp>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "engine/data/synthetic_batches.h"
#include "engine/train/trainer.h"
#include "parallel/comm/planning_comm.h"

namespace trivet {
namespace {

// Numbers distinct values in the order in which they first appear.
template <class T>
class Numbered {
 public:
  explicit Numbered(std::vector<T>& values) : values_(values) {}
  uint32_t operator()(const T& value) {
    if (!values_.empty() && values_[last_] == value) return last_;
    const auto [at, is_new] = numbers_.try_emplace(value, static_cast<uint32_t>(values_.size()));
    if (is_new) values_.push_back(value);
    return last_ = at->second;
  }

 private:
  struct Hash {
    size_t operator()(const TapeWork& w) const {
      return boost::hash_value(std::tuple(w.name, w.recomputed, w.m, w.n, w.k, w.flops, w.bytes));
    }
    size_t operator()(const TapeCall& c) const {
      return boost::hash_value(std::tuple(c.kind, c.sends, c.group, c.ahead, c.bytes));
    }
    size_t operator()(const SpanLabel& l) const {
      return boost::hash_value(std::tuple(l.microbatch, l.chunk, l.first_unit, l.last_unit, l.bucket, l.hand_over));
    }
  };
  std::vector<T>& values_;
  std::unordered_map<T, uint32_t, Hash> numbers_;
  uint32_t last_ = 0;  // the last number returned
};

// Writes the tape for all parts of the back end.
class Recorder {
 public:
  Recorder(Tape& tape, TapeGroups& groups, const TapeOptions& options) : tape(tape), groups(groups), options(options) {}

  void add(TapeRecord::Kind kind, uint8_t stream, uint32_t what, const SpanLabel& label = {}) {
    std::vector<TapeRecord>& to = captured ? *captured : tape.records;
    to.push_back(
        {.kind = kind, .stream = stream, .in_graph = captured != nullptr, .what = what, .label = labels_(label)});
  }
  uint32_t work(TapeWork work) {
    work.recomputed = recomputing > 0;
    return works_(work);
  }
  uint32_t call(const TapeCall& call) { return calls_(call); }
  int group(const CommGroup& group) {
    int& made = made_[{group.name, group.world_ranks}];
    tape.groups.push_back(groups.add(
        {.name = group.name, .world_ranks = group.world_ranks, .category = group.category, .occurrence = made++}));
    return static_cast<int>(tape.groups.size()) - 1;
  }

  Tape& tape;
  TapeGroups& groups;
  const TapeOptions options;
  std::vector<TapeRecord>* captured = nullptr;  // records of the graph being captured
  int recomputing = 0;                          // number of open recomputation phases

 private:
  Numbered<TapeWork> works_{tape.works};
  Numbered<TapeCall> calls_{tape.calls};
  Numbered<SpanLabel> labels_{tape.labels};
  std::map<std::pair<std::string, std::vector<int>>, int> made_;
};

class TapeEvent : public Event {
 public:
  explicit TapeEvent(Recorder& recorder) : recorder_(recorder) {}
  void synchronize() override {
    if (recorded) recorder_.add(TapeRecord::host_wait, 0, *recorded);
  }
  bool done() override { return true; }
  std::optional<uint32_t> recorded;  // its last recording

 private:
  Recorder& recorder_;
};

class TapeStream : public Stream {
 public:
  TapeStream(Recorder& recorder, uint8_t number) : recorder_(recorder), number_(number) {
    recorder.tape.streams.emplace_back();
  }
  void record(Event& event) override {
    flush();
    static_cast<TapeEvent&>(event).recorded = recorder_.tape.events;
    add(TapeRecord::record, recorder_.tape.events++);
  }
  void wait(Event& event) override {
    flush();
    if (const auto& recorded = static_cast<TapeEvent&>(event).recorded) add(TapeRecord::wait, *recorded);
  }
  void synchronize() override {
    TapeEvent now(recorder_);
    record(now);
    now.synchronize();
  }
  void begin_phase(const SpanInfo& info) override {
    flush();
    phases_.push_back(info.name == std::string_view("recompute"));
    recorder_.recomputing += phases_.back();
    add(TapeRecord::begin_phase, recorder_.work({.name = info.name, .category = info.category}));
  }
  void end_phase() override {
    flush();
    recorder_.recomputing -= phases_.back();
    phases_.pop_back();
    add(TapeRecord::end_phase, 0);
  }
  void queue(const TapeWork& work) { add(TapeRecord::work, recorder_.work(work)); }
  void queue(const TapeCall& call, bool with_next) {
    flush();
    add(TapeRecord::call, recorder_.call(call));
    recorder_.tape.records.back().with_next = with_next;
  }
  void launch(const std::vector<TapeRecord>& graph) {
    add(TapeRecord::graph, static_cast<uint32_t>(graph.size()));
    for (TapeRecord record : graph) {
      record.label = recorder_.tape.records.back().label;
      recorder_.tape.records.push_back(record);
    }
  }
  void mark() {
    flush();
    add(TapeRecord::mark, 0);
  }

 protected:
  void enqueue(std::function<void()>) override { fail("a host function is not recorded"); }

 private:
  void add(TapeRecord::Kind kind, uint32_t what) {
    if (trace_row() && recorder_.tape.streams[number_].empty()) recorder_.tape.streams[number_] = trace_row()->name();
    recorder_.add(kind, number_, what, label());
  }

  Recorder& recorder_;
  const uint8_t number_;
  std::vector<int> phases_;  // open phases: 1 if it recomputes activations
};

// All work is queued on streams of a TapeDevice.
TapeStream& tape_stream(Stream& stream) { return static_cast<TapeStream&>(stream); }

class TapeGraph : public Graph {
 public:
  explicit TapeGraph(std::vector<TapeRecord> records) : records_(std::move(records)) {}
  void launch(Stream& stream) override { tape_stream(stream).launch(records_); }

 private:
  const std::vector<TapeRecord> records_;
};

class TapeDevice : public Device {
 public:
  explicit TapeDevice(Recorder& recorder) : recorder_(recorder) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }  // not host memory: nothing may touch it
  std::string name() const override { return "plan"; }
  int64_t memory_bytes() const override { return 0; }
  void* allocate(int64_t bytes) override { return planned_->allocate(bytes); }
  void deallocate(void*, int64_t) noexcept override {}
  std::unique_ptr<Stream> create_compute_stream() override { return create_stream(); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority) override { return create_stream(); }
  std::unique_ptr<Event> create_event() override { return std::make_unique<TapeEvent>(recorder_); }
  void copy_to_device(const void*, Tensor to, Stream& stream) override { copy("copy_to_device", to, stream); }
  void copy_to_host(Tensor from, void* host, Stream& stream) override {
    copy("copy_to_host", from, stream);
    if (from.dtype == DType::f32) std::fill_n(static_cast<float*>(host), from.numel(), recorder_.options.number);
    else std::memset(host, 0, static_cast<size_t>(from.bytes()));
  }
  bool captures() const override { return true; }
  std::unique_ptr<Graph> capture(Stream&, const std::function<void()>& work) override {
    std::vector<TapeRecord> records;
    recorder_.captured = &records;
    work();
    recorder_.captured = nullptr;
    return std::make_unique<TapeGraph>(std::move(records));
  }

 private:
  std::unique_ptr<Stream> create_stream() {
    check(streams_ < UINT8_MAX, "a tape has at most 255 streams");
    return std::make_unique<TapeStream>(recorder_, streams_++);
  }
  static void copy(const char* name, const Tensor& what, Stream& stream) {
    stream.flush();
    tape_stream(stream).queue(
        {.name = name, .category = Category::host, .kind = TapeWork::copy, .bytes = what.bytes()});
  }

  Recorder& recorder_;
  const std::unique_ptr<Device> planned_ = create_planning_device();
  uint8_t streams_ = 0;
};

// The number of query-key pairs for which attention computes a score.
int64_t pairs_of(int64_t queries, int64_t keys, bool causal) {
  return queries * keys - (causal ? queries * (queries - 1) / 2 : 0);
}

// Corrects an op's work where the sizes of its arguments do not determine it.
template <class Op>
void complete(const Op&, TapeWork&) {}
// Only the tokens' rows of the table are accessed.
void complete(const op::EmbeddingForward& op, TapeWork& work) { work.bytes += op.out.bytes() - op.table.bytes(); }
void complete(const op::EmbeddingBackward& op, TapeWork& work) {
  work.bytes += 2 * (op.dout.numel() * size_of(op.dtable.dtype) - op.dtable.bytes());
}
void complete(const op::Matmul& op, TapeWork& work) {
  work.kind = TapeWork::gemm;
  work.dtype = op.a.dtype;
  work.m = op.c.rows(), work.n = op.c.cols(), work.k = op.transpose_a ? op.a.rows() : op.a.cols();
  work.flops = 2 * work.m * work.n * work.k;
  // Epilogue operands are counted with the epilogues (TapeOps::add_epilogue).
  const auto bytes_of = [](const auto& argument) { return argument.data ? argument.bytes() : 0; };
  work.bytes = op.a.bytes() + op.b.bytes() + bytes_of(op.bias) + op.c.bytes() * (op.accumulate ? 2 : 1);
  work.activation = op.pre_activation || op.activation_backward;
  work.backward = static_cast<bool>(op.activation_backward);
}
void complete(const op::CrossEntropyForward&, TapeWork& work) { work.kind = TapeWork::loss; }
void complete(const op::CrossEntropyBackward&, TapeWork& work) { work.kind = TapeWork::loss; }
// Only the heads in its layouts are accessed.
void complete(const op::CopyHeads& op, TapeWork& work) {
  work.bytes =
      op.from.layout.numel() * (size_of(op.from.memory.dtype) + size_of(op.to.memory.dtype) * (op.accumulate ? 2 : 1));
}
void complete(const op::AttentionMerge& op, TapeWork& work) {
  work.bytes = op.more.bytes() + 2 * op.more.numel() * size_of(op.out.dtype) + 3 * op.more_lse.bytes();
}
template <class Attention>
void add_attention(const Attention& op, int64_t products, TapeWork& work) {
  const HeadsLayout &q = op.qkv.q.layout, &k = op.qkv.k.layout;
  work.kind = TapeWork::attention;
  work.dtype = op.qkv.q.memory.dtype;
  work.batch = q.b * q.heads(), work.m = q.s, work.n = k.s, work.k = q.d;
  work.flops = 2 * products * q.b * q.heads() * q.d * pairs_of(q.s, k.s, op.causal);
}
void complete(const op::AttentionForward& op, TapeWork& work) { add_attention(op, 2, work); }
void complete(const op::AttentionBackward& op, TapeWork& work) {
  add_attention(op, 5, work);  // recomputes the scores; gradients of v, p, q and k
  work.backward = true;
}

class TapeOps : public Ops {
 public:
  explicit TapeOps(bool cpu) : cpu_(cpu) {}

  void run(const AnyOp& any, Stream& stream) override {
    // Recorded as two ops: framework.cc counts other frameworks' bytes relative to the engine's three logits passes.
    if (const auto* const loss = std::get_if<op::CrossEntropyForward>(&any); loss && loss->gradient) {
      op::CrossEntropyForward forward = *loss;
      forward.gradient = {};
      run(forward, stream);
      return run(backward_of(*loss), stream);
    }
    stream.flush();
    std::visit(
        [&]<class Op>(const Op& op) {
          check_arguments(op);
          TapeWork work{.name = Op::kSpan.name, .category = Op::kSpan.category};
          for_each_field(op, [&]<class T>(const T& field) {
            if constexpr (is_argument<T>) add_bytes(field, work);
            else if constexpr (is_list<T>) for_each_tensor(field, work);
          });
          complete(op, work);
          if constexpr (std::is_same_v<Op, op::Matmul>) add_prologue(op, work, stream);
          tape_stream(stream).queue(work);
          if constexpr (std::is_same_v<Op, op::Matmul>) add_epilogue(op, stream);
        },
        any);
  }

 private:
  // What a GPU's GEMM fuses, and the ops before a GEMM of FP8 operands. A CPU decodes them. A GPU's GEMM requires rows
  // along k, and of the result, that are multiples of 16 bytes (cuBLASLt, "cublasLtMatmul"): operands along whose
  // columns k is not are transposed. All are decoded if a length is not such a multiple, or, with blocks, if the
  // result's rows are not a multiple of 4 or blocks along k begin elsewhere than at multiples of 128. Scales of blocks
  // along columns, and of squares, are rearranged (kernels/cuda/matmul.cu).
  void add_prologue(const op::Matmul& op, TapeWork& gemm, Stream& stream) {
    if (!cpu_) add_bytes(op.pre_activation, gemm), add_bytes(op.activation_backward, gemm);
    if (!is_fp8(op.a.dtype)) return;
    const auto pass = [&](const char* name, const Tensor& operand, DType to) {
      tape_stream(stream).queue(
          {.name = name, .dtype = DType::bf16, .bytes = operand.bytes() + operand.numel() * size_of(to)});
    };
    const auto foreign = [](const Tensor& operand, const Tensor& scale, bool along_rows) {
      return ScaleBlocks::given(scale) && along_rows && !ScaleBlocks::aligned(scale, operand);
    };
    if (cpu_ || gemm.k % 16 != 0 || op.c.cols() * size_of(op.c.dtype) % 16 != 0 ||
        (ScaleBlocks::given(op.scales.a) && op.c.rows() % 4 != 0) || foreign(op.a, op.scales.a, op.transpose_a) ||
        foreign(op.b, op.scales.b, !op.transpose_b)) {
      gemm.dtype = DType::bf16;
      pass("decode", op.a, DType::bf16), pass("decode", op.b, DType::bf16);
    } else {
      if (op.transpose_a) pass("transpose", op.a, op.a.dtype);
      if (!op.transpose_b) pass("transpose", op.b, op.b.dtype);
      for (const Tensor& scale : {op.scales.a, op.scales.b})
        if (ScaleBlocks::given(scale) && !(op.transpose_a && !op.transpose_b)) pass("scales", scale, scale.dtype);
    }
  }
  // As in CpuOps. Passes for the bias gradient and the residual are counted on GPUs too, because whether a shape's GEMM
  // can fuse them is known only after a trial.
  void add_epilogue(const op::Matmul& op, Stream& stream) {
    if (op.residual) run(residual_of(op), stream);
    if (op.bias_grad) run(op::ColumnSum{op.a, op.bias_grad}, stream);
    if (!cpu_) return;
    if (op.pre_activation) run(activation_of(op), stream);
    if (op.activation_backward) run(activation_backward_of(op), stream);
  }
  template <class T>
  static void add_bytes(const T& argument, TapeWork& work) {
    if (!argument.data) return;
    work.bytes += argument.bytes() * (T::role == Role::in_out ? 2 : 1);
    if (argument.dtype == DType::bf16) work.dtype = DType::bf16;
  }
  template <class T>
  static void for_each_tensor(const List<T>& list, TapeWork& work) {
    for (const T& element : list) {
      if constexpr (is_argument<T>) add_bytes(element, work);
      else
        for_each_field(element, [&]<class F>(const F& field) {
          if constexpr (is_argument<F>) add_bytes(field, work);
        });
    }
  }

  const bool cpu_;
};

class TapeBackEnd : public PlanningBackEnd {
 public:
  TapeBackEnd(CommGroup of, Device& device, Recorder& recorder)
      : PlanningBackEnd(std::move(of), device),
        recorder_(recorder),
        number_(group.size() > 1 ? recorder.group(group) : -1) {}

  void enqueue(std::span<const Call> calls, Stream& stream) override {
    for (size_t i = 0; i < calls.size(); ++i) {
      const Call& call = calls[i];
      if (group.size() == 1) {
        stream.flush();
        tape_stream(stream).queue({.name = name_of(call), .bytes = 2 * call.in.bytes()});
        continue;
      }
      const int64_t bytes = call.whole().bytes();
      tape_stream(stream).queue(
          {.name = name_of(call),
           .kind = call.kind,
           .sends = call.sends,
           .group = number_,
           .ahead = call.kind == CommCall::transfer ? (call.peer - group.rank + group.size()) % group.size() : 0,
           .bytes = bytes,
           .cost = wire_cost(call.kind, bytes, group.size())},
          i + 1 < calls.size());
    }
  }
  std::shared_ptr<CommBackEnd> split(const std::vector<int>&, CommGroup part) override {
    return part.rank < 0 ? nullptr : std::make_shared<TapeBackEnd>(std::move(part), device, recorder_);
  }

 private:
  Recorder& recorder_;
  const int number_;
};

}  // namespace

int TapeGroups::add(const Group& group) {
  const auto [at, is_new] = numbers_.try_emplace(group, size());
  if (is_new) groups_.push_back(group);
  return at->second;
}

bool remove_links(CommConfig& comm) {
  bool found = comm.link_latency_us != 0 || comm.link_gbps != 0;
  comm.link_latency_us = comm.link_gbps = 0;
  for (ClassLink& link : comm.links) {
    found = found || link.latency_us.value_or(0) != 0 || link.gbps.value_or(0) != 0;
    link = {0, 0};
  }
  comm.shared_port = false;
  return found;
}

Tape record_tape(const Config& run, const Layout& layout, int rank, TapeGroups& groups, const TapeOptions& options) {
  Config config = run;
  remove_links(config.comm);
  config.checkpoint.async_save = false;  // its snapshot is in host memory, which this device would really allocate
  Tape tape{.rank = rank, .steps = options.steps};
  Recorder recorder(tape, groups, options);
  const int ranks = layout.mesh.world();
  const std::unique_ptr<Device> host = create_planning_device();
  const auto world = create_planning_communicator(*host, rank, ranks);
  const MakeBackend make = [&](const Config&, Communicator&, int) {
    Backend backend;
    backend.device = std::make_unique<TapeDevice>(recorder);
    backend.ops = std::make_unique<TapeOps>(options.cpu);
    backend.exchange = std::make_unique<Communicator>(
        std::make_shared<TapeBackEnd>(CommGroup::world(rank, ranks), *backend.device, recorder));
    return backend;
  };
  SyntheticBatches batches(0, 1);  // no op reads tokens
  Trainer trainer(config, layout, *world, &batches, {.make_backend = make, .draw_weights = false});
  tape.records.clear();  // drops those of the initialisation
  for (int step = 0; step < options.steps; ++step) {
    trainer.queue_step();
    if (!options.one_ahead) trainer.finish_step();
    tape_stream(*trainer.rank().compute).mark();
    if (step == 0) tape.records.reserve(tape.records.size() * (static_cast<size_t>(options.steps) + 1));
  }
  if (options.one_ahead) trainer.finish_step();
  return tape;
}

}  // namespace trivet

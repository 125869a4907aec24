// The census: every op call that the runs in configs/ make, at the sizes of one rank of their layouts. For each run,
// trainers of a replica's ranks queue a step on a device that only records the calls. Each distinct call runs once on
// every instruction set of this CPU and on the emulated GPU. References in double check samples of its results: first
// and last columns, block borders, and random ones.
//
// The census cuts rows (tokens, samples) to a few, since each is computed alone or summed; heads to one group; and the
// optimizer's tensors to a few thousand elements. It also shortens the sequence in attention's backward pass. Row
// widths, table columns and both dimensions of weights are kept. Exception: on the emulated GPU and on instruction sets
// other than this machine's best, a large weight keeps one dimension at a time; so do tables on the emulated GPU.
#include <filesystem>
#include <map>
#include <set>

#include "engine/data/synthetic_batches.h"
#include "engine/train/trainer.h"
#include "parallel/comm/planning_comm.h"
#include "tests/support/ops_fixture.h"
#include "tests/support/training.h"
#include "tests/support/where.h"
#include "tools/plan/planned_run.h"
#include "tools/plan/tape.h"

namespace trivet::test {
namespace {

// ---- the calls

class RecordingOps : public Ops {
 public:
  explicit RecordingOps(std::function<void(const AnyOp&)> sees) : sees_(std::move(sees)) {}
  void run(const AnyOp& op, Stream&) override { sees_(op); }

 private:
  const std::function<void(const AnyOp&)> sees_;
};

// Stores nothing; every fp32 read from it is 1, anything else 0.
class RecordingDevice : public Device {
 public:
  DeviceKind kind() const override { return planned_->kind(); }
  std::string name() const override { return "census"; }
  int64_t memory_bytes() const override { return 0; }
  void* allocate(int64_t bytes) override { return planned_->allocate(bytes); }
  void deallocate(void*, int64_t) noexcept override {}
  std::unique_ptr<Stream> create_compute_stream() override { return planned_->create_compute_stream(); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority priority) override {
    return planned_->create_side_stream(priority);
  }
  std::unique_ptr<Event> create_event() override { return planned_->create_event(); }
  void copy_to_device(const void*, Tensor, Stream&) override {}
  void copy_to_host(Tensor from, void* host, Stream&) override {
    if (from.dtype == DType::f32) std::fill_n(static_cast<float*>(host), from.numel(), 1.0f);
    else std::memset(host, 0, static_cast<size_t>(from.bytes()));
  }

 private:
  const std::unique_ptr<Device> planned_ = create_planning_device();
};

// A call's types, shapes, numbers, and which tensors are the same; neither addresses nor the dropout's site and seed.
std::string key_of(const AnyOp& any) {
  return std::visit(
      []<class Op>(Op op) {
        if constexpr (requires { op.dropout.site; }) op.dropout.site = op.dropout.seed = 0;
        std::string key = op.kSpan.name;
        std::map<const void*, size_t> known;
        const std::function<void(const Tensor&)> tensor = [&](const Tensor& t) {
          if (!t.data) key += " null";
          else
            key += ' ' + std::to_string(known.try_emplace(t.data, known.size()).first->second) + name_of(t.dtype) +
                   to_string(t.shape);
        };
        const auto field = [&]<class T>(const auto& self, const T& value) {
          if constexpr (is_argument<T>) tensor(value);
          else if constexpr (is_list<T>)
            for (const auto& element : value) {
              key += " of";
              if constexpr (is_argument<std::remove_cvref_t<decltype(element)>>) tensor(element);
              else for_each_field(element, [&](const auto& inner) { self(self, inner); });
            }
          else key += ' ' + std::to_string(static_cast<double>(value));
        };
        for_each_field(op, [&](const auto& value) { field(field, value); });
        return key;
      },
      any);
}

struct Calls {
  std::map<std::string, AnyOp> distinct;
  int64_t all = 0;
};

// Records a step on the first and last tensor-parallel ranks of the first two pipeline stages and of the last stage.
void record(const LoadedConfig& file, Calls& calls) {
  const ParallelConfig& cut = file.config.parallel;
  // Leaves each data-parallel rank 2 p micro-batches, which DualPipe-V needs.
  const int t = cut.tensor_model_parallel_size, p = cut.pipeline_model_parallel_size;
  const int64_t samples = *file.config.batch.global_batch_size / file.config.batch.micro_batch_size;
  const int ranks =
      ranks_of_one_replica(file.config) * static_cast<int>(samples % (2 * p) == 0 ? samples / (2 * p) : 1);
  std::vector<std::string> sets = {"checkpoint.async_save=false"};
  if (!file.config.model.vocab_size) sets.push_back("model.vocab_size=32001");  // in place of a dataset's
  const LegalRun run = legal_run(file, ranks, sets);
  Config config = run.loaded.config;
  remove_links(config.comm);
  for (int rank = 0; rank < ranks; ++rank) {
    const MeshPosition at = position_of(rank, run.layout.mesh);
    if (at[Axis::dp] != 0 || (at[Axis::tp] != 0 && at[Axis::tp] != t - 1) ||
        (at[Axis::pp] > 1 && at[Axis::pp] != p - 1))
      continue;
    const auto host = create_planning_device();
    const auto world = create_planning_communicator(*host, rank, ranks);
    const MakeBackend make = [&](const Config&, Communicator&, int) {
      Backend backend;
      backend.device = std::make_unique<RecordingDevice>();
      backend.ops = std::make_unique<RecordingOps>([&](const AnyOp& op) {
        ++calls.all;
        calls.distinct.try_emplace(key_of(op), op);
      });
      backend.exchange = std::make_unique<Communicator>(
          std::make_shared<PlanningBackEnd>(CommGroup::world(rank, ranks), *backend.device));
      return backend;
    };
    SyntheticBatches batches(0, 1);
    Trainer trainer(config, run.layout, *world, &batches, {.make_backend = make, .draw_weights = false});
    trainer.queue_step();
    trainer.finish_step();
  }
}

const Calls& all_calls() {
  static const Calls calls = [] {
    Calls all;
    for (const char* folder : {"configs", "configs/mlperf"})
      for (const auto& entry : std::filesystem::directory_iterator(source_path(folder)))
        if (entry.path().extension() == ".yaml") record(load_config(entry.path().string()), all);
    return all;
  }();
  return calls;
}

// ---- running a call

constexpr int64_t kRows = 3, kTokens = 5;  // numbers of independent rows, and of a GEMM's rows

// State shared by the calls on one back end: memory for the large operands, and which GEMMs have run.
class Shared {
 public:
  Shared() {
    integers_.reserve(kMost);  // no reallocation: views stay valid
    std::minstd_rand random;
    for (size_t i = 0; i < kPeriod; ++i) integers_.push_back(bf16(static_cast<float>(random() % 5) - 2));
  }
  // Integers from -2 to 2, whose products and sums are exact in fp32; different ones for each argument of an op.
  Tensor integers(int64_t argument, Shape shape) {
    const Tensor t{nullptr, DType::bf16, shape};
    const auto first = static_cast<size_t>(977 * argument), end = first + static_cast<size_t>(t.numel());
    check(end <= kMost, "an operand of the census is larger than its memory");
    while (integers_.size() < end) {
      const size_t more = std::min(integers_.size() / kPeriod * kPeriod, kMost - integers_.size());
      integers_.insert(integers_.end(), integers_.begin(), integers_.begin() + static_cast<std::ptrdiff_t>(more));
    }
    return {integers_.data() + first, DType::bf16, shape};
  }
  // Zeros, or what earlier calls accumulated: small integers.
  Tensor sums(Shape shape) {
    const Tensor t{nullptr, DType::f32, shape};
    if (static_cast<int64_t>(sums_.size()) < t.numel()) sums_ = std::vector<float>(static_cast<size_t>(t.numel()));
    return {sums_.data(), DType::f32, shape};
  }
  std::set<std::vector<int64_t>> gemms;  // by their cut sizes

 private:
  static constexpr size_t kPeriod = 1'048'583, kMost = size_t{1} << 29;  // prime: no two rows begin alike
  std::vector<bf16> integers_;
  std::vector<float> sums_;
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) { return (gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6; }
double silu(double x) { return x / (1 + std::exp(-x)); }

// Weights of more than `most_weights` elements run twice, each time with one side full and the other cut.
struct Sizes {
  int64_t most_weights = std::numeric_limits<int64_t>::max(), other_side = 0;
  bool on_gpu = false;
};

// Runs one call, and checks its results.
class Runner {
 public:
  Runner(Ops& ops, Stream& stream, Shared& shared, const Sizes& how)
      : ops_(ops), stream_(stream), shared_(shared), how_(how), on_gpu_(how.on_gpu) {}

  template <class Op>
  void operator()(const Op&) {
    ADD_FAILURE() << Op::kSpan.name << ": the census does not know how to run it";
  }

  void operator()(const op::Matmul& op) {
    const int64_t m = op.c.rows(), n = op.c.cols(), k = op.transpose_a ? op.a.rows() : op.a.cols();
    if (op.a.dtype != DType::bf16) return (void)(ADD_FAILURE() << "a GEMM of other types than bf16");
    // The dimensions of the weights: c's if rows are summed, else b's.
    const auto with_sides = [&](int64_t rows_of_weights, int64_t columns) {
      if (op.transpose_a) gemm(op, rows_of_weights, columns, kTokens);
      else gemm(op, kTokens, rows_of_weights, columns);
    };
    const int64_t first = op.transpose_a ? m : n, second = op.transpose_a ? n : k;
    if (first * second <= how_.most_weights) return with_sides(first, second);
    with_sides(first, std::min(second, how_.other_side)), with_sides(std::min(first, how_.other_side), second);
  }
  void operator()(const op::ColumnSum& op) {
    constexpr int64_t kSummed = 40;
    const Tensor x = rows(op.x, kSummed), sum = like(op.sum, op.sum.shape);
    const Values before = values(sum);
    run(op::ColumnSum{x, sum});
    each(sum, [&](int64_t, int64_t c) {
      double wanted = before[at(c)];
      for (int64_t r = 0; r < kSummed; ++r) wanted += get(x, r * x.cols() + c);
      return wanted;
    });
  }
  void operator()(const op::LayernormForward& op) {
    if (op.rows.x.any()) return unknown("rows that are heads");
    const Tensor x = rows(op.x), y = rows(op.y), gamma = like(op.gamma, op.gamma.shape), beta = like(op.beta);
    const Tensor mean = vector(op.mean), rstd = vector(op.rstd);
    const Values in = values(x);
    run(op::LayernormForward{x, gamma, beta, op.eps, y, mean, rstd});
    const int64_t h = x.cols();
    for (int64_t r = 0; r < kRows; ++r) {
      double mu = 0, squares = 0;
      for (int64_t c = 0; mean && c < h; ++c) mu += in[at(r * h + c)] / static_cast<double>(h);
      for (int64_t c = 0; c < h; ++c) squares += std::pow(in[at(r * h + c)] - mu, 2) / static_cast<double>(h);
      const double scale = 1 / std::sqrt(squares + static_cast<double>(op.eps));
      near_one(rstd, r, scale);
      if (mean) near_one(mean, r, mu);
      for (const int64_t c : samples(h))
        near_one(y, r * h + c, (in[at(r * h + c)] - mu) * scale * get(gamma, c) + (beta ? get(beta, c) : 0));
    }
  }
  void operator()(const op::LayernormBackward& op) {
    if (op.rows.x.any()) return unknown("rows that are heads");
    const Tensor dy = rows(op.dy), x = rows(op.x), gamma = like(op.gamma), mean = vector(op.mean);
    const Tensor rstd = vector(op.rstd), residual = rows(op.residual), dx = rows(op.dx);
    const Tensor dgamma = like(op.dgamma), dbeta = like(op.dbeta);
    for (int64_t r = 0; r < kRows; ++r) set(rstd, r, 1 + 0.25 * static_cast<double>(r));
    const Values d = values(dy), in = values(x), beside = residual ? values(residual) : Values();
    const Values dg = values(dgamma), db = dbeta ? values(dbeta) : Values();
    run(op::LayernormBackward{dy, x, gamma, mean, rstd, residual, dx, dgamma, dbeta});
    const int64_t h = x.cols();
    const auto xhat = [&](int64_t r, int64_t c) {
      return (in[at(r * h + c)] - (mean ? get(mean, r) : 0)) * get(rstd, r);
    };
    for (int64_t r = 0; r < kRows; ++r) {
      double sum = 0, weighted = 0;
      for (int64_t c = 0; c < h; ++c) {
        const double g = d[at(r * h + c)] * get(gamma, c) / static_cast<double>(h);
        sum += mean ? g : 0, weighted += g * xhat(r, c);
      }
      for (const int64_t c : samples(h))
        near_one(dx, r * h + c,
                 (residual ? beside[at(r * h + c)] : 0) +
                     get(rstd, r) * (d[at(r * h + c)] * get(gamma, c) - sum - xhat(r, c) * weighted));
    }
    for (const int64_t c : samples(h)) {
      double g = dg[at(c)], b = dbeta ? db[at(c)] : 0;
      for (int64_t r = 0; r < kRows; ++r) g += d[at(r * h + c)] * xhat(r, c), b += d[at(r * h + c)];
      near_one(dgamma, c, g);
      if (dbeta) near_one(dbeta, c, b);
    }
  }
  void operator()(const op::Add& op) {
    const Tensor a = like(op.a, op.a.shape), b = like(op.b, op.b.shape), out = like(op.out, op.out.shape);
    const Values x = values(a), y = values(b);
    run(op::Add{a, b, out});
    each(out, [&](int64_t, int64_t i) { return x[at(i)] + y[at(i)]; });
  }
  // Without a gate, an activation is an epilogue, which the GEMM cases below cover.
  void operator()(const op::ActivationForward& op) {
    check(op.kind == Activation::swiglu, "the definition below is SwiGLU's");
    const Tensor x = rows(op.x), y = rows(op.y);
    run(op::ActivationForward{x, y, op.kind});
    const int64_t f = y.cols();
    each(y, [&](int64_t r, int64_t c) { return silu(get(x, r * 2 * f + c)) * get(x, r * 2 * f + f + c); });
  }
  void operator()(const op::ActivationBackward& op) {
    check(op.kind == Activation::swiglu, "the definition below is SwiGLU's");
    const Tensor x = rows(op.x), dy = rows(op.dy), dx = rows(op.dx);
    const Values in = values(x), d = values(dy);
    run(op::ActivationBackward{x, dy, dx, op.kind});
    const int64_t f = dy.cols();
    each(dx, [&](int64_t r, int64_t c) {
      const double gate = in[at(r * 2 * f + c % f)], up = in[at(r * 2 * f + f + c % f)], s = 1 / (1 + std::exp(-gate));
      return d[at(r * f + c % f)] * (c < f ? up * s * (1 + gate * (1 - s)) : gate * s);
    });
  }
  void operator()(const op::RotaryTable& op) {
    const Tensor table = like(op.table);
    run(op::RotaryTable{op.rotary, table});
    const int64_t width = op.rotary.width, half = width / 2, last = table.rows() - 1;
    for (const int64_t p : {int64_t{0}, int64_t{1}, last / 2, last})
      for (int64_t c = 0; c < half; ++c) {
        const double angle = static_cast<double>(p) * rotary_frequency(op.rotary, c);
        near_one(table, p * width + c, std::cos(angle)), near_one(table, p * width + half + c, std::sin(angle));
      }
  }
  void operator()(const op::Rope& op) {
    const HeadsView q = heads(op.q, kRows, op.q.layout.groups), k = heads(op.k, kRows, op.k.layout.groups);
    const int64_t width = op.table.cols(), half = width / 2;
    const Tensor table = like(op.table, {kRows, width});
    const Values in = values(q.memory), of_k = values(k.memory);
    run(op::Rope{q, k, table, op.inverse});
    for (const auto& [view, before] : {std::pair(&q, &in), {&k, &of_k}})
      for (int64_t p = 0; p < kRows; ++p)
        for (const int64_t head : {int64_t{0}, view->layout.heads() - 1})
          for (int64_t c = 0; c < half; ++c) {
            const int64_t first = view->first + view->layout.at(p, 0, head) + c;
            const double a = (*before)[at(first)], b = (*before)[at(first + half)], cosine = get(table, p * width + c);
            const double sine = get(table, p * width + half + c) * (op.inverse ? -1 : 1);
            near_one(view->memory, first, a * cosine - b * sine);
            near_one(view->memory, first + half, b * cosine + a * sine);
          }
  }
  void operator()(const op::AttentionForward& op) {
    if (op.dropout.probability > 0) return unknown("dropout");
    const int64_t s = op.qkv.q.layout.s;
    attention_forward(op, kRows, s);                                              // all keys
    attention_forward(op, std::min<int64_t>(s, 130), std::min<int64_t>(s, 130));  // queries = keys: other kernels
  }
  void operator()(const op::AttentionBackward& op) {
    if (op.dropout.probability > 0) return unknown("dropout");
    const int64_t s = std::min<int64_t>(op.qkv.q.layout.s, 130), d = op.qkv.q.layout.d;
    const op::AttentionForward forward = attention_forward({op.qkv, op.out, op.lse}, s, s);
    const QkvOf<In>& in = forward.qkv;
    const int64_t members = in.q.layout.members;
    const Tensor dout = shared_.integers(7, {s, 1, members * d});
    const auto output = [&](const HeadsOf<Out>& x, const HeadsOf<In>& of) {
      HeadsView view = of;  // the strides are the gradients' own
      view.memory = like(x.memory, {s, 1, x.memory.cols()});
      view.layout.position = view.layout.entry = x.memory.cols();
      view.layout.group = x.layout.group, view.layout.member = x.layout.member, view.first = x.first;
      return view;
    };
    const QkvViews dqkv{output(op.dqkv.q, in.q), output(op.dqkv.k, in.k), output(op.dqkv.v, in.v)};
    run(op::AttentionBackward{dout, in, forward.out, forward.lse, dqkv});
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    Values dk(at(s * d)), dv(at(s * d));
    for (int64_t head = 0; head < members; ++head) {
      Values dq(at(s * d));
      const auto value = [&](const HeadsOf<In>& x, int64_t p, int64_t h, int64_t c) {
        return get(x.memory, x.first + x.layout.at(p, 0, h) + c);
      };
      for (int64_t query = 0; query < s; ++query) {
        const Values p = probabilities(in, query, query, head);
        Values dp(at(query + 1));
        double delta = 0;
        for (int64_t key = 0; key <= query; ++key)
          for (int64_t c = 0; c < d; ++c)
            dp[at(key)] += get(dout, (query * members + head) * d + c) * value(in.v, key, 0, c);
        for (int64_t key = 0; key <= query; ++key) delta += p[at(key)] * dp[at(key)];
        for (int64_t key = 0; key <= query; ++key)
          for (int64_t c = 0; c < d; ++c) {
            const double ds = scale * p[at(key)] * (dp[at(key)] - delta);
            dq[at(query * d + c)] += ds * value(in.k, key, 0, c);
            dk[at(key * d + c)] += ds * value(in.q, query, head, c);
            dv[at(key * d + c)] += p[at(key)] * get(dout, (query * members + head) * d + c);
          }
      }
      near_heads(dqkv.q, head, dq);
    }
    near_heads(dqkv.k, 0, dk), near_heads(dqkv.v, 0, dv);
  }
  void operator()(const op::EmbeddingForward& op) {
    const auto of = [&](int64_t table_rows, int64_t h) {
      const Tensor table = shared_.integers(1, {table_rows, h}), out = tensors_.poisoned(op.out.dtype, {kTokens, 1, h});
      const Tensor tokens = tokens_of(op.first_row, table_rows);
      run(op::EmbeddingForward{tokens, table, op.first_row, out});
      each(out, [&](int64_t r, int64_t c) {
        const auto row = static_cast<int64_t>(get(tokens, r)) - op.first_row;
        return row < 0 || row >= table_rows ? 0 : get(table, row * h + c);
      });
    };
    tables(op.table, of);
  }
  void operator()(const op::EmbeddingBackward& op) {
    const auto of = [&](int64_t table_rows, int64_t h) {
      const Tensor dtable = shared_.sums({table_rows, h}), dout = shared_.integers(2, {kTokens, 1, h});
      const Tensor tokens = tokens_of(op.first_row, table_rows);
      const std::vector<int64_t> some = samples(h);
      const auto each_element = [&](const auto& f) {
        for (const int64_t row : {int64_t{0}, table_rows / 2, table_rows - 1})
          for (const int64_t c : some) f(row, c);
      };
      Values wanted;
      each_element([&](int64_t row, int64_t c) {
        wanted.push_back(get(dtable, row * h + c));
        for (int64_t r = 0; r < kTokens; ++r)
          if (get(tokens, r) == static_cast<double>(op.first_row + row)) wanted.back() += get(dout, r * h + c);
      });
      run(op::EmbeddingBackward{tokens, dout, op.first_row, dtable});
      size_t next = 0;
      each_element([&](int64_t row, int64_t c) { equal_one(dtable, row * h + c, wanted[next++]); });
    };
    tables(op.dtable, of);
  }
  void operator()(const op::PositionForward& op) {
    if (op.dropout.probability > 0) return unknown("dropout");
    const Tensor x = rows(op.x), positions = like(op.positions, {kRows, op.x.cols()}), out = rows(op.out);
    const Values in = values(x);
    run(op::PositionForward{x, positions, op.dropout, out});
    each(out, [&](int64_t r, int64_t c) { return in[at(r * x.cols() + c)] + get(positions, r * x.cols() + c); });
  }
  void operator()(const op::PositionBackward& op) {
    if (op.dropout.probability > 0) return unknown("dropout");
    const Tensor dout = rows(op.dout), dx = rows(op.dx), sums = like(op.dpositions, {kRows, op.dout.cols()});
    const Values d = values(dout), before = values(sums);
    run(op::PositionBackward{dout, op.dropout, dx, sums});
    each(dx, [&](int64_t r, int64_t c) { return d[at(r * dx.cols() + c)]; });
    each(sums, [&](int64_t r, int64_t c) { return before[at(r * dx.cols() + c)] + d[at(r * dx.cols() + c)]; });
  }
  void operator()(const op::BiasDropoutAdd& op) {
    if (op.dropout.probability > 0) return unknown("dropout");
    const Tensor x = rows(op.x), bias = like(op.bias), residual = rows(op.residual), out = rows(op.out);
    const Values in = values(x), beside = values(residual);
    run(op::BiasDropoutAdd{x, bias, residual, op.dropout, out});
    each(out, [&](int64_t r, int64_t c) {
      return in[at(r * x.cols() + c)] + (bias ? get(bias, c) : 0) + beside[at(r * x.cols() + c)];
    });
  }
  void operator()(const op::DropoutBackward& op) {
    if (op.dropout.probability > 0) return unknown("dropout");
    const Tensor dout = rows(op.dout), dx = rows(op.dx);
    const Values in = values(dout);
    run(op::DropoutBackward{dout, op.dropout, dx});
    each(dx, [&](int64_t r, int64_t c) { return in[at(r * dx.cols() + c)]; });
  }
  void operator()(const op::CrossEntropyForward& op) {
    const Tensor logits = rows(op.logits), max = vector(op.row_max), sum = vector(op.row_sum);
    const Tensor target = vector(op.target_logit), targets = targets_of(op);
    const Values in = values(logits);
    run(op::CrossEntropyForward{logits, targets, op.first_column, op.vocab_size, max, sum, target,
                                op.gradient ? logits : Tensor{}, op.scale});
    const int64_t v = logits.cols(), columns = real_columns(op.first_column, op.vocab_size, v);
    for (int64_t r = 0; r < kRows; ++r) {
      const auto row = in.begin() + r * v;
      const double largest = *std::max_element(row, row + columns);
      double total = 0;
      for (int64_t c = 0; c < columns; ++c) total += std::exp(row[c] - largest);
      const auto mine = static_cast<int64_t>(get(targets, r)) - op.first_column;
      equal_one(max, r, largest), near_one(sum, r, total, 1e-4);
      equal_one(target, r, mine >= 0 && mine < columns ? row[mine] : 0);
    }
    if (op.gradient) near_gradient(op, logits, in, targets, max, sum);
  }
  void operator()(const op::CrossEntropyBackward& op) {
    const Tensor logits = rows(op.logits), max = vector(op.row_max), sum = vector(op.row_sum);
    const Tensor targets = targets_of(op);
    for (int64_t r = 0; r < kRows; ++r) set(max, r, 1), set(sum, r, static_cast<double>(logits.cols()));
    const Values in = values(logits);
    run(op::CrossEntropyBackward{logits, targets, op.first_column, op.vocab_size, max, sum, op.scale});
    near_gradient(op, logits, in, targets, max, sum);
  }
  void operator()(const op::CrossEntropyRescale& op) {
    const Tensor max = like(op.row_max), global = like(op.global_max), sum = like(op.row_sum);
    const Values before = values(sum);
    run(op::CrossEntropyRescale{max, global, sum});
    for (const int64_t r : samples(sum.numel()))
      near_one(sum, r, before[at(r)] * std::exp(get(max, r) - get(global, r)));
  }
  void operator()(const op::CrossEntropyLoss& op) {
    const Tensor targets = like(op.targets), max = like(op.row_max), sum = like(op.row_sum);
    const Tensor target = like(op.target_logit), loss = like(op.loss);
    double wanted = get(loss, 0);
    for (int64_t r = 0; r < sum.numel(); ++r) {
      set(sum, r, 1 + static_cast<double>(r % 100));
      set(targets, r, static_cast<double>(r % 7) - 1);
      if (r % 7 > 0) wanted += static_cast<double>(op.scale) * (std::log(get(sum, r)) + get(max, r) - get(target, r));
    }
    run(op::CrossEntropyLoss{targets, max, sum, target, op.scale, loss});
    near_one(loss, 0, wanted, 1e-5 * std::abs(wanted) + 1e-6);
  }
  void operator()(const op::AdamWStep& op) {
    std::vector<AdamWShard> shards;
    const Tensor scale = tensors_.full(DType::f32, {1}, 0.5), accepted = tensors_.full(DType::f32, {1}, 1);
    std::vector<std::array<Values, 4>> before;
    for (const AdamWShard& each : op.shards) {
      AdamWShard mine{flat(each.weight), flat(each.grad),         flat(each.m),
                      flat(each.v),      flat(each.model_weight), each.decays};
      for (int64_t i = 0; i < mine.v.numel(); ++i) set(mine.v, i, std::abs(get(mine.v, i)));
      before.push_back({values(mine.weight), values(mine.grad), values(mine.m), values(mine.v)});
      shards.push_back(mine);
    }
    run(op::AdamWStep{shards, scale, accepted, op.how});
    const AdamW& how = op.how;
    const auto beta1 = static_cast<double>(how.beta1), beta2 = static_cast<double>(how.beta2);
    const auto rate = static_cast<double>(how.learning_rate), step = static_cast<double>(how.step);
    for (size_t n = 0; n < shards.size(); ++n)
      for (const int64_t i : samples(shards[n].weight.numel())) {
        const auto& [w, grad, m, v] = before[n];
        const double g = 0.5 * grad[at(i)], first = beta1 * m[at(i)] + (1 - beta1) * g;
        const double second = beta2 * v[at(i)] + (1 - beta2) * g * g;
        const double update = first / (1 - std::pow(beta1, step)) /
                              (std::sqrt(second / (1 - std::pow(beta2, step))) + static_cast<double>(how.eps));
        const double decay = shards[n].decays ? static_cast<double>(how.weight_decay) : 0;
        const double weight = w[at(i)] - rate * (update + decay * w[at(i)]);
        near_one(shards[n].m, i, first), near_one(shards[n].v, i, second), near_one(shards[n].weight, i, weight);
        if (shards[n].model_weight) near_one(shards[n].model_weight, i, weight);
      }
  }
  void operator()(const op::SumOfSquares& op) {
    std::vector<Tensor> xs;
    double sum = 0;
    for (const Tensor& x : op.xs) {
      xs.push_back(flat(x));
      for (const double value : values(xs.back())) sum += value * value;  // exact
    }
    near_norm(xs, 1, 0, sum);
  }
  void operator()(const op::ClipScale& op) {
    const Tensor x = flat({op.bins.data, DType::f32, {999}});
    double sum = 0;
    for (const double value : values(x)) sum += value * value;
    near_norm({x}, op.multiplier, op.max_norm, sum);
  }
  void operator()(const op::CountLabels&) { unknown("labels that do not count"); }
  void operator()(const op::AcceptStep& op) {
    for (const double number : {0.25, std::numeric_limits<double>::quiet_NaN()}) {
      const Tensor numbers = tensors_.full(DType::f32, op.numbers.shape, number), accepted = like(op.accepted);
      run(op::AcceptStep{numbers, op.limits, accepted});
      bool wanted = number == 0.25 || !op.limits.finite;
      for (int64_t i = 0; i < numbers.numel(); ++i) wanted &= !(number > static_cast<double>(op.limits.at_most[at(i)]));
      equal_one(accepted, 0, wanted);
    }
  }
  void operator()(const op::FindNonFinite& op) {
    const Tensor x = flat(op.x), found = tensors_.full(DType::i64, {kNonFiniteNumbers}, 0);
    const Tensor accepted = op.accepted ? tensors_.full(DType::f32, {1}, 0) : Tensor{};
    set(x, x.numel() - 1, -std::numeric_limits<double>::infinity());
    run(op::FindNonFinite{x, accepted, found});
    EXPECT_EQ(element_of_mark(found.as<int64_t>()[0]), x.numel() - 1);
    EXPECT_EQ(found.as<int64_t>()[2], 1);
  }
  void operator()(const op::Fill& op) {
    const Tensor x = flat(op.x);
    run(op::Fill{x, op.value});
    for (int64_t i = 0; i < x.numel(); ++i) equal_one(x, i, static_cast<double>(op.value));
  }
  void operator()(const op::Clear& op) {
    std::vector<Tensor> xs;
    for (const Tensor& x : op.xs) xs.push_back(flat(x));
    run(op::Clear{xs});
    for (const Tensor& x : xs)
      for (int64_t i = 0; i < x.numel(); ++i) equal_one(x, i, 0);
  }
  void operator()(const op::Convert& op) {
    const Tensor from = flat(op.from), to = flat(op.to);
    run(op::Convert{from, to});
    for (int64_t i = 0; i < to.numel(); ++i) near_one(to, i, get(from, i));
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  void run(const AnyOp& op) { ops_.run(op, stream_); }
  void unknown(const char* what) { ADD_FAILURE() << "the census does not know " << what; }

  // Indices below n: both ends, both sides of block borders, and random ones.
  std::vector<int64_t> samples(int64_t n) {
    std::set<int64_t> some{0, 1, n / 2, n - 2, n - 1};
    for (const int64_t block : {16, 64, 256, 1024, 4096, 16384})
      if (const int64_t border = n / block * block; border > 0) some.insert({border - 1, border, block - 1, block});
    for (int i = 0; i < 4; ++i) some.insert(static_cast<int64_t>(random_() % static_cast<uint64_t>(n)));
    std::erase_if(some, [&](int64_t i) { return i < 0 || i >= n; });
    return {some.begin(), some.end()};
  }

  // Memory for an argument of the call, cut to this shape: multiples of 1/32 in [-1, 1). Arguments that shared a tensor
  // share it here.
  Tensor like(const Tensor& t, Shape shape) {
    if (!t.data) return {};
    Tensor& mine = made_[t.data];
    const Tensor asked{nullptr, t.dtype, shape};
    if (mine.data && mine.dtype == t.dtype && mine.numel() == asked.numel()) return mine.view(shape);
    return mine = tensors_.make(t.dtype, shape, [&](int64_t) { return static_cast<double>(random_() % 64) / 32 - 1; });
  }
  Tensor like(const Tensor& t) { return like(t, t.shape); }
  Tensor rows(const Tensor& t, int64_t count = kRows) { return t ? like(t, {count, 1, t.cols()}) : Tensor{}; }
  Tensor vector(const Tensor& t) { return like(t, {kRows}); }  // one number per row
  Tensor flat(const Tensor& t) { return like(t, {std::min(t.numel(), 3000 + t.numel() % 64)}); }

  template <class T>
  HeadsView heads(const HeadsOf<T>& x, int64_t s, int64_t groups) {
    const int64_t width = x.memory.cols();
    HeadsView view{like(x.memory, {s, 1, width}), x.first, x.layout};
    view.layout.s = s, view.layout.b = 1, view.layout.groups = groups;
    view.layout.position = view.layout.entry = width;
    return view;
  }

  // The full table on a CPU, else one full dimension at a time.
  template <class F>
  void tables(const Tensor& table, const F& of) {
    if (!on_gpu_) return of(table.rows(), table.cols());
    of(std::min<int64_t>(table.rows(), 64), table.cols()), of(table.rows(), 8);
  }
  // The first row, the last row twice, and the indices just before the first and after the last.
  Tensor tokens_of(int64_t first, int64_t count) {
    const Tensor tokens = tensors_.full(DType::i32, {kTokens, 1}, 0);
    const int64_t all[kTokens] = {first + count - 1, first, first + count - 1, first - 1, first + count};
    for (int64_t i = 0; i < kTokens; ++i) set(tokens, i, static_cast<double>(all[i]));
    return tokens;
  }
  template <class Loss>
  Tensor targets_of(const Loss& op) {
    const int64_t columns = real_columns(op.first_column, op.vocab_size, op.logits.cols());
    const Tensor targets = tensors_.full(DType::i32, {kRows}, static_cast<double>(op.first_column));
    set(targets, 1, static_cast<double>(op.first_column + columns - 1)), set(targets, 2, -1);
    return targets;
  }

  void gemm(const op::Matmul& op, int64_t m, int64_t n, int64_t k) {
    if (!shared_.gemms
             .insert({m, n, k, op.transpose_a, op.transpose_b, op.accumulate, !!op.bias, !!op.pre_activation,
                      !!op.activation_backward, !!op.bias_grad, !!op.residual, op.c.dtype == DType::f32})
             .second)
      return;
    const auto shaped = [](int64_t rows, int64_t columns, bool turned) {
      return turned ? Shape{columns, rows} : Shape{rows, columns};
    };
    const Tensor a = shared_.integers(0, shaped(m, k, op.transpose_a)),
                 b = shared_.integers(1, shaped(k, n, op.transpose_b));
    const bool sums = op.c.dtype == DType::f32;
    const Tensor c = sums ? shared_.sums({m, n}) : tensors_.poisoned(op.c.dtype, {m, n});
    const Tensor bias = op.bias ? shared_.integers(2, {n}) : Tensor{};
    const Tensor residual = op.residual ? shared_.integers(3, {m, n}) : Tensor{};
    const Tensor slope = op.activation_backward ? shared_.integers(4, {m, n}) : Tensor{};
    const Tensor pre = op.pre_activation ? tensors_.poisoned(DType::bf16, {m, n}) : Tensor{};
    const Tensor bias_grad = op.bias_grad ? tensors_.full(DType::f32, {m}, 1) : Tensor{};
    const std::vector<int64_t> some_rows = samples(m), some_columns = samples(n);
    Values before;
    for (const int64_t i : some_rows)
      for (const int64_t j : some_columns) before.push_back(op.accumulate ? get(c, i * n + j) : 0);
    run(op::Matmul{a, b, c, op.transpose_a, op.transpose_b, op.accumulate, bias, pre, slope, bias_grad, residual});
    const auto value = [](const Tensor& t, int64_t i) { return static_cast<float>(t.as<bf16>()[i]); };
    size_t next = 0;
    for (const int64_t i : some_rows)
      for (const int64_t j : some_columns) {
        float product = 0;  // exact
        for (int64_t l = 0; l < k; ++l)
          product +=
              value(a, op.transpose_a ? l * m + i : i * k + l) * value(b, op.transpose_b ? j * k + l : l * n + j);
        const double sum = before[next++] + static_cast<double>(product) + (bias ? get(bias, j) : 0);
        const int64_t element = i * n + j;
        if (pre) {
          equal_one(pre, element, rounded(sum));
          near_one(c, element, gelu(rounded(sum)));
        } else if (slope) {
          near_one(c, element, sum * gelu_slope(get(slope, element)));
        } else if (residual) {  // on a CPU the branch is rounded, then the sum
          near_one(c, element, sum + get(residual, element), tolerance(DType::bf16, 1, std::abs(sum)));
        } else {
          equal_one(c, element, sums ? sum : rounded(sum));
        }
      }
    if (!bias_grad) return;
    for (const int64_t i : some_rows) {
      double sum = 1;
      for (int64_t l = 0; l < k; ++l) sum += get(a, l * m + i);
      equal_one(bias_grad, i, sum);
    }
  }
  static double rounded(double x) { return static_cast<float>(bf16(static_cast<float>(x))); }

  // Attention for one group, which has fewer members on the emulated GPU or if there are many queries.
  op::AttentionForward attention_forward(const op::AttentionForward& op, int64_t queries, int64_t keys) {
    const HeadsLayout& z = op.qkv.q.layout;
    const int64_t members = on_gpu_ || queries > kRows ? std::min<int64_t>(z.members, 2) : z.members, d = z.d;
    const auto view = [&](const HeadsOf<In>& x, int64_t count) {
      const int64_t width = x.memory.cols();
      HeadsView part{shared_.integers(x.memory.data == op.qkv.q.memory.data ? 0 : 1, {keys, 1, width}), x.first,
                     x.layout};
      part.layout.s = keys, part.layout.b = 1, part.layout.groups = 1, part.layout.members = count;
      part.layout.position = part.layout.entry = width;
      return part;
    };
    const QkvOf<In> in{last_positions(view(op.qkv.q, members), queries), view(op.qkv.k, 1), view(op.qkv.v, 1)};
    const Tensor out = tensors_.poisoned(DType::bf16, {queries, 1, members * d});
    const Tensor lse = tensors_.poisoned(DType::f32, {1, members, queries});
    const op::AttentionForward mine{in, out, lse};
    run(mine);
    for (const int64_t query : {int64_t{0}, queries / 2, queries - 1})
      for (const int64_t head : {int64_t{0}, members - 1}) {
        const int64_t position = keys - queries + query;
        const Values p = probabilities(in, query, position, head);
        for (const int64_t c : samples(d)) {
          double sum = 0;
          for (int64_t key = 0; key <= position; ++key)
            sum += p[at(key)] * get(in.v.memory, in.v.first + in.v.layout.at(key, 0, 0) + c);
          near_one(out, (query * members + head) * d + c, sum, 0.01);
        }
        near_one(lse, head * queries + query, log_of_sum_, 1e-4);
      }
    return mine;
  }
  // The probabilities of all keys that a query sees.
  Values probabilities(const QkvOf<In>& in, int64_t query, int64_t position, int64_t head) {
    const int64_t d = in.q.layout.d;
    Values scores(at(position + 1));
    for (int64_t key = 0; key <= position; ++key) {
      float score = 0;  // exact
      for (int64_t c = 0; c < d; ++c)
        score += static_cast<float>(in.q.memory.as<bf16>()[in.q.first + in.q.layout.at(query, 0, head) + c]) *
                 static_cast<float>(in.k.memory.as<bf16>()[in.k.first + in.k.layout.at(key, 0, 0) + c]);
      scores[at(key)] = static_cast<double>(score) / std::sqrt(static_cast<double>(d));
    }
    const double max = *std::ranges::max_element(scores);
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - max);
    for (double& score : scores) score /= sum;
    log_of_sum_ = max + std::log(sum);
    return scores;
  }
  void near_heads(const HeadsView& x, int64_t head, const Values& wanted) {
    double largest = 0;
    for (const double value : wanted) largest = std::max(largest, std::abs(value));
    for (int64_t p = 0; p < x.layout.s; ++p)
      for (int64_t c = 0; c < x.layout.d; ++c)
        near_one(x.memory, x.first + x.layout.at(p, 0, head) + c, wanted[at(p * x.layout.d + c)], 0.02 * largest);
  }

  template <class Loss>
  void near_gradient(const Loss& op, const Tensor& found, const Values& in, const Tensor& targets, const Tensor& max,
                     const Tensor& sum) {
    const int64_t v = found.cols(), columns = real_columns(op.first_column, op.vocab_size, v);
    for (int64_t r = 0; r < kRows; ++r) {
      const double scale = get(targets, r) < 0 ? 0 : static_cast<double>(op.scale);
      const auto target = static_cast<int64_t>(get(targets, r)) - op.first_column;
      std::vector<int64_t> some = samples(v);
      some.push_back(std::clamp<int64_t>(columns - 1, 0, v - 1));
      for (const int64_t c : some) {
        const double p = std::exp(in[at(r * v + c)] - get(max, r)) / get(sum, r);
        const double wanted = c >= columns ? 0 : scale * (p - (c == target));
        near_one(found, r * v + c, wanted, 1e-5 * std::abs(wanted));
      }
    }
  }
  void near_norm(const std::vector<Tensor>& xs, float multiplier, float max_norm, double squares) {
    const Tensor bins = tensors_.full(DType::i64, {kExactSumBins}, 0);
    const Tensor norm = tensors_.full(DType::f32, {1}, 0), scale = tensors_.full(DType::f32, {1}, 0);
    run(op::SumOfSquares{xs, bins});
    run(op::ClipScale{bins, multiplier, max_norm, norm, scale});
    const double by = static_cast<double>(multiplier), wanted = by * std::sqrt(squares),
                 most = static_cast<double>(max_norm);
    near_one(norm, 0, wanted), near_one(scale, 0, by * (most > 0 ? std::min(1.0, most / (wanted + 1e-6)) : 1));
  }

  template <class F>
  void each(const Tensor& t, const F& wanted) {
    const int64_t columns = t.shape.rank == 1 ? t.numel() : t.cols();
    for (int64_t r = 0; r < t.numel() / columns; ++r)
      for (const int64_t c : samples(columns)) near_one(t, r * columns + c, wanted(r, c));
  }
  void near_one(const Tensor& t, int64_t i, double wanted, double more = 0) {
    const double found = get(t, i), of_sum = 1e-6 * (1 + std::abs(wanted));
    if (std::abs(found - wanted) <= tolerance(t.dtype, 1, std::abs(wanted)) + of_sum + more) return;
    wrong(t, i, found, wanted);
  }
  void equal_one(const Tensor& t, int64_t i, double wanted) {
    if (const double found = get(t, i); found != wanted) wrong(t, i, found, wanted);
  }
  void wrong(const Tensor& t, int64_t i, double found, double wanted) {
    if (++wrong_ > 3) return;
    ADD_FAILURE() << "element " << i << " of " << to_string(t.shape) << " is " << found << ", expected " << wanted;
  }

  Ops& ops_;
  Stream& stream_;
  Shared& shared_;
  const Sizes how_;
  const bool on_gpu_;
  Tensors tensors_;
  std::mt19937_64 random_;
  std::map<const void*, Tensor> made_;
  double log_of_sum_ = 0;
  int wrong_ = 0;
};

void run_all(Ops& ops, const Sizes& how, Shared& shared, const char* where) {
  const Calls& calls = all_calls();
  shared.gemms.clear();
  const auto device = create_cpu_device();
  const auto stream = device->create_compute_stream();
  size_t number = 0, ran = 0;
  for (const auto& [key, op] : calls.distinct) {
    if (number++ % kMatrixStride != 0) continue;
    ++ran;
    SCOPED_TRACE(key.substr(0, 500));
    Runner runner(ops, *stream, shared, how);
    std::visit([&](const auto& one) { runner(one); }, op);
  }
  std::printf("%s: %zu of %zu distinct calls ran, of %ld; with %zu GEMMs as they are cut\n", where, ran,
              calls.distinct.size(), calls.all, shared.gemms.size());
}

// All at full size on this machine's best instruction set; on the others, large weights are cut as above.
TEST(Census, EveryCallOfTheShippedRunsIsRightOnEachInstructionSet) {
  Shared shared;
  for (const CpuIsa isa : usable_cpu_isas()) {
    // avx512 differs from avx512_bf16 only in bf16 GEMMs, which kernels_test.avx512 covers.
    if (isa == CpuIsa::avx512 && isa != best_cpu_isa()) continue;
    SCOPED_TRACE(name_of(isa));
    const Sizes how = isa == best_cpu_isa() ? Sizes{} : Sizes{.most_weights = 1 << 23, .other_side = 1100};
    run_all(*create_cpu_ops(1, isa), how, shared, name_of(isa).data());
  }
}

TEST(Census, EveryCallOfTheShippedRunsIsRightOnTheEmulatedGpu) {
  const auto ops = create_test_ops(kOnCuda, {.gemm_candidates = 1});
  if (!ops || !gpu_is_emulated()) GTEST_SKIP() << "no emulated GPU";
  Shared shared;
  run_all(*ops, {.most_weights = 0, .other_side = 8, .on_gpu = true}, shared, "the emulated GPU");
}

}  // namespace
}  // namespace trivet::test

// Offsets beyond 2^32 elements: the last rows of a tensor with billions of elements give the same results as those rows
// alone. Each such tensor is a mapping of which only the last rows are touched. Test hooks run only the last blocks of
// a CUDA grid and the last thread's part of a CPU loop, so a case takes milliseconds. A 32-bit offset, signed or
// unsigned, would lead to other rows, which also lie in the mapping.
#include <set>
#include <sys/mman.h>

#include "base/piece.h"
#include "kernels/cpu/test_hooks.h"
#include "tests/support/ops_fixture.h"

#ifdef TRIVET_EMULATED_GPU
#include "tests/emulation/runtime.h"
#endif

namespace trivet::test {
namespace {

constexpr int64_t kElements = int64_t{1} << 32;
constexpr int kThreads = 4096;  // the last thread handles a million elements

// Zeros: only touched pages use memory. More zeros precede data(), because offsets that overflow to negative values
// point there.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(kFront + bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~SparseMemory() { munmap(data_, bytes_); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  void* data() const { return static_cast<std::byte*>(data_) + kFront; }

 private:
  static constexpr int64_t kFront = int64_t{4} << 31;  // 2^31 elements of 4 bytes
  const size_t bytes_;
  void* data_;
};

// One run of a case: on the far tensor, or on only its last rows.
class Trial {
 public:
  Trial(bool far, Ops& ops, Stream& stream) : far(far), ops_(ops), stream_(stream) {}
  // Number of rows of `width` elements. `alone`: their number in the near run.
  int64_t rows(int64_t width, int64_t alone = 3) const { return far ? kElements / width + alone : alone; }
  Tensor zeros(DType dtype, Shape shape) {
    const Tensor t{nullptr, dtype, shape};
    if (!far) return tensors.full(dtype, shape, 0);
    memory_.emplace_back(std::make_unique<SparseMemory>(t.bytes()));
    return {memory_.back()->data(), dtype, shape};
  }
  // Draws the last `count` elements of `t`: the same values in both runs.
  const Tensor& draw(const Tensor& t, int64_t count, double low = -2, double high = 2) {
    std::uniform_real_distribution<double> some(low, high);
    for (int64_t i = t.numel() - count; i < t.numel(); ++i)
      set(t, i, t.dtype == DType::i32 ? std::floor(some(random_)) : some(random_));
    return t;
  }
  // [rows, width], with the last three rows drawn.
  Tensor in(DType dtype, int64_t width, double low = -2, double high = 2) {
    return draw(zeros(dtype, {rows(width), width}), 3 * width, low, high);
  }
  Tensor out(DType dtype, int64_t width) { return zeros(dtype, {rows(width), width}); }
  Tensor small(DType dtype, Shape shape) {  // drawn, the same size in both runs
    const Tensor t = tensors.full(dtype, shape, 0);
    return draw(t, t.numel());
  }
  void operator()(const AnyOp& op) {
    ops_.run(op, stream_);
    stream_.synchronize();
    if (far) seen.insert(op.index());
  }
  // Adds elements of `t` to the results to compare: the last `count`, or `count` of them from `first` on.
  void result(const Tensor& t, int64_t count) { result(t, t.numel() - count, count); }
  void result(const Tensor& t, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) results.push_back(get(t, i));
  }

  const bool far;
  Values results;
  std::set<size_t> seen;
  Tensors tensors;

 private:
  Ops& ops_;
  Stream& stream_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<SparseMemory>> memory_;
};

struct Case {
  const char* name;
  std::function<void(Trial&)> run;
  // For CUDA: the number of blocks run per grid, and the number of multiprocessors, which sets the rows per block.
  uint64_t last_blocks = piece(256, 2048);
  int multiprocessors = 4;
  bool on_cpu = true;
};

constexpr int64_t kWidth = 4096;
constexpr DType kBf16 = DType::bf16, kF32 = DType::f32;

void amax(Trial& run) {
  const Tensor largest = run.tensors.full(kF32, {1}, 0);
  run(op::Amax{run.in(kBf16, kWidth), largest}), run.result(largest, 1);
}

void quantize(Trial& run) {
  const Tensor values = run.out(DType::e4m3, kWidth), two = run.tensors.full(kF32, {1}, 2);
  run(op::Quantize{run.in(kBf16, kWidth), two, values, run.tensors.full(kF32, {1}, 0)});
  run.result(values, 3 * kWidth);
}

void quantize_blocks(Trial& run) {
  for (const bool along_rows : {false, true}) {
    const Tensor x = run.in(kBf16, kWidth), values = run.out(DType::e4m3, kWidth);
    const int64_t rows = x.rows(), down = along_rows ? (rows + 127) / 128 : rows, across = along_rows ? kWidth : 32;
    const Tensor scale = run.zeros(kF32, {1, down, across});
    run(op::Quantize{x, {}, values, scale});
    run.result(values, 3 * kWidth), run.result(scale, along_rows ? kWidth : 3 * across);
  }
}

// Ops on rows [n, kWidth].
void activations(Trial& run) {
  const auto in = [&] { return run.in(kBf16, kWidth); };
  const auto out = [&] { return run.out(kBf16, kWidth); };
  const auto keep = [&](const Tensor& t) { run.result(t, 3 * t.cols()); };
  const Tensor x = in(), dy = in(), y = out(), dx = out();
  run(op::ActivationForward{x, y}), keep(y);
  run(op::ActivationBackward{x, dy, dx}), keep(dx);
  run(op::Add{x, dy, y}), keep(y);
  const Tensor wide = run.out(kF32, kWidth);
  run(op::Convert{x, wide}), keep(wide);
  run(op::Convert{wide, y}), keep(y);
  run(op::Fill{y, 3}), keep(y);
  run.draw(dx, 2 * kWidth);
  run(op::Clear{{dx}}), keep(dx);
  const Tensor gated = run.zeros(kBf16, {x.rows(), 2 * kWidth}), dgated = run.zeros(kBf16, {x.rows(), 2 * kWidth});
  run.draw(gated, 6 * kWidth);
  run(op::ActivationForward{gated, y, Activation::swiglu}), keep(y);
  run(op::ActivationBackward{gated, dy, dgated, Activation::swiglu}), keep(dgated);
}

void residual_stream(Trial& run) {
  const int64_t n = run.rows(kWidth);
  const Shape cube{n, 1, kWidth};
  const Tensor x = run.in(kBf16, kWidth).view(cube), residual = run.in(kBf16, kWidth).view(cube);
  const Tensor y = run.out(kBf16, kWidth).view(cube), dx = run.out(kBf16, kWidth).view(cube);
  // The last rows have the same positions in both runs.
  const Dropout dropout{.probability = 0.3f,
                        .seed = 5,
                        .site = 6,
                        .first_sample = run.tensors.number(7),
                        .seq_length = kElements / kWidth + 3,
                        .positions = {kElements / kWidth + 3 - n}};
  const auto keep = [&](const Tensor& t) { run.result(t, 3 * kWidth); };
  run(op::BiasDropoutAdd{x, run.small(kBf16, {kWidth}), residual, dropout, y}), keep(y);
  run(op::DropoutBackward{x, dropout, dx}), keep(dx);
  run(op::PositionForward{x, run.in(kBf16, kWidth), dropout, y}), keep(y);
  const Tensor dpositions = run.in(kF32, kWidth);
  run(op::PositionBackward{residual, dropout, dx, dpositions}), keep(dx), keep(dpositions);
}

void embedding(Trial& run) {
  constexpr int64_t kWide = 65536, kColumns = 16;  // CPU threads split the columns
  const int64_t n = run.rows(kWide), before = kElements / kWide + 3 - n;
  const Tensor tokens = run.tensors.full(DType::i32, {n, 1}, -1), few = run.tensors.of(DType::i32, {2, 0, 2, 1});
  for (int64_t i = 0; i < 3; ++i) set(tokens, n - 3 + i, static_cast<double>(i % 2));
  const Tensor small = run.small(kBf16, {2, kWide}), out = run.out(kBf16, kWide).view({n, 1, kWide});
  run(op::EmbeddingForward{tokens, small, 0, out}), run.result(out, 3 * kWide);
  // The last rows of a table.
  for (int64_t i = 0; i < few.numel(); ++i) set(few, i, get(few, i) + static_cast<double>(kElements / kWide));
  const Tensor table = run.in(kBf16, kWide), of_few = run.tensors.full(kBf16, {4, 1, kWide}, 0);
  run(op::EmbeddingForward{few, table, before, of_few}), run.result(of_few, kWide);
  const Tensor dtable = run.in(kF32, kWide);
  run(op::EmbeddingBackward{few, run.small(kBf16, {4, kWide}), before, dtable}), run.result(dtable, kColumns);
  const Tensor dsmall = run.small(kF32, {2, kWide});
  run(op::EmbeddingBackward{tokens, run.in(kBf16, kWide), 0, dsmall}), run.result(dsmall, kColumns);
}

void loss(Trial& run) {
  for (const int64_t v : {int64_t{40000}, int64_t{152064}}) {  // rows that fit in shared memory, and rows that do not
    const int64_t n = run.rows(v);
    const Tensor targets = run.draw(run.zeros(DType::i32, {n}), 3, 0, static_cast<double>(v));
    const Tensor max = run.zeros(kF32, {n}), sum = run.zeros(kF32, {n}), logit = run.zeros(kF32, {n});
    const auto keep = [&](const Tensor& t) { run.result(t, t.numel() / n * 3); };
    for (const bool with_gradient : {false, true}) {
      const Tensor logits = run.in(kBf16, v);
      run(op::CrossEntropyForward{logits, targets, 0, v - 7, max, sum, logit, with_gradient ? logits : Tensor{}, 0.5f});
      keep(max), keep(sum), keep(logit);
      if (!with_gradient) run(op::CrossEntropyBackward{logits, targets, 0, v - 7, max, sum, 0.5f});
      keep(logits);
    }
  }
}

void rescale(Trial& run) {
  const Tensor sums = run.in(kF32, 1);
  run(op::CrossEntropyRescale{run.in(kF32, 1), run.in(kF32, 1), sums}), run.result(sums, 3);
}

void column_sum(Trial& run) {
  constexpr int64_t kRows = 1027, kColumns = 32;
  const int64_t columns = run.far ? kElements / 1024 : 256;
  const Tensor x = run.zeros(kBf16, {kRows, columns}), sum = run.zeros(kF32, {columns});
  std::mt19937_64 random;
  for (int64_t row = kRows - 5; row < kRows; ++row)
    for (int64_t c = columns - kColumns; c < columns; ++c) set(x, row * columns + c, static_cast<int>(random() % 9));
  run(op::ColumnSum{x, sum}), run.result(sum, kColumns);
}

void norm_forward(Trial& run) {
  const int64_t n = run.rows(kWidth);
  for (const bool centred : {true, false}) {
    const Tensor x = run.in(kBf16, kWidth), y = run.out(kBf16, kWidth), rstd = run.zeros(kF32, {n});
    const Tensor mean = centred ? run.zeros(kF32, {n}) : Tensor{}, gamma = run.small(kBf16, {kWidth});
    run(op::LayernormForward{x, gamma, centred ? run.small(kBf16, {kWidth}) : Tensor{}, 1e-5f, y, mean, rstd});
    run.result(y, 3 * kWidth), run.result(rstd, 3);
  }
}

// One block of n / parts rows, of which the last is drawn; the weight gradients lack the other blocks' terms.
void norm_backward(Trial& run) {
  const int64_t n = run.rows(kWidth, 2048);
  for (const bool centred : {true, false}) {
    const auto some = [&](DType dtype, int64_t width) { return run.draw(run.zeros(dtype, {n, width}), width); };
    const auto per_row = [&] { return some(kF32, 1).view({n}); };
    const Tensor dx = run.zeros(kBf16, {n, kWidth});
    run(op::LayernormBackward{.dy = some(kBf16, kWidth),
                              .x = some(kBf16, kWidth),
                              .gamma = run.small(kBf16, {kWidth}),
                              .mean = centred ? per_row() : Tensor{},
                              .rstd = per_row(),
                              .residual = some(kBf16, kWidth),
                              .dx = dx,
                              .dgamma = run.small(kF32, {kWidth}),
                              .dbeta = centred ? run.small(kF32, {kWidth}) : Tensor{}});
    run.result(dx, kWidth);
  }
}

// The heads of the last batch entry, at `s` positions.
struct Attention {
  int64_t s, b, heads, kv_heads, d;
  Tensor qkv;
  int64_t columns() const { return (heads + 2 * kv_heads) * d; }
  Attention(Trial& run, DType dtype, int64_t s, int64_t far_b, int64_t heads, int64_t kv_heads, int64_t d)
      : s(s),
        b(run.far ? far_b : 1),
        heads(heads),
        kv_heads(kv_heads),
        d(d),
        qkv(tensor(run, dtype, columns(), true)) {}
  Tensor tensor(Trial& run, DType dtype, int64_t width, bool drawn = false) const {
    const Tensor t = run.zeros(dtype, {s, b, width});
    for (int64_t p = 0; drawn && p < s; ++p) run.draw(t.slice(0, p + 1), width);
    return t;
  }
  void keep(Trial& run, const Tensor& t) const {
    const int64_t width = t.cols();
    for (int64_t p = 0; p < s; ++p) run.result(t, (p * b + b - 1) * width, width);
  }
  QkvViews views(const Tensor& t) const { return qkv_views(t, heads, kv_heads); }
};

void rope(Trial& run) {
  const Attention a(run, kBf16, 4, 1 << 21, 8, 4, 64);
  run(op::Rope{.q = a.views(a.qkv).q, .k = a.views(a.qkv).k, .table = run.small(kF32, {a.s, 64})});
  run.result(a.qkv, a.columns());  // the last blocks handle the last position
}

void copy_heads(Trial& run) {
  const Attention a(run, kBf16, 4, 1 << 21, 8, 4, 64);
  const Tensor to = a.tensor(run, kBf16, a.columns(), true);
  run(op::CopyHeads{.from = a.views(a.qkv).k, .to = a.views(to).v, .accumulate = true});
  run.result(to, a.columns());
}

void merge(Trial& run) {
  const Attention a(run, kBf16, 1, (1 << 23) + 1, 8, 4, 64);
  const auto sums = [&] { return run.zeros(kF32, {a.b, a.heads, a.s}); };
  const Tensor out = a.tensor(run, kF32, a.heads * a.d, true), more = a.tensor(run, kBf16, a.heads * a.d, true);
  const Tensor lse = sums();
  run(op::AttentionMerge{.more = more, .more_lse = sums(), .out = out, .lse = lse});
  run.result(out, a.heads * a.d), run.result(lse, a.heads * a.s);
}

// Norms of the query heads in [s, b, columns].
void norm_of_heads(Trial& run) {
  const Attention a(run, kBf16, 1, (1 << 22) + 1, 8, 4, 64);
  const auto row = [&] { return run.zeros(kF32, {a.b * a.heads}); };
  const Tensor y = a.tensor(run, kBf16, a.columns()), rstd = row(), gamma = run.small(kBf16, {a.d});
  const op::NormRows rows{a.views(a.qkv).q.rows(), a.views(y).q.rows()};
  run(op::LayernormForward{
      .x = a.qkv, .gamma = gamma, .beta = {}, .eps = 1e-5f, .y = y, .mean = {}, .rstd = rstd, .rows = rows});
  a.keep(run, y), run.result(rstd, a.heads);
}

void attention(Trial& run, DType dtype, float dropped) {
  constexpr int64_t kEntries = 65'000;
  const Attention a(run, dtype, 70, kEntries, 8, 4, 128);
  const Tensor out = a.tensor(run, dtype, a.heads * a.d), lse = run.zeros(kF32, {a.b, a.heads, a.s});
  const Dropout dropout{.probability = dropped,
                        .seed = 5,
                        .site = 6,
                        .first_sample = run.tensors.number(kEntries - a.b),
                        .seq_length = a.s,
                        .total_heads = a.heads};
  run(op::AttentionForward{a.views(a.qkv), out, lse, dropout});
  a.keep(run, out), run.result(lse, a.heads * a.s);
  const Tensor dqkv = a.tensor(run, dtype, a.columns()), dout = a.tensor(run, dtype, a.heads * a.d, true);
  run(op::AttentionBackward{dout, a.views(a.qkv), out, lse, a.views(dqkv), dropout});
  a.keep(run, dqkv);
}

// lse with more than 2^32 elements.
void attention_of_many_heads(Trial& run) {
  const Attention a(run, kBf16, 64, (1 << 23) + 1, 8, 8, 8);
  const Tensor out = a.tensor(run, kBf16, a.heads * a.d), lse = run.zeros(kF32, {a.b, a.heads, a.s});
  run(op::AttentionForward{a.views(a.qkv), out, lse});
  a.keep(run, out), run.result(lse, a.heads * a.s);
}

void optimizer(Trial& run) {
  const auto flat = [&](DType dtype, double low) { return run.in(dtype, kWidth, low, 2); };
  const AdamWShard shard{flat(kF32, -2), flat(kF32, -2), flat(kF32, -2), flat(kF32, 0), run.out(kBf16, kWidth)};
  run(op::AdamWStep{
      .shards = {{shard}}, .grad_scale = run.tensors.full(kF32, {1}, 0.5), .how = {.learning_rate = 0.1f}});
  for (const Tensor& t : std::initializer_list<Tensor>{shard.weight, shard.m, shard.v, shard.model_weight})
    run.result(t, 3 * kWidth);
}

// The grid sweeps over 2^30 elements at a time; in each sweep, the last block handles the last elements.
void searches(Trial& run) {
  const int64_t n = run.far ? 5 * (int64_t{1} << 30) : 512;
  const Tensor x = run.draw(run.zeros(kF32, {n}), 300), bins = run.tensors.full(DType::i64, {kExactSumBins}, 0);
  run(op::SumOfSquares{{x}, bins}), run.result(bins, kExactSumBins);
  set(x, n - 2, std::numeric_limits<double>::quiet_NaN()), set(x, n - 1, std::numeric_limits<double>::infinity());
  const Tensor found = run.tensors.full(DType::i64, {kNonFiniteNumbers}, 0);
  run(op::FindNonFinite{.x = x, .found = found});
  run.results.push_back(static_cast<double>(element_of_mark(found.as<int64_t>()[0]) - n)), run.result(found, 2);
}

// The last position, which the far run stores beyond 2^32 elements, against the definition.
void rotary_table(Trial& run) {
  constexpr int64_t kPairs = 4;
  const int64_t n = run.rows(2 * kPairs);
  const Rotary rotary{.width = 2 * kPairs};
  const Tensor table = run.out(kF32, 2 * kPairs);
  run(op::RotaryTable{rotary, table});
  for (int64_t i = 0; i < kPairs; ++i) {
    const double angle = static_cast<double>(n - 1) * rotary_frequency(rotary, i);
    const int64_t at = (n - 1) * 2 * kPairs + i;
    run.results.push_back(std::abs(get(table, at) - std::cos(angle)) < 1e-6);
    run.results.push_back(std::abs(get(table, at + kPairs) - std::sin(angle)) < 1e-6);
    EXPECT_TRUE(run.results.back());
  }
}

// The code around the library: an empty sum (k = 0), and a bias that the library does not add.
void gemm(Trial& run) {
  const int64_t n = run.rows(kWidth);
  const Tensor bias = run.small(kBf16, {kWidth}), c = run.out(kBf16, kWidth), sum = run.out(kF32, kWidth);
  const Tensor a = run.tensors.full(kBf16, {1}, 0), b = run.tensors.full(kBf16, {8, kWidth}, 0);
  run(op::Matmul{.a = Tensor{a.data, kBf16, {0, n}},
                 .b = Tensor{b.data, kBf16, {0, kWidth}},
                 .c = c,
                 .transpose_a = true,
                 .bias = bias});
  run.result(c, 3 * kWidth);
  run(op::Matmul{.a = run.zeros(kBf16, {n, 8}), .b = b, .c = sum, .bias = bias});
  run.result(sum, 3 * kWidth);
}

const Case kCases[] = {
    {"activations, conversions and fills", activations},
    {"largest magnitude", amax, piece(8, 16), piece(1 << 19, 1 << 20)},
    {"quantisation", quantize},
    {"quantisation in blocks", quantize_blocks, 32},
    {"residuals, dropout and positions", residual_stream},
    {"embedding", embedding},
    {"cross-entropy", loss},
    {"rescaled sums", rescale, 256, 4, false},
    {"column sums", column_sum},
    {"norms forward", norm_forward},
    {"norms backward", norm_backward, 1, 512},
    {"norms of heads", norm_of_heads},
    {"rope", rope},
    {"copies of heads", copy_heads},
    {"merged attention", merge, 512, 512},
    {"attention, plain", [](Trial& run) { attention(run, kF32, 0.2f); }, 140},
    {"attention by tensor cores", [](Trial& run) { attention(run, kBf16, 0); }, 70},
    {"attention of many heads", attention_of_many_heads, 512},
    {"AdamW", optimizer},
    {"searches", searches, 1, 1 << 16},
    {"rotary table", rotary_table},
    {"matmul", gemm, 256, 4, false},
};

// Ops on few elements, and ops in which a single block or CPU thread handles all rows.
bool has_no_far_rows(size_t op, bool on_cuda) {
  if (!on_cuda && (op == AnyOp(op::Matmul{}).index() || op == AnyOp(op::CrossEntropyRescale{}).index())) return true;
  for (const AnyOp& each :
       {AnyOp(op::CrossEntropyLoss{}), AnyOp(op::ClipScale{}), AnyOp(op::CountLabels{}), AnyOp(op::AcceptStep{})})
    if (each.index() == op) return true;
  return false;
}

class FarOffsets : public testing::TestWithParam<int> {
 protected:
  const bool on_cuda = GetParam() == kOnCuda;
  void TearDown() override { set_hooks(0); }
  void set_hooks(uint64_t last_blocks) const {
    if (!on_cuda) only_last_parts = last_blocks > 0;
#ifdef TRIVET_EMULATED_GPU
    else trivet::emulation::driver().last_blocks = last_blocks;
#endif
  }
  void expect_far_is_near(const Case& c, Device& device, std::set<size_t>& seen) {
    SCOPED_TRACE(c.name);
#ifdef TRIVET_EMULATED_GPU
    const int multiprocessors = trivet::emulation::driver().multiprocessors;
    trivet::emulation::driver().multiprocessors = c.multiprocessors;
#endif
    const auto ops = on_cuda ? create_cuda_ops(device, {.gemm_candidates = 1, .hopper_attention = false})
                             : create_cpu_ops(kThreads, tested_cpu_isa());
#ifdef TRIVET_EMULATED_GPU
    trivet::emulation::driver().multiprocessors = multiprocessors;
#endif
    const auto stream = device.create_compute_stream();
    Trial near(false, *ops, *stream), far(true, *ops, *stream);
    set_hooks(0);
    if (on_cuda) c.run(near);
    else {  // on one thread
      const auto few = create_cpu_ops(1, tested_cpu_isa());
      Trial alone(false, *few, *stream);
      c.run(alone);
      near.results = alone.results;
    }
    set_hooks(c.last_blocks);
    c.run(far);
    set_hooks(0);
    seen.insert(far.seen.begin(), far.seen.end());
    ASSERT_EQ(far.results.size(), near.results.size());
    int64_t differ = 0, zeros = 0;
    for (size_t i = 0; i < near.results.size(); ++i) {
      if (!(far.results[i] == near.results[i]) && ++differ <= 3)
        ADD_FAILURE() << "result " << i << " is " << far.results[i] << ", alone " << near.results[i];
      zeros += near.results[i] == 0;
    }
    EXPECT_EQ(differ, 0) << "of " << near.results.size();
    EXPECT_LT(zeros, static_cast<int64_t>(near.results.size())) << "all results are 0";
  }
};
INSTANTIATE_TEST_SUITE_P(BackEnds, FarOffsets, testing::Values(1, kOnCuda),
                         [](const auto& info) { return std::string(info.param == kOnCuda ? "cuda" : "cpu"); });

TEST_P(FarOffsets, LeadToTheSameRowsAsNearOnes) {
  if (!on_cuda && !cpu_isa_problem(tested_cpu_isa()).empty()) GTEST_SKIP() << "a CPU without the instructions";
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer leaves a program too few addresses";
#endif
  std::unique_ptr<Device> device = create_cpu_device();
  if (on_cuda) {
#ifdef TRIVET_EMULATED_GPU
    device = create_cuda_device(0);
#else
    GTEST_SKIP() << "a GPU has no memory for it, and no hook";
#endif
  }
  std::set<size_t> seen;
  try {
    for (const Case& c : kCases)
      if (on_cuda || c.on_cpu) expect_far_is_near(c, *device, seen);
  } catch (const std::bad_alloc&) {
    GTEST_SKIP() << "no addresses for sparse mappings";
  }
  for (size_t op = 0; op < std::variant_size_v<AnyOp>; ++op)
    EXPECT_TRUE(seen.count(op) || has_no_far_rows(op, on_cuda)) << "op " << op << " of TRIVET_OPS has no case";
}

}  // namespace
}  // namespace trivet::test

#include "kernels/graph_ops.h"

#include <bit>

namespace trivet {
namespace {

// ---- what decides a call, as numbers. Structs are taken apart by name, so that a member more does not compile.

using Key = std::vector<uint64_t>;

uint64_t address(const void* data) { return reinterpret_cast<uintptr_t>(data); }

void add_to(Key& key, int64_t value) { key.push_back(static_cast<uint64_t>(value)); }
void add_to(Key& key, float value) { key.push_back(std::bit_cast<uint32_t>(value)); }

void add_to(Key& key, const Tensor& tensor) {
  const auto& [data, dtype, shape] = tensor;
  key.push_back(address(data));
  if (!data) return;
  key.push_back(static_cast<uint64_t>(dtype) << 32 | static_cast<uint64_t>(shape.rank));
  for (int i = 0; i < shape.rank; ++i) add_to(key, shape[i]);
}

void add_to(Key& key, const Dropout& dropout) {
  const auto& [probability, seed, site, first_sample, seq_length, first_position, first_head, total_heads] = dropout;
  add_to(key, probability);
  key.insert(key.end(), {seed, site});
  add_to(key, first_sample);
  for (const int64_t number : {seq_length, first_position, first_head, total_heads}) add_to(key, number);
}

void add_to(Key& key, const Ops::Attention& attention) {
  const auto& [heads, dropout] = attention;
  add_to(key, heads);
  add_to(key, dropout);
}

void add_to(Key& key, const Ops::Matmul& how) {
  const auto& [transpose_a, transpose_b, accumulate, bias, before_gelu, gelu_backward] = how;
  key.push_back(static_cast<uint64_t>(transpose_a | transpose_b << 1 | accumulate << 2));
  for (const Tensor* tensor : {&bias, &before_gelu, &gelu_backward}) add_to(key, *tensor);
}

// A launch costs the host about what a call does.
constexpr size_t kFewestCalls = 2;

}  // namespace

GraphOps::GraphOps(Ops& ops, Device& device, int64_t most_calls) : ops_(ops), device_(device), most_calls_(most_calls) {
  check(device.captures(), "GraphOps needs a device that has graphs");
}

GraphOps::~GraphOps() = default;

size_t GraphOps::Hash::operator()(const Key& key) const {
  uint64_t hash = key.size();
  for (const uint64_t word : key) hash = std::rotl((hash ^ word) * 0x9E3779B97F4A7C15ull, 29);
  return static_cast<size_t>(hash);
}

void GraphOps::begin(Stream& stream) {
  check(!stream_, "GraphOps::over runs inside another one");
  stream_ = &stream;
}

void GraphOps::end() {
  stream_->hold(nullptr);
  stream_ = nullptr;
  key_.clear();
  calls_.clear();
}

template <class Op, class... Arguments>
void GraphOps::call(const char* name, Op op, Stream& stream, const Arguments&... arguments) {
  if (&stream != stream_) return (ops_.*op)(arguments..., stream);
  if (calls_.empty()) {
    key_.assign(1, address(&stream));
    stream.hold([this] { queue_segment(); });
  }
  key_.push_back(address(name));  // the text of each operation's name is in one place
  (add_to(key_, arguments), ...);
  calls_.emplace_back([this, op, &stream, arguments...] { (ops_.*op)(arguments..., stream); });
}

template <class Op, class... Arguments>
void GraphOps::call_once_a_step(const char*, Op op, Stream& stream, const Arguments&... arguments) {
  (ops_.*op)(arguments..., stream);
}

void GraphOps::queue_segment() {
  const auto queue_calls = [this] {
    for (const auto& call : calls_) call();
  };
  const auto count = static_cast<int64_t>(calls_.size());
  counts_.calls += count;
  const auto found = graphs_.find(key_);
  if (calls_.size() < kFewestCalls) {
    queue_calls();
  } else if (found == graphs_.end()) {
    queue_calls();
    if (kept_calls_ + count <= most_calls_) {
      graphs_.emplace(key_, nullptr);
      kept_calls_ += count;
    }
  } else {
    if (!found->second) {
      found->second = device_.capture(*stream_, queue_calls);
      ++counts_.graphs;
    }
    found->second->launch(*stream_);
    ++counts_.launches;
    counts_.replayed += count;
  }
  calls_.clear();
}

}  // namespace trivet

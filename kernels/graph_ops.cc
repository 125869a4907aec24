#include "kernels/graph_ops.h"

#include <bit>

namespace trivet {
namespace {

using Key = std::vector<uint64_t>;

uint64_t address(const void* data) { return reinterpret_cast<uintptr_t>(data); }

// Everything that determines a call, as numbers.
template <class T>
void add_to(Key& key, T number) {
  if constexpr (std::is_same_v<T, float>) key.push_back(std::bit_cast<uint32_t>(number));
  else key.push_back(static_cast<uint64_t>(number));
}

void add_to(Key& key, const Tensor& tensor) {
  const auto& [data, dtype, shape] = tensor;  // fails to compile if Tensor gains a member
  key.push_back(address(data));
  if (!data) return;
  key.push_back(static_cast<uint64_t>(dtype) << 32 | static_cast<uint64_t>(shape.rank));
  for (int i = 0; i < shape.rank; ++i) add_to(key, shape[i]);
}

// The optimizer's ops, and those that take lists, run once per step, and the rotary table is computed only once, so a
// graph would save nothing.
template <class Op>
constexpr bool kOnceAStep =
    Op::kSpan.category == Category::optimizer || std::is_same_v<Op, op::Clear> || std::is_same_v<Op, op::RotaryTable>;

// A graph launch costs the host about as much as a call.
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

void GraphOps::run(const AnyOp& any, Stream& stream) {
  const bool records = &stream == stream_ && std::visit([]<class Op>(const Op&) { return !kOnceAStep<Op>; }, any);
  if (!records) return ops_.run(any, stream);
  if (calls_.empty()) {
    key_.assign(1, address(&stream));
    stream.hold([this] { queue_segment(); });
  }
  key_.push_back(any.index());
  std::visit(
      [this]<class Op>(const Op& op) {
        if constexpr (!kOnceAStep<Op>)
          for_each_field(op, [this]<class T>(const T& field) {
            if constexpr (is_argument<T>) add_to(key_, static_cast<const Tensor&>(field));
            else add_to(key_, field);
          });
      },
      any);
  calls_.push_back(any);
}

void GraphOps::queue_segment() {
  SpanLabel label = stream_->label();
  label.first_unit = label.last_unit = -1;  // the segment may span several units
  const ScopedLabel scope(*stream_, label);
  const auto queue_calls = [this] {
    for (const AnyOp& call : calls_) ops_.run(call, *stream_);
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

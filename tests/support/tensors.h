// Tensors for op tests: random or poisoned, read back as doubles, compared.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/base/fp8.h"

namespace trivet::test {

using Values = std::vector<double>;

inline double get(const Tensor& t, int64_t i) {
  switch (t.dtype) {
    case DType::f32: return t.as<float>()[i];
    case DType::bf16: return static_cast<float>(t.as<bf16>()[i]);
    case DType::i32: return t.as<int32_t>()[i];
    case DType::i64: return static_cast<double>(t.as<int64_t>()[i]);
    case DType::u8: return t.as<uint8_t>()[i];
    case DType::e4m3: return E4m3::decode(static_cast<uint8_t*>(t.data)[i]);
    case DType::e5m2: return E5m2::decode(static_cast<uint8_t*>(t.data)[i]);
  }
  return 0;
}

inline void set(const Tensor& t, int64_t i, double value) {
  switch (t.dtype) {
    case DType::f32: t.as<float>()[i] = static_cast<float>(value); break;
    case DType::bf16: t.as<bf16>()[i] = bf16(static_cast<float>(value)); break;
    case DType::i32: t.as<int32_t>()[i] = static_cast<int32_t>(value); break;
    case DType::i64: t.as<int64_t>()[i] = static_cast<int64_t>(value); break;
    case DType::u8: t.as<uint8_t>()[i] = static_cast<uint8_t>(value); break;
    case DType::e4m3: static_cast<uint8_t*>(t.data)[i] = E4m3::encode(static_cast<float>(value)); break;
    case DType::e5m2: static_cast<uint8_t*>(t.data)[i] = E5m2::encode(static_cast<float>(value)); break;
  }
}

inline Values values(const Tensor& t) {
  Values all(static_cast<size_t>(t.numel()));
  for (int64_t i = 0; i < t.numel(); ++i) all[static_cast<size_t>(i)] = get(t, i);
  return all;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.numel() == b.numel() &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
}

// Makes tensors in host memory, each in its own block, so that AddressSanitizer guards its ends.
class Tensors {
 public:
  explicit Tensors(uint64_t seed = 1) : random_(seed) {}

  // Filled with values that no op should leave: NaN, or the largest integer.
  Tensor poisoned(DType dtype, Shape shape) {
    const Tensor t = arena_.allocate(dtype, shape);
    for (int64_t i = 0; i < t.numel(); ++i) {
      if (dtype == DType::i64) t.as<int64_t>()[i] = std::numeric_limits<int64_t>::max();
      else if (dtype == DType::i32) t.as<int32_t>()[i] = std::numeric_limits<int32_t>::max();
      else set(t, i, dtype == DType::u8 ? 255 : std::numeric_limits<double>::quiet_NaN());
    }
    return t;
  }
  Tensor uniform(DType dtype, Shape shape, double low = -1, double high = 1) {
    std::uniform_real_distribution<double> draw(low, high);
    return make(dtype, shape, [&](int64_t) { return draw(random_); });
  }
  Tensor integers(DType dtype, Shape shape, int64_t low, int64_t high) {  // inclusive
    std::uniform_int_distribution<int64_t> draw(low, high);
    return make(dtype, shape, [&](int64_t) { return static_cast<double>(draw(random_)); });
  }
  Tensor full(DType dtype, Shape shape, double value) {
    return make(dtype, shape, [=](int64_t) { return value; });
  }
  Tensor number(int64_t value) { return full(DType::i64, {1}, static_cast<double>(value)); }  // [1], below 2^53
  Tensor of(DType dtype, const Values& all) {
    return make(dtype, {static_cast<int64_t>(all.size())}, [&](int64_t i) { return all[static_cast<size_t>(i)]; });
  }
  Tensor make(DType dtype, Shape shape, const std::function<double(int64_t)>& value) {
    const Tensor t = arena_.allocate(dtype, shape);
    for (int64_t i = 0; i < t.numel(); ++i) set(t, i, value(i));
    return t;
  }
  Tensor copy(const Tensor& from) {
    const Tensor t = arena_.allocate(from.dtype, from.shape);
    std::memcpy(t.data, from.data, static_cast<size_t>(from.bytes()));
    return t;
  }
  std::mt19937_64& random() { return random_; }
  Device& device() { return *device_; }

 private:
  std::unique_ptr<Device> device_ = create_cpu_device();
  Arena arena_{*device_, "test"};
  std::mt19937_64 random_;
};

// Each element is within `tolerance` (a number, or a function of the index); reports the first one that is not.
template <class Tolerance>
testing::AssertionResult near(const Tensor& found, const Values& expected, const Tolerance& tolerance) {
  if (found.numel() != static_cast<int64_t>(expected.size()))
    return testing::AssertionFailure() << found.numel() << " elements, expected " << expected.size();
  for (int64_t i = 0; i < found.numel(); ++i) {
    double allowed;
    if constexpr (std::is_arithmetic_v<Tolerance>) allowed = tolerance;
    else allowed = tolerance(i);
    const double f = get(found, i), e = expected[static_cast<size_t>(i)];
    if (!(f == e || std::abs(f - e) <= allowed))  // a NaN is near nothing
      return testing::AssertionFailure() << "element " << i << " of " << to_string(found.shape) << " "
                                         << name_of(found.dtype) << " is " << f << ", expected " << e << " within "
                                         << allowed;
  }
  return testing::AssertionSuccess();
}

// `run` throws an Error whose text contains all `parts`.
inline testing::AssertionResult throws_naming(const std::function<void()>& run, const std::vector<std::string>& parts) {
  try {
    run();
  } catch (const Error& error) {
    for (const std::string& part : parts)
      if (std::string(error.what()).find(part) == std::string::npos)
        return testing::AssertionFailure() << "'" << error.what() << "' does not name '" << part << "'";
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace trivet::test

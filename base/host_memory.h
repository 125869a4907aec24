// Failed host memory allocations: the error names the purpose, the size and the limit that was hit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>

namespace trivet {

// Names the purpose of this thread's allocations during its lifetime; the innermost one wins. `name` may come from a
// file; messages truncate it if necessary.
class MemoryPurpose {
 public:
  explicit MemoryPurpose(const char* what, std::string_view name = {}) : outer_(current_), what_(what), name_(name) {
    current_ = this;
  }
  ~MemoryPurpose() { current_ = outer_; }
  MemoryPurpose(const MemoryPurpose&) = delete;
  MemoryPurpose& operator=(const MemoryPurpose&) = delete;

  static const MemoryPurpose* current() { return current_; }
  const char* what() const { return what_; }
  std::string_view name() const { return name_; }

 private:
  static inline thread_local const MemoryPurpose* current_ = nullptr;
  const MemoryPurpose* outer_;
  const char* what_;
  std::string name_;
};

// Thrown by operator new (host_memory.cc replaces it; sanitizers have their own).
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(size_t bytes) noexcept;
  const char* what() const noexcept override { return text_.data(); }

 private:
  std::array<char, 512> text_{};  // formatted in place: there may be no memory for a string
};

// The limit that this process will hit first: its own (ulimit), its control group's, or the machine's.
struct MemoryLimit {
  int64_t bytes = 0;
  int64_t used = 0;  // bytes that this process uses
  const char* name = "";
  int64_t left() const { return bytes - used; }
};
MemoryLimit memory_limit() noexcept;  // allocates nothing
std::string to_string(const MemoryLimit& limit);

}  // namespace trivet

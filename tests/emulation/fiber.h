// Fiber: code on a stack of its own, which runs until it yields, and continues from there when it is resumed. An
// emulated GPU thread is one. A fiber belongs to the first thread that resumes it.
#pragma once

#include <cstddef>
#include <functional>

namespace trivet::emulation {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;

  // Runs `work` when next resumed. REQUIRES: done().
  void begin(const std::function<void()>& work);
  // Runs the fiber until it yields or its work is done. Not from within a fiber.
  void resume();
  // Yields to the code that resumed the running fiber.
  static void give_back();
  bool done() const { return work_ == nullptr; }

  static constexpr size_t kStackBytes = 256 << 10;  // the system commits pages as they are used

 private:
  static void run();
  void enter(void*& from, void* to, bool into_fiber);

  std::byte* stack_;
  void* fiber_at_ = nullptr;    // stack pointer at which the fiber continues,
  void* resumer_at_ = nullptr;  // and that of the code that resumed it
  const std::function<void()>* work_ = nullptr;
  // The sanitizers' state for switching stacks.
  void* fiber_frames_ = nullptr;
  void* resumer_frames_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
  void* fiber_thread_ = nullptr;  // their identities in ThreadSanitizer
  void* resumer_thread_ = nullptr;
};

}  // namespace trivet::emulation

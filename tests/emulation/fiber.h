// Fiber: a piece of code on a stack of its own, which runs until it gives the thread back and goes on where it was when
// it is resumed. An emulated GPU thread is one. A fiber belongs to the thread that resumes it first.
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
  // Runs the fiber until it gives back or its work is done. Not from within a fiber.
  void resume();
  // Back to who resumed the fiber that is running.
  static void give_back();
  bool done() const { return work_ == nullptr; }

  static constexpr size_t kStackBytes = 256 << 10;  // taken from the system page by page, as it is used

 private:
  static void run();
  void enter(void*& from, void* to, bool into_fiber);

  std::byte* stack_;
  void* fiber_at_ = nullptr;    // stack pointers: where the fiber goes on,
  void* resumer_at_ = nullptr;  // and who resumed it
  const std::function<void()>* work_ = nullptr;
  // What the sanitizers must know of a change of stacks.
  void* fiber_frames_ = nullptr;
  void* resumer_frames_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
  void* fiber_thread_ = nullptr;  // who they are to ThreadSanitizer
  void* resumer_thread_ = nullptr;
};

}  // namespace trivet::emulation

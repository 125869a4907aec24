#include "tests/emulation/fiber.h"

#include <cstdint>
#include <sys/mman.h>

#include "base/check.h"
#include "tests/emulation/order.h"

#if defined(TRIVET_ADDRESS_SANITIZER)
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers, and the stack pointer at *save; resumes at `load`. (The C library's swapcontext
// makes two system calls for signal masks each time, and takes fifty times as long.)
extern "C" void trivet_switch_stack(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl trivet_switch_stack
.type trivet_switch_stack, @function
trivet_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size trivet_switch_stack, .-trivet_switch_stack
)");
constexpr int kSaved = 6;
#else
#error "the emulation of CUDA changes stacks by x86-64 instructions"
#endif

namespace trivet::emulation {
namespace {

thread_local Fiber* running = nullptr;

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for the stack of an emulated GPU thread");
  stack_ = static_cast<std::byte*>(memory);
  // As if run() had been called and had switched away at its first instruction: aligned as at a function's entry.
  auto* top = reinterpret_cast<void**>(stack_ + kStackBytes) - 1;  // where a return address would be
  *--top = reinterpret_cast<void*>(&Fiber::run);
  for (int i = 0; i < kSaved; ++i) *--top = nullptr;
  fiber_at_ = top;
#if defined(TRIVET_THREAD_SANITIZER)
  fiber_thread_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(TRIVET_THREAD_SANITIZER)
  __tsan_destroy_fiber(fiber_thread_);
#endif
  munmap(stack_, kStackBytes);
}

void Fiber::begin(const std::function<void()>& work) {
  work_ = &work;
  leaves(this);
}

void Fiber::resume() {
  running = this;
  enter(resumer_at_, fiber_at_, true);
  running = nullptr;
  if (done()) passes(this);
}

void Fiber::give_back() {
  Fiber& self = *running;
  self.enter(self.fiber_at_, self.resumer_at_, false);
}

void Fiber::enter(void*& from, void* to, [[maybe_unused]] bool into_fiber) {
#if defined(TRIVET_ADDRESS_SANITIZER)
  if (into_fiber) __sanitizer_start_switch_fiber(&resumer_frames_, stack_, kStackBytes);
  else __sanitizer_start_switch_fiber(&fiber_frames_, resumer_stack_, resumer_stack_bytes_);
#elif defined(TRIVET_THREAD_SANITIZER)
  if (into_fiber) resumer_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(into_fiber ? fiber_thread_ : resumer_thread_, __tsan_switch_to_fiber_no_sync);
#endif
  trivet_switch_stack(&from, to);
#if defined(TRIVET_ADDRESS_SANITIZER)
  if (into_fiber) __sanitizer_finish_switch_fiber(resumer_frames_, nullptr, nullptr);
  else __sanitizer_finish_switch_fiber(fiber_frames_, &resumer_stack_, &resumer_stack_bytes_);
#endif
}

// The bottom of every fiber's stack: runs one piece of work after another.
void Fiber::run() {
#if defined(TRIVET_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(nullptr, &running->resumer_stack_, &running->resumer_stack_bytes_);
#endif
  for (;;) {
    passes(running);
    (*running->work_)();
    leaves(running);
    running->work_ = nullptr;
    give_back();
  }
}

}  // namespace trivet::emulation

// How an emulated GPU runs a kernel: block after block in a shuffled order, with a block's threads as fibers of one
// host thread. A thread runs until it waits for others: for its block (__syncthreads) or its warp (shuffles,
// tensor-core instructions). One warp runs as far as it can before another does, and the order of warps and of lanes is
// shuffled: threads that rely on an order without a barrier read data before it is written, or after it is overwritten.
// Under ThreadSanitizer, a missing barrier is reported in any order; barriers that concern Hopper's units are checked
// in every build (order.h).
//
// Errors of the program end the process with a message: lanes of a warp that meet in different instructions, or with a
// lane that has ended; threads that wait for each other forever; addresses that an instruction does not accept. Dynamic
// shared memory is full of NaN when a block begins, and so is the destination of an asynchronous copy until a thread
// waits for it.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <string>
#include <vector>

// For the running emulated thread. (The attribute is safe: the library defining these variables is loaded at startup.)
extern thread_local uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern thread_local uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern thread_local dim3 blockDim __attribute__((tls_model("initial-exec")));
extern thread_local dim3 gridDim __attribute__((tls_model("initial-exec")));

namespace trivet::emulation {

// Runs the whole grid. `thread` is one thread's work. `seed` determines the order of threads. `pieces` receives the
// steps of each block, or of each part of a block that begins by taking a tile.
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread, uint64_t seed,
              std::vector<int64_t>* pieces = nullptr);

// ---- for the running thread

void* dynamic_shared_memory();
void take_tile();  // from a counter shared by all blocks: any free block can take the tile
void synchronize_block();

// Meets the other lanes of the warp that are in `mask`: when all are there, one of them calls all(each lane's `mine`,
// or null outside of the mask), and then all continue. `what` names the instruction.
void meet_warp(uint32_t mask, const char* what, void* mine, void (*all)(void* const (&lanes)[32]));

// Waits until another thread wakes the sleepers at `place`; `what` names the instruction.
void sleep_at(const void* place, const char* what);
void wake(const void* place);
// Work of an asynchronous unit: done, piece by piece in any order, when no thread can run.
void later(std::function<void()> work);
uint64_t block_number();  // counts all blocks that this host thread has begun to run
size_t thread_number();   // within its block
size_t dynamic_shared_bytes();

void copy_async(void* to, const void* from, size_t bytes, bool there);
void close_copies();
void wait_copies(int pending);

// Ends the process because the program is incorrect.
[[noreturn]] void broken(const std::string& what);

}  // namespace trivet::emulation

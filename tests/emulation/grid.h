// How an emulated GPU runs a kernel: block after block in a shuffled order, a block's threads as fibers of one thread
// of the host. A thread runs until it waits for others: for its block (__syncthreads) or its warp (shuffles,
// tensor-core instructions). One warp goes as far as it can before another does, and which comes next, of warps and of
// lanes, is shuffled: threads that count on an order that no barrier gives them read what is not there yet, or no
// longer. Under ThreadSanitizer a missing barrier is a report, whatever the order was; so it is in every build where
// Hopper's units are concerned (order.h).
//
// What a program may not do ends the process with a message: lanes of a warp that meet in different instructions, or
// with one that has ended; threads that wait for each other for ever; addresses that an instruction does not take.
// Dynamic shared memory is full of NaN when a block begins, and so is the target of an asynchronous copy until somebody
// waits for it.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <string>
#include <vector>

// Of the emulated thread that is running. (The attribute: the library that has them is there from the start.)
extern thread_local uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern thread_local uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern thread_local dim3 blockDim __attribute__((tls_model("initial-exec")));
extern thread_local dim3 gridDim __attribute__((tls_model("initial-exec")));

namespace trivet::emulation {

// Runs the whole grid. `thread` is what one thread does. `seed` decides the order of threads. `pieces` receives the
// steps of each block, or of each of its parts that begin where it takes a tile.
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread, uint64_t seed,
              std::vector<int64_t>* pieces = nullptr);

// ---- for the thread that is running

void* dynamic_shared_memory();
void take_tile();  // from a counter of all blocks: whichever is free takes it
void synchronize_block();

// Meets the other lanes of the warp that are in `mask`: when all are here, one of them calls all(each lane's `mine`, or
// null outside of the mask), and then all go on. `what` names the instruction.
void meet_warp(uint32_t mask, const char* what, void* mine, void (*all)(void* const (&lanes)[32]));

// Waits until somebody wakes those who sleep at `place`; `what` names the instruction.
void sleep_at(const void* place, const char* what);
void wake(const void* place);
// Work of a unit that runs beside the block's threads: done, piece by piece in any order, when no thread can go on.
void later(std::function<void()> work);
uint64_t block_number();  // of all that this thread of the host has begun to run
size_t thread_number();   // in its block
size_t dynamic_shared_bytes();

void copy_async(void* to, const void* from, size_t bytes, bool there);
void close_copies();
void wait_copies(int pending);

// Ends the process: the program is wrong.
[[noreturn]] void broken(const std::string& what);

}  // namespace trivet::emulation

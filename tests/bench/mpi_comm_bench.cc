// The MPI back end's collectives (see comm_table.h) against what a program could call instead: Open MPI's own, and a
// textbook ring over MPI_Isend and MPI_Irecv. All ranks on one host:
//
//     mpirun -n 2 mpi_comm_bench
//     mpirun -n 2 mpi_comm_bench all_gather          # only these collectives
//     mpirun -n 4 --oversubscribe mpi_comm_bench     # more ranks than cores: mpirun then makes MPI yield while waiting
#include <mpi.h>

#include "parallel/comm/mpi_comm.h"
#include "tests/bench/comm_table.h"

namespace trivet {
namespace {

void call_mpi(CommOp op, CommBuffers& memory) {
  const int full = static_cast<int>(memory.full.numel()), shard = static_cast<int>(memory.numel);
  if (op == CommOp::all_reduce) MPI_Allreduce(MPI_IN_PLACE, memory.full.data, full, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (op == CommOp::reduce_scatter)
    MPI_Reduce_scatter_block(memory.full.data, memory.shard.data, shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else MPI_Allgather(memory.shard.data, shard, MPI_FLOAT, memory.full.data, shard, MPI_FLOAT, MPI_COMM_WORLD);
}

class Ring {
 public:
  void run(CommOp op, CommBuffers& memory) {
    memory_ = &memory;
    const auto bytes = static_cast<size_t>(memory.shard.bytes());
    if (op == CommOp::all_gather) std::memcpy(slice(0), memory.shard.data, bytes);
    else scatter();
    if (op == CommOp::reduce_scatter) std::memcpy(memory.shard.data, slice(0), bytes);
    else gather();
  }

 private:
  float* slice(int offset) {  // relative to this rank's own slice
    const int n = memory_->ranks;
    return memory_->full.as<float>() + memory_->numel * ((memory_->rank + offset + n) % n);
  }
  // The sum of a slice starts at its owner's successor and travels around the ring to the owner.
  void scatter() {
    float* const piece = memory_->piece.as<float>();
    for (int step = 1; step < memory_->ranks; ++step) {
      exchange(slice(-step), piece);
      float* const sum = slice(-step - 1);
      for (int64_t i = 0; i < memory_->numel; ++i) sum[i] += piece[i];
    }
  }
  void gather() {
    for (int step = 1; step < memory_->ranks; ++step) exchange(slice(1 - step), slice(-step));
  }
  void exchange(const float* out, float* in) {
    const int n = memory_->ranks, rank = memory_->rank, count = static_cast<int>(memory_->numel);
    MPI_Request requests[2];
    MPI_Irecv(in, count, MPI_FLOAT, (rank + n - 1) % n, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(out, count, MPI_FLOAT, (rank + 1) % n, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  }

  CommBuffers* memory_ = nullptr;
};

// Runs f to completion on this thread, holding the progress token.
struct WithToken : MpiTask {
  WithToken(MpiProgress& progress, std::function<void()> f) : MpiTask(progress), f(std::move(f)) { run(); }
  void advance() override {
    f();
    end();
  }
  void completed(int, int64_t, int64_t) override {}
  std::function<void()> f;
};

// The other contenders call MPI as ours does: on this thread, which has borrowed the token from the progress thread.
Contender with_token(MpiProgress& progress, const char* name, std::function<void(CommOp, CommBuffers&)> call) {
  return {name, [&progress, call = std::move(call)](CommOp op, CommBuffers& memory) {
            Interval interval;
            WithToken(progress, [&] {
              MPI_Barrier(MPI_COMM_WORLD);
              interval.begin = now_ns();
              call(op, memory);
              interval.end = now_ns();
            });
            return interval;
          }};
}

void run(MpiProcess& process, const std::vector<std::string>& only) {
  check(process.progress.size() > 1, "one rank has nothing to exchange: start this with mpirun -n 2");
  const auto world = create_mpi_communicator(process);
  CommTable table(*world);
  Ring ring;
  table.print({table.ours(), with_token(process.progress, "MPI", call_mpi),
               with_token(process.progress, "ring", [&](CommOp op, CommBuffers& memory) { ring.run(op, memory); })},
              only);
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  trivet::MpiProcess process;
  try {
    trivet::run(process, {argv + 1, argv + argc});
    process.progress.finish();
  } catch (const std::exception& e) {
    fmt::print(stderr, "mpi_comm_bench: {}\n", e.what());
    process.progress.abort_job(70);
  }
}

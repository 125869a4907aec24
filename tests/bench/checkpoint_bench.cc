// Saving and loading against disk and memory bandwidth, measured alternately in one run:
//   save   write_shard and commit, until durable      against dd of the same size with conv=fsync
//   load   read_tensors, two threads, from disk       against dd of the file to /dev/null
//   stall  training time lost to an async save        against one memcpy of the state
//   checkpoint_bench [MIB] [FOLDER]     by default, 512 MiB in the current folder
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/saver.h"
#include "engine/checkpoint/shard.h"
#include "kernels/base/trace.h"

namespace trivet {
namespace {

double seconds(const std::function<void()>& work) {
  const int64_t start = now_ns();
  work();
  return static_cast<double>(now_ns() - start) * 1e-9;
}

void shell(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw Error("failed: " + command);
}

// Drops the file from the page cache, so that the next read comes from disk.
void drop_from_cache(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw IoError(path);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(int64_t mib, const std::string& folder) {
  constexpr int kRepeats = 5, kTensors = 16;
  const int64_t elements = mib * (1 << 18), each = elements / kTensors;
  std::vector<float> state(static_cast<size_t>(elements)), copy(static_cast<size_t>(elements), 1);
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(i * 2654435761u);
  std::vector<StateTensor> tensors;
  for (int i = 0; i < kTensors; ++i)
    tensors.push_back({fmt::format("tensor.{}", i),
                       {.global = {each}, .cols = each, .count = each},
                       {state.data() + i * each, DType::f32, {each}}});
  const auto device = create_cpu_device();
  const auto stream = device->create_compute_stream();
  const std::string place = folder + "/checkpoint_bench.tmp";
  std::filesystem::create_directories(place);
  const CheckpointStore store(place + "/checkpoints");
  CheckpointSaver saver({.store = store, .run = "bench", .layout = "bench", .config = "# bench\n", .keep = {.last = 1}},
                        tensors, Tensor{copy.data(), DType::u8, {elements * 4}}, *device, *stream);
  std::vector<double> save, dd_write, load, dd_read, stall, memory;
  for (int64_t step = 1; step <= kRepeats; ++step) {
    dd_write.push_back(seconds(
        [&] { shell(fmt::format("dd if=/dev/zero of={}/dd bs=8M count={} conv=fsync 2>/dev/null", place, mib / 8)); }));
    std::filesystem::remove(place + "/dd");
    save.push_back(seconds([&] {
      saver.begin({.step = step});
      stall.push_back(saver.stall_seconds());
      SaveEvent event = SaveEvent::none;
      while (event == SaveEvent::none) {
        saver.wait();
        event = saver.advance(saver.vote());
      }
      if (event == SaveEvent::failed) throw Error(saver.error());
    }));
    memory.push_back(seconds([&] { std::memcpy(copy.data(), state.data(), state.size() * 4); }));
    const std::string shard = store.path_of(step) + "/rank-00000.safetensors";
    drop_from_cache(shard);
    load.push_back(seconds([&] { read_tensors(open_checkpoint(store.path_of(step)), tensors, *device, *stream, 2); }));
    drop_from_cache(shard);
    dd_read.push_back(seconds([&] { shell(fmt::format("dd if={} of=/dev/null bs=8M 2>/dev/null", shard)); }));
  }
  std::filesystem::remove_all(place);
  const double gib = static_cast<double>(mib) / 1024;
  fmt::print("{} MiB, medians of {} interleaved runs\n", mib, kRepeats);
  fmt::print("{:<8}{:>12}{:>12}{:>10}\n", "", "Trivet", "floor", "ratio");
  fmt::print("{:<8}{:>7.2f} GiB/s{:>6.2f} GiB/s{:>8.2f}   of dd conv=fsync\n", "save", gib / median(save),
             gib / median(dd_write), median(dd_write) / median(save));
  fmt::print("{:<8}{:>7.2f} GiB/s{:>6.2f} GiB/s{:>8.2f}   of dd to /dev/null\n", "load", gib / median(load),
             gib / median(dd_read), median(dd_read) / median(load));
  fmt::print("{:<8}{:>10.1f} ms{:>9.1f} ms{:>8.2f}   times one memcpy\n", "stall", 1e3 * median(stall),
             1e3 * median(memory), median(stall) / median(memory));
}

}  // namespace
}  // namespace trivet

int main(int argc, char** argv) {
  trivet::run(argc > 1 ? std::max(8, std::atoi(argv[1])) / 8 * 8 : 512, argc > 2 ? argv[2] : ".");
}

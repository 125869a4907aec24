#include "tests/support/hostile.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <mutex>
#include <set>
#include <span>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/philox.h"
#include "parallel/comm/staged_comm.h"
#include "tests/support/split_device.h"
#include "tests/support/split_memory.h"

extern "C" const char __executable_start;

namespace trivet::test {
namespace {

// Collectives on the streams of a split device: runs `inner` on the memory behind the tensors.
class StreamBackEnd : public DeviceBackEnd {
 public:
  StreamBackEnd(std::shared_ptr<Communicator> inner, Device& device)
      : DeviceBackEnd(inner->group(), device), inner_(std::move(inner)) {}

  void enqueue(std::span<const Call> calls, Stream& stream) override {
    for (Call call : calls) {
      const bool in_place = overlap(call.in, call.out);
      if (call.in) call.in = behind_split_device(device, call.in);
      if (call.out) call.out = behind_split_device(device, call.out);
      if (call.out && !in_place && call.out.bytes() > 0)
        stream.run({"spoil", Category::host}, [out = call.out] { spoil(out.data, out.bytes()); });
      inner_->call(call, stream);
    }
  }
  void barrier() override { inner_->barrier(); }
  std::shared_ptr<CommBackEnd> split(const std::vector<int>& members, CommGroup part) override {
    auto inner = inner_->split(members, part.name, part.category);
    return inner ? std::make_shared<StreamBackEnd>(std::move(inner), device) : nullptr;
  }
  void abort(const std::string& why) noexcept override { inner_->abort(why); }
  Failure failure() const override { return inner_->failure(); }

 private:
  static bool overlap(const Tensor& a, const Tensor& b) {
    const auto begin = [](const Tensor& x) { return static_cast<const std::byte*>(x.data); };
    return a && b && begin(a) < begin(b) + b.bytes() && begin(b) < begin(a) + a.bytes();
  }

  const std::shared_ptr<Communicator> inner_;
};

// The place of the wait that returns to `caller`.
Place place_of(void* caller) {
  std::array<void*, 16> frames{};
  const int count = backtrace(frames.data(), frames.size());
  const auto begin = std::find(frames.begin(), frames.begin() + count, caller);
  Place place{};
  for (size_t i = 0; i < place.size() && begin + static_cast<std::ptrdiff_t>(i) < frames.begin() + count; ++i)
    place[i] = reinterpret_cast<uintptr_t>(begin[static_cast<std::ptrdiff_t>(i)]) -
               reinterpret_cast<uintptr_t>(&__executable_start);
  return place;
}

// The result that a child process of run_hostile() leaves in shared memory.
struct Left {
  bool returned;
  size_t places, bytes;
  std::array<Place, 1024> place;
  std::array<char, 1 << 20> text;

  void set_text(const std::string& of) {
    bytes = std::min(of.size(), text.size());
    std::memcpy(text.data(), of.data(), bytes);
  }
};

}  // namespace

MakeBackend make_hostile_backend(const Hostile& hostile) {
  return [hostile](const Config&, Communicator& world, int threads) {
    Hostility hostility;
    hostility.holds_back = [seed = hostile.seed, rank = world.rank()](size_t n, bool computes) {
      if (seed <= 1) return computes == (seed == 0);
      return (philox4x32(seed, static_cast<uint64_t>(rank), n).w[0] & 1) == 1;
    };
    if (hostile.seed > 1)
      hostility.rests = [odd = (hostile.seed + static_cast<uint64_t>(world.rank())) % 2 == 1](size_t, bool computes) {
        return odd == computes;
      };
    if (!hostile.skipped.empty() || hostile.touched)
      hostility.skips = [hostile](void* caller) {
        const Place place = place_of(caller);
        if (hostile.touched) hostile.touched(place);
        return std::ranges::count(hostile.skipped, place) > 0;
      };
    Backend backend;
    backend.device = create_hostile_device(hostility);
    backend.ops = create_split_ops(*backend.device, threads);
    backend.host = world.twin("device memory", comm_of("data"));
    backend.exchange =
        hostile.staged
            ? create_staged_communicator(*backend.host, *backend.device)
            : std::make_unique<Communicator>(std::make_shared<StreamBackEnd>(unowned(*backend.host), *backend.device));
    return backend;
  };
}

std::vector<std::vector<std::string>> names_of(const std::vector<Place>& places) {
  std::string command = "addr2line -Cfp -e /proc/" + std::to_string(getpid()) + "/exe";
  for (const Place& place : places)
    for (const uintptr_t at : place) command += fmt::format(" {:#x}", at ? at - 1 : 0);
  std::vector<std::vector<std::string>> names;
  std::FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
  char* line = nullptr;
  size_t room = 0;
  for (const Place& place : places) {
    names.emplace_back();
    for (size_t i = 0; i < place.size(); ++i) {
      const ssize_t length = pipe ? getline(&line, &room, pipe) : -1;
      std::string name = length > 0 ? std::string(line, static_cast<size_t>(length - 1)) : "?";
      if (const size_t note = name.find(" (discriminator"); note != std::string::npos) name.resize(note);
      names.back().push_back(std::move(name));
    }
  }
  std::free(line);
  if (pipe) pclose(pipe);
  return names;
}

Ended run_hostile(const std::function<std::string(const MakeBackend&)>& run, Hostile hostile, unsigned limit_s) {
  void* const memory = mmap(nullptr, sizeof(Left), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "no memory to share with a process");
  auto& left = *static_cast<Left*>(memory);
  const pid_t child = fork();
  check(child >= 0, "cannot start a process");
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO), dup2(nowhere, STDERR_FILENO);
    alarm(limit_s);
    std::mutex mutex;
    std::set<Place> seen;
    hostile.touched = [&](const Place& place) {
      std::lock_guard lock(mutex);
      if (seen.insert(place).second && left.places < left.place.size()) left.place[left.places++] = place;
    };
    try {
      left.set_text(run(make_hostile_backend(hostile)));
      left.returned = true;
    } catch (const std::exception& error) {
      left.set_text(error.what());
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Ended ended;
  const std::string text(left.text.data(), left.bytes);
  if (left.returned) ended.result = text;
  else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) ended.how = "hangs";
  else if (WIFSIGNALED(status)) ended.how = fmt::format("signal {}", WTERMSIG(status));
  else ended.how = "error: " + text;
  ended.places.assign(left.place.begin(), left.place.begin() + static_cast<std::ptrdiff_t>(left.places));
  munmap(memory, sizeof(Left));
  return ended;
}

}  // namespace trivet::test

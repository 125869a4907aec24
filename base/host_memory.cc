#include "base/host_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

namespace trivet {
namespace {

using Line = std::array<char, 1024>;

// The beginning of a small file; empty if it cannot be read.
Line beginning_of(const char* path) {
  Line text{};
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  const ssize_t n = read(fd, text.data(), text.size() - 1);
  close(fd);
  if (n < 0) text[0] = '\0';
  return text;
}

// Page counts: address space, resident memory, and data plus stack.
struct Pages {
  long all = 0, resident = 0, data = 0;
};
Pages pages_of_process() {
  Pages pages;
  long ignored = 0;
  const Line text = beginning_of("/proc/self/statm");
  std::sscanf(text.data(), "%ld %ld %ld %ld %ld %ld", &pages.all, &pages.resident, &ignored, &ignored, &ignored,
              &pages.data);
  return pages;
}

// The memory limit of this process's control group, version 2 or version 1; INT64_MAX: none.
int64_t control_group_limit() {
  const Line groups = beginning_of("/proc/self/cgroup");  // lines of NUMBER:CONTROLLERS:PATH
  int64_t least = INT64_MAX;
  const auto look = [&](const char* root, const char* path, int length, const char* file) {
    Line name{};
    std::snprintf(name.data(), name.size(), "/sys/fs/cgroup%s%.*s/%s", root, length, path, file);
    const Line text = beginning_of(name.data());
    long long bytes = 0;
    if (std::sscanf(text.data(), "%lld", &bytes) == 1 && bytes > 0) least = std::min<int64_t>(least, bytes);
  };
  for (const char* line = groups.data(); *line != '\0';) {
    const char* const end = line + std::strcspn(line, "\n");
    const char* const path = std::strchr(line, '/');
    const int length = path && path < end ? static_cast<int>(end - path) : 0;
    if (std::strncmp(line, "0::", 3) == 0) look("", path, length, "memory.max");
    if (std::strstr(line, ":memory:") && std::strstr(line, ":memory:") < end)
      look("/memory", path, length, "memory.limit_in_bytes");
    line = *end == '\0' ? end : end + 1;
  }
  look("", "", 0, "memory.max");  // in a container, where its own group appears as the root
  look("/memory", "", 0, "memory.limit_in_bytes");
  return least;
}

constexpr double kGiB = 1 << 30;

}  // namespace

MemoryLimit memory_limit() noexcept {
  const Pages pages = pages_of_process();
  const int64_t page = sysconf(_SC_PAGESIZE);
  struct sysinfo machine = {};
  sysinfo(&machine);
  const auto of_process = [](auto resource) {
    rlimit limit = {};
    const bool none = getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
    return none ? INT64_MAX : static_cast<int64_t>(limit.rlim_cur);
  };
  const MemoryLimit limits[] = {
      {of_process(RLIMIT_AS), page * pages.all, "the process's address-space limit (ulimit -v)"},
      {of_process(RLIMIT_DATA), page * pages.data, "the process's data-segment limit (ulimit -d)"},
      {control_group_limit(), page * pages.resident, "the memory limit of the process's cgroup"},
      {static_cast<int64_t>(machine.totalram + machine.totalswap) * machine.mem_unit, page * pages.resident,
       "this machine's memory plus swap"}};
  return *std::ranges::min_element(limits, {}, &MemoryLimit::left);
}

std::string to_string(const MemoryLimit& limit) {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(), "%s is %.2f GiB, of which the process uses %.2f", limit.name,
                static_cast<double>(limit.bytes) / kGiB, static_cast<double>(limit.used) / kGiB);
  return text.data();
}

OutOfMemory::OutOfMemory(size_t bytes) noexcept {
  const MemoryPurpose* purpose = MemoryPurpose::current();
  const MemoryLimit limit = memory_limit();
  const std::string_view name = purpose ? purpose->name() : std::string_view();
  std::snprintf(text_.data(), text_.size(),
                "out of memory: cannot allocate %zu bytes for %s%s%.*s; %s is %.2f GiB, of which the process uses "
                "%.2f",
                bytes, purpose ? purpose->what() : "this command", name.empty() ? "" : " ",
                static_cast<int>(std::min<size_t>(name.size(), 200)), name.data(), limit.name,
                static_cast<double>(limit.bytes) / kGiB, static_cast<double>(limit.used) / kGiB);
}

}  // namespace trivet

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TRIVET_SANITIZER_ALLOCATES
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TRIVET_SANITIZER_ALLOCATES
#endif
#endif

#if !defined(TRIVET_SANITIZER_ALLOCATES)
// The library's operator new[] and nothrow operator new call this one, and its operator delete calls free(). Not
// inlined: GCC would warn that free() receives memory that malloc() did not allocate.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* data = std::malloc(std::max<size_t>(bytes, 1))) return data;
  throw trivet::OutOfMemory(bytes);
}
#endif

#include "parallel/comm/nccl_group.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <fmt/format.h>

#pragma weak ncclCommRevoke

namespace trivet {
namespace {

// Connects collectives when a group is created, as NCCL did before 2.22. Otherwise the host would wait for the other
// ranks in a group's first call, while they may wait for this rank in another group's. This also makes NCCL allocate
// its memory before the engine allocates the rest. Set before main(), while no other thread can read the environment.
[[maybe_unused]] const int kConnectsEarly = setenv("NCCL_RUNTIME_CONNECT", "0", 0);

constexpr std::chrono::milliseconds kPollInterval{100};

}  // namespace

// ---- one communicator

NcclGroup::NcclGroup(const std::string& name, int rank, int size, int most_ctas, double timeout_s)
    : name_(name),
      label_("group '" + name + "', its rank " + std::to_string(rank) + " of " + std::to_string(size)),
      rank_(rank),
      size_(size),
      most_ctas_(most_ctas),
      timeout_(timeout_s) {}

NcclGroup::~NcclGroup() {
  if (comm_) ncclCommAbort(comm_);
}

void NcclGroup::open(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name_.c_str();
  config.maxCTAs = most_ctas_;
  std::lock_guard lock(mutex_);
  if (failed_) fail_with("ncclCommInitRankConfig", "the group was aborted: " + why_);
  try {
    finish(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig");
  } catch (...) {
    if (comm_) ncclCommAbort(comm_);
    comm_ = nullptr;
    throw;
  }
}

void NcclGroup::close() noexcept {
  std::lock_guard lock(mutex_);
  if (comm_) finalized_ = ncclCommFinalize(comm_);
}

bool NcclGroup::end() noexcept {
  std::lock_guard lock(mutex_);
  if (!comm_) return true;
  try {
    finish(finalized_, "ncclCommFinalize");
  } catch (...) {
    return false;
  }
  ncclCommDestroy(comm_);
  comm_ = nullptr;
  return true;
}

void NcclGroup::check_usable(const char* what) {
  if (failed_) fail_with(what, "the group was aborted: " + why_);
  ncclResult_t earlier = ncclSuccess;
  ncclCommGetAsyncError(comm_, &earlier);
  if (is_error(earlier)) fail_with(what, text_of(earlier) + ", of an earlier call");
}

void* NcclGroup::register_buffer(Tensor memory) {
  std::lock_guard lock(mutex_);
  check_usable("ncclCommRegister");
  void* handle = nullptr;
  finish(ncclCommRegister(comm_, memory.data, static_cast<size_t>(memory.bytes()), &handle), "ncclCommRegister");
  return handle;
}

void NcclGroup::deregister(void* handle) noexcept {
  std::lock_guard lock(mutex_);
  if (comm_ && handle) ncclCommDeregister(comm_, handle);  // else freed with the communicator, or NCCL returned none
}

std::string NcclGroup::error() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  ncclResult_t state = ncclSuccess;
  if (!lock || !comm_) return {};
  if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state); asked != ncclSuccess) state = asked;
  if (!is_error(state)) return {};
  return label_ + ": " + text_of(state) + ", noticed after " + std::to_string(calls_) + " calls" +
         (calls_ > 0 ? std::string(", of which the last is ") + last_ : std::string());
}

std::unique_lock<std::mutex> NcclGroup::stop(const std::string& why) noexcept {
  aborting_ = true;  // a waiting call returns, and releases the mutex
  std::unique_lock lock(mutex_);
  if (!failed_) why_ = why;
  failed_ = true;
  return lock;
}

void NcclGroup::revoke() noexcept {
#ifdef NCCL_REVOKE_DEFAULT
  if (comm_ && ncclCommRevoke)  // NCCL may be older at run time than at build time
    ncclCommRevoke(comm_, NCCL_REVOKE_DEFAULT);
#endif
}

void NcclGroup::abort() noexcept {
  if (comm_) ncclCommAbort(comm_);  // also ends its kernels that wait on this GPU
  comm_ = nullptr;
}

void NcclGroup::fail_with(const char* what, const std::string& why) const { fail(label_ + ": " + what + ": " + why); }

std::string NcclGroup::text_of(ncclResult_t result) const {
  return std::string(ncclGetErrorString(result)) + " (" + ncclGetLastError(comm_) + ")";
}

void NcclGroup::finish(ncclResult_t result, const char* what) {
  const auto start = std::chrono::steady_clock::now();
  while (result == ncclInProgress) {
    if (aborting_) fail_with(what, "aborted");
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > timeout_)
      fail_with(what, fmt::format("not done after {:g} s: another rank of the group has not reached it", timeout_));
    std::this_thread::yield();
    if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess) fail_with(what, text_of(result));
}

// ---- memory

void* NcclMemory::allocate(int64_t bytes) {
  void* data = nullptr;
  if (const ncclResult_t result = ncclMemAlloc(&data, static_cast<size_t>(bytes)); result != ncclSuccess)
    fail(
        fmt::format("ncclMemAlloc of {} bytes: {} ({})", bytes, ncclGetErrorString(result), ncclGetLastError(nullptr)));
  return data;
}

void NcclMemory::deallocate(void* data, int64_t) noexcept { ncclMemFree(data); }

// ---- all groups of a rank

NcclRank::NcclRank(Communicator& host, Device& device, double timeout_s, double part)
    : host(host),
      device(device),
      timeout_s_(timeout_s),
      part_(part),
      exceptions_(std::uncaught_exceptions()),
      watcher_([this] { watch(); }) {}

NcclRank::~NcclRank() {
  if (std::uncaught_exceptions() > exceptions_) abort("an exception ends the rank");
  for (const auto& group : groups_) group->close();
  for (const auto& group : groups_)
    if (!group->end()) abort("the peers of a group do not end it");
  {
    std::lock_guard lock(watch_mutex_);
    over_ = true;
  }
  ends_.notify_all();
  watcher_.join();
}

std::shared_ptr<NcclGroup> NcclRank::add(const std::string& name, int rank, int size, int most_ctas) {
  auto group =
      std::make_shared<NcclGroup>(name, rank, size, std::max(1, static_cast<int>(part_ * most_ctas)), timeout_s_);
  std::lock_guard lock(mutex_);
  if (!why_.empty()) group->stop(why_);
  return groups_.emplace_back(std::move(group));
}

void NcclRank::set_abort_diagnostics(std::function<std::string()> abort_diagnostics) {
  std::lock_guard lock(mutex_);
  abort_diagnostics_ = std::move(abort_diagnostics);
}

void NcclRank::poll() {
  std::lock_guard polls(poll_mutex_);
  std::string why;
  if (const Failure failure = host.failure(); failure.rank >= 0) {
    why = "rank " + std::to_string(failure.rank) + " has failed: " + failure.why;
  } else {
    why = error();
    if (why.empty()) return;
    host.abort(why);
  }
  abort(why);
  throw Error(why_);
}

void NcclRank::abort(const std::string& why) noexcept {
  std::lock_guard lock(mutex_);
  if (!why_.empty()) return;
  why_ = why;
  if (abort_diagnostics_) abort_diagnostics_();
  device.poison(why);
  std::vector<std::unique_lock<std::mutex>> held;  // until all communicators are aborted
  for (const auto& group : groups_) {
    held.push_back(group->stop(why));
    group->revoke();
  }
  ncclGroupStart();
  for (const auto& group : groups_) group->abort();
  ncclGroupEnd();
}

void NcclRank::watch() {
  std::unique_lock lock(watch_mutex_);
  while (!ends_.wait_for(lock, kPollInterval, [&] { return over_; })) try {
      poll();
    } catch (const Error&) {
      return;  // waits and calls throw the error
    }
}

std::string NcclRank::error() {
  std::lock_guard lock(mutex_);
  for (const auto& group : groups_) {
    const std::string error = group->error();
    if (error.empty()) continue;
    const std::string where = abort_diagnostics_ ? abort_diagnostics_() : "";
    return where.empty() ? error : error + "; this rank is in " + where;
  }
  return {};
}

}  // namespace trivet

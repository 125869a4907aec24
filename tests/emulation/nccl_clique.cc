#include "tests/emulation/nccl_clique.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "tests/emulation/driver.h"
#include "tests/emulation/runtime.h"

namespace trivet::emulation {
namespace {

std::string to_string(int rank, const NcclOperation& o) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "receive"};
  std::string text = "rank " + std::to_string(rank) + " calls " + kNames[static_cast<int>(o.call)] + " of " +
                     std::to_string(o.count) + " of type " + std::to_string(o.type);
  if (o.call == NcclCall::all_reduce || o.call == NcclCall::reduce_scatter)
    text += " with operation " + std::to_string(o.reduce);
  if (o.registered_at) text += ", " + std::to_string(*o.registered_at) + " bytes into a registered buffer";
  return o.peer < 0 ? text : text + " with rank " + std::to_string(o.peer);
}

bool same_collective(const NcclOperation& a, const NcclOperation& b) {
  return a.call == b.call && a.count == b.count && a.type == b.type && a.reduce == b.reduce && a.peer == b.peer &&
         a.registered_at == b.registered_at;
}

// ---- arithmetic

struct Bf16 {
  uint16_t bits;
};
float wide(float x) { return x; }
float wide(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
int64_t wide(int64_t x) { return x; }
void narrow(float x, float& to) { to = x; }
void narrow(float x, Bf16& to) {
  const auto bits = std::bit_cast<uint32_t>(x);
  to.bits = static_cast<uint16_t>(std::isnan(x) ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
void narrow(int64_t x, int64_t& to) { to = x; }

float added(float a, float b) { return a + b; }
int64_t added(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
float larger(float a, float b) { return std::fmax(a, b); }
int64_t larger(int64_t a, int64_t b) { return std::max(a, b); }

// Elements [begin, begin + count) of the sum over inputs, in rank order.
template <class T>
std::vector<std::byte> reduced(const std::vector<const void*>& inputs, size_t begin, size_t count, ncclRedOp_t op) {
  std::vector<T> sum(count);
  const auto share = static_cast<float>(1.0 / static_cast<double>(inputs.size()));
  for (size_t r = 0; r < inputs.size(); ++r)
    for (size_t i = 0; i < count; ++i) {
      T x = static_cast<const T*>(inputs[r])[begin + i];
      if constexpr (!std::is_same_v<T, int64_t>)
        if (op == ncclAvg) narrow(wide(x) * share, x);
      if (r == 0) sum[i] = x;
      else narrow(op == ncclMax ? larger(wide(sum[i]), wide(x)) : added(wide(sum[i]), wide(x)), sum[i]);
    }
  std::vector<std::byte> bytes(count * sizeof(T));
  if (count > 0) std::memcpy(bytes.data(), sum.data(), bytes.size());
  return bytes;
}
std::vector<std::byte> reduced(const NcclOperation& like, const std::vector<const void*>& inputs, size_t begin,
                               size_t count) {
  if (like.type == ncclFloat32) return reduced<float>(inputs, begin, count, like.reduce);
  if (like.type == ncclBfloat16) return reduced<Bf16>(inputs, begin, count, like.reduce);
  return reduced<int64_t>(inputs, begin, count, like.reduce);
}

void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8: return 1;
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclFloat32: return 4;
    case ncclInt64: return 8;
    default: return 0;
  }
}
size_t NcclOperation::bytes() const { return count * bytes_of(type); }

NcclClique::NcclClique(int size, const std::string& name)
    : size_(size),
      name_(name),
      fault_(fault_of(name)),
      connects_early_([] {
        const char* value = std::getenv("NCCL_RUNTIME_CONNECT");
        return value && std::strcmp(value, "0") == 0;
      }()),
      tickets_(static_cast<size_t>(size)),
      turns_(static_cast<size_t>(size)) {}

NcclClique::Fault NcclClique::fault_of(const std::string& name) {
  const char* value = std::getenv("TRIVET_EMULATED_NCCL_FAULT");
  std::istringstream text(value ? value : "");
  std::string of;
  Fault fault;
  if (!std::getline(text, of, ':') || of != name) return {};
  text >> fault.rank;
  text.ignore();
  text >> fault.ticket;
  fault.silent = text.get() == ':';
  return fault;
}

// ---- called by host threads

void NcclClique::join(int rank, int size, int device) {
  std::lock_guard lock(mutex_);
  if (size != size_) set_error(ncclInvalidArgument, "ranks disagree on how many there are");
  if (devices_.contains(rank)) set_error(ncclInvalidUsage, "two ranks are rank " + std::to_string(rank));
  for (const auto& [other, others] : devices_)
    if (others == device)
      set_error(ncclInvalidUsage, "ranks " + std::to_string(other) + " and " + std::to_string(rank) + " share GPU " +
                                      std::to_string(device));
  devices_[rank] = device;
  changed_.notify_all();
}

bool NcclClique::complete() {
  std::lock_guard lock(mutex_);
  return devices_.size() == static_cast<size_t>(size_);
}

NcclClique::Connection NcclClique::connection_of(int rank, const NcclOperation& o) const {
  if (o.call == NcclCall::send) return {-1, rank, o.peer};
  if (o.call == NcclCall::receive) return {-1, o.peer, rank};
  return {static_cast<int>(o.call), 0, 0};
}

bool NcclClique::is_made(const Connection& connection) {
  const bool transfer = std::get<0>(connection) < 0;
  if (!transfer && connects_early_) return true;
  return connections_[connection].size() == static_cast<size_t>(transfer ? 2 : size_);
}

bool NcclClique::connect(int rank, const NcclOperation& operation) {
  std::lock_guard lock(mutex_);
  const Connection connection = connection_of(rank, operation);
  const bool before = is_made(connection);
  connections_[connection].insert(rank);
  return before;
}

bool NcclClique::connected(int rank, const NcclOperation& operation) {
  std::lock_guard lock(mutex_);
  return is_made(connection_of(rank, operation));
}

void NcclClique::finalize(int rank) {
  std::lock_guard lock(mutex_);
  finalized_.insert(rank);
}
bool NcclClique::all_finalized() {
  std::lock_guard lock(mutex_);
  return finalized_.size() == static_cast<size_t>(size_);
}
uint64_t NcclClique::ticket(int rank) {
  std::lock_guard lock(mutex_);
  return tickets_[static_cast<size_t>(rank)]++;
}
bool NcclClique::idle(int rank) {
  std::lock_guard lock(mutex_);
  const auto at = static_cast<size_t>(rank);
  return turns_[at] == tickets_[at] || aborted_.contains(rank);
}

void NcclClique::abort(int rank) {
  std::lock_guard lock(mutex_);
  aborted_.insert(rank);
  changed_.notify_all();
}

void NcclClique::set_error(ncclResult_t result, const std::string& text) {
  if (error_ == ncclSuccess) {  // the first error is the cause
    text_ = text;
    error_ = result;
  }
  changed_.notify_all();
}

ncclResult_t NcclClique::error(int rank) {
  std::lock_guard lock(mutex_);
  return fault_struck_ && rank != fault_.rank ? ncclSuccess : error_;
}

// ---- called by streams

// Returns false if the rank has aborted. An error ends no wait: streams just stop, as in an NCCL kernel.
template <class Condition>
bool NcclClique::wait(Lock& lock, int rank, const Condition& condition) {
  const auto is_over = [&] { return aborted_.contains(rank) || condition(); };
  // If a connection is gone, or after an error, the rank's watcher will abort the rank.
  const Waiting::Kind kind = fault_.rank < 0 && error_ == ncclSuccess ? Waiting::plain : Waiting::memory;
  lock.unlock();
  wait_until(mutex_, changed_, kind,
             "rank " + std::to_string(rank) + " of communicator '" + name_ + "' waits for its peers", is_over);
  lock.lock();
  return !aborted_.contains(rank);
}

void NcclClique::run(int rank, uint64_t ticket, const std::vector<NcclOperation>& operations, int ctas) {
  Lock lock(mutex_);
  if (!wait(lock, rank, [&] { return turns_[static_cast<size_t>(rank)] == ticket; })) return;
  const int device = devices_[rank];
  const std::string holder = "'" + name_ + "'";
  if (!driver().strict) return run(lock, rank, ticket, operations);
  while (!take_multiprocessors(device, ctas, holder)) {
    const auto is_over = [&] {
      std::lock_guard others(mutex_);
      return free_multiprocessors(device) >= ctas || aborted_.contains(rank);
    };
    lock.unlock();
    {
      const Waiting waiting(Waiting::strict,
                            "communicator " + holder + " waits for " + std::to_string(ctas) + " of " +
                                std::to_string(kMultiprocessors) + " multiprocessors of GPU " + std::to_string(device) +
                                ", which others hold: " + holders_of_multiprocessors(device),
                            is_over);
      while (!is_over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    lock.lock();
    if (aborted_.contains(rank)) return;
  }
  run(lock, rank, ticket, operations);
  give_multiprocessors(device, ctas, holder);
}

// Called when it is this ticket's turn.
void NcclClique::run(Lock& lock, int rank, uint64_t ticket, const std::vector<NcclOperation>& operations) {
  uint64_t& turn = turns_[static_cast<size_t>(rank)];
  if (rank == fault_.rank && ticket == fault_.ticket) {
    if (fault_.silent && !wait(lock, rank, [] { return false; })) return;
    fault_struck_ = error_ == ncclSuccess;
    set_error(ncclRemoteError, "a connection is gone, as TRIVET_EMULATED_NCCL_FAULT asks for");
  }
  if (!wait(lock, rank, [&] { return error_ == ncclSuccess; })) return;
  std::vector<std::shared_ptr<Transfer>> transfers;
  for (const NcclOperation& operation : operations)
    if (operation.is_transfer()) transfers.push_back(post(rank, operation));
  for (const NcclOperation& operation : operations)
    if (!operation.is_transfer() && !meet(lock, rank, operation)) return;
  for (const auto& transfer : transfers)
    if (!wait(lock, rank, [&] { return transfer->done; })) return;
  ++turn;
  changed_.notify_all();
}

// The second of the two calls moves the data.
std::shared_ptr<NcclClique::Transfer> NcclClique::post(int rank, const NcclOperation& o) {
  const bool sends = o.call == NcclCall::send;
  const int from = sends ? rank : o.peer, to = sends ? o.peer : rank;
  auto& place = transfers_[{from, to, o.number}];
  if (!place) place = std::make_shared<Transfer>();
  const std::shared_ptr<Transfer> transfer = place;
  (sends ? transfer->send : transfer->receive) = o;
  if (!sends && o.bytes() > 0) std::memset(o.out, 0xff, o.bytes());  // NaN, for anyone who reads too early
  if (!transfer->send || !transfer->receive) return transfer;
  if (transfer->send->count != transfer->receive->count || transfer->send->type != transfer->receive->type) {
    set_error(ncclInvalidUsage, to_string(from, *transfer->send) + ", " + to_string(to, *transfer->receive) +
                                    "; NCCL itself would hang or move what it should not");
  } else if (!aborted_.contains(from) && !aborted_.contains(to)) {
    copy(transfer->receive->out, transfer->send->in, o.bytes());
    transfer->done = true;
    transfers_.erase({from, to, o.number});
    changed_.notify_all();
  }
  return transfer;
}

bool NcclClique::meet(Lock& lock, int rank, const NcclOperation& operation) {
  Meeting& meeting = meetings_[operation.number];
  meeting.calls[rank] = operation;
  for (const auto& [other, call] : meeting.calls)
    if (!same_collective(call, operation)) {
      set_error(ncclInvalidUsage, to_string(std::min(rank, other), other < rank ? call : operation) + ", " +
                                      to_string(std::max(rank, other), other < rank ? operation : call) +
                                      "; NCCL itself would hang or move what it should not");
      break;
    }
  if (meeting.calls.size() == static_cast<size_t>(size_) && aborted_.empty() && error_ == ncclSuccess) {
    move(meeting);
    meeting.done = true;
    changed_.notify_all();
  }
  if (!wait(lock, rank, [&] { return meeting.done; })) return false;
  if (++meeting.left == size_) meetings_.erase(operation.number);
  return true;
}

// All ranks have arrived.
void NcclClique::move(Meeting& meeting) {
  const NcclOperation& like = meeting.calls.begin()->second;
  const size_t bytes = like.bytes();
  std::vector<const void*> inputs;
  for (const auto& [rank, call] : meeting.calls) inputs.push_back(call.in);
  const auto shard = [&](void* data, int rank) {
    return static_cast<std::byte*>(data) + static_cast<size_t>(rank) * bytes;
  };
  switch (like.call) {
    case NcclCall::all_reduce: {
      const std::vector<std::byte> sum = reduced(like, inputs, 0, like.count);
      for (const auto& [rank, call] : meeting.calls) copy(call.out, sum.data(), bytes);
      return;
    }
    case NcclCall::reduce_scatter: {
      std::vector<std::vector<std::byte>> sums;  // all computed before the first is written, perhaps over an input
      for (const auto& [rank, call] : meeting.calls)
        sums.push_back(reduced(like, inputs, static_cast<size_t>(rank) * like.count, like.count));
      for (const auto& [rank, call] : meeting.calls) copy(call.out, sums[static_cast<size_t>(rank)].data(), bytes);
      return;
    }
    case NcclCall::all_gather:
      for (const auto& [rank, call] : meeting.calls)
        for (int from = 0; from < size_; ++from)
          if (shard(call.out, from) != inputs[static_cast<size_t>(from)])
            copy(shard(call.out, from), inputs[static_cast<size_t>(from)], bytes);
      return;
    case NcclCall::broadcast:
      // In place, the root's own memory is only read, as the root may be using it.
      for (const auto& [rank, call] : meeting.calls)
        if (const void* const from = inputs[static_cast<size_t>(like.peer)]; call.out != from)
          copy(call.out, from, bytes);
      return;
    default: return;
  }
}

}  // namespace trivet::emulation

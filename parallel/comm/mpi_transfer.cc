#include "parallel/comm/mpi_transfer.h"

#include <algorithm>

#include "base/piece.h"

namespace trivet {
namespace {

constexpr int64_t kChunk = piece(512 << 10, 4 << 10);
constexpr int64_t kWindow = piece(4, 2);  // chunks that a receiver posts in advance
enum Slot { header_slot, data_slot };

// 0 if the data fits into the header.
int64_t chunks_of(const CallSignature& s) {
  return bytes_of(s) <= MpiHeader::kPayload ? 0 : (bytes_of(s) + kChunk - 1) / kChunk;
}

}  // namespace

// One send in flight.
class MpiSend : public MpiTask {
 public:
  using MpiTask::MpiTask;

  // On the sender's thread; each chunk is sent while the next is copied.
  void send(const CommGroup& group, int to, const CallSignature& signature, const void* data) {
    const int64_t bytes = bytes_of(signature), chunks = chunks_of(signature);
    to_ = group.world_rank(to);
    header_tag_ = mpi_tag(group, MpiTag::transfer);
    data_tag_ = mpi_tag(group, MpiTag::transfer_data);
    header_.signature = signature;
    header_.called_ns = now_ns();
    payload_ = chunks == 0 ? bytes : 0;
    bytes_ = chunks == 0 ? 0 : bytes;
    if (payload_ > 0) std::memcpy(header_.payload.data(), data, static_cast<size_t>(payload_));
    std::byte* copy = buffer.at_least(bytes_);
    posted_ = -1;
    remaining_ = chunks + 1;
    for (int64_t c = 0; c < std::max<int64_t>(chunks, 1); ++c) {
      if (chunks > 0)
        std::memcpy(copy + c * kChunk, static_cast<const std::byte*>(data) + c * kChunk,
                    static_cast<size_t>(std::min(kChunk, bytes - c * kChunk)));
      progress_.submit(*this);
    }
  }

  // The n-th call means that chunk n has been copied.
  void advance() override {
    if (posted_ < 0) {
      progress_.set_in_flight(*this, true);
      progress_.mpi().post_send(*this, header_slot, 0, &header_, MpiHeader::bytes(payload_), to_, header_tag_);
      posted_ = 0;
    }
    if (bytes_ > 0) {
      const int64_t begin = posted_++ * kChunk;
      progress_.mpi().post_send(*this, data_slot, posted_ - 1, buffer.data() + begin, std::min(kChunk, bytes_ - begin),
                                to_, data_tag_);
    }
  }
  void completed(int, int64_t, int64_t) override {
    if (--remaining_ > 0) return;
    progress_.set_in_flight(*this, false);
    busy.store(false, std::memory_order_release);
  }

  GrowOnlyBuffer buffer;
  std::atomic<bool> busy = true;

 private:
  MpiHeader header_;
  int to_ = 0, header_tag_ = 0, data_tag_ = 0;
  int64_t payload_ = 0;  // bytes in the header
  int64_t bytes_ = 0;    // bytes that follow it
  int64_t posted_ = 0, remaining_ = 0;
};

MpiSendPool::MpiSendPool(MpiProgress& progress) : progress_(progress) {}
MpiSendPool::~MpiSendPool() = default;

void MpiSendPool::send(const CommGroup& group, int to, const CallSignature& signature, const void* data) {
  if (progress_.halted()) progress_.throw_halted();
  take(bytes_of(signature)).send(group, to, signature, data);
}

MpiSend& MpiSendPool::take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  // The smallest buffer that fits, so that large ones stay free for large tensors.
  MpiSend* best = nullptr;
  for (const auto& send : sends_) {
    if (send->busy.load(std::memory_order_acquire)) continue;
    const int64_t capacity = send->buffer.capacity();
    if ((bytes <= MpiHeader::kPayload || capacity >= bytes) && (!best || capacity < best->buffer.capacity()))
      best = send.get();
  }
  if (!best) best = sends_.emplace_back(std::make_unique<MpiSend>(progress_)).get();
  best->busy = true;
  return *best;
}

int64_t MpiReceive::receive(int from, const CallSignature& signature, void* data) {
  from_ = from;
  expected_ = signature;
  data_ = static_cast<std::byte*>(data);
  header_arrived_ = false;
  posted_ = received_ = 0;
  chunks_ = chunks_of(signature);
  moves_ns_ = progress_.mpi().shares_memory(group_.world_rank(from)) ? now_ns() : 0;
  run();
  if (const int64_t bytes = bytes_of(expected_); chunks_ == 0 && bytes > 0)
    std::memcpy(data, header_.payload.data(), static_cast<size_t>(bytes));
  return moves_ns_;
}

void MpiReceive::advance() {
  progress_.set_in_flight(*this, true);
  progress_.mpi().post_recv(*this, header_slot, 0, &header_, MpiHeader::kBytes, group_.world_rank(from_),
                            mpi_tag(group_, MpiTag::transfer));
}

void MpiReceive::completed(int slot, int64_t, int64_t bytes) {
  if (slot == header_slot) {
    const CallSignature& theirs = header_.signature;
    if (bytes < MpiHeader::bytes(0) || theirs != expected_)
      fail_mismatch(group_.name, group_.world_rank(from_), theirs, group_.world_rank(), expected_);
    header_arrived_ = true;
    moves_ns_ = both_called_ns(progress_.mpi().one_clock(), moves_ns_, header_.called_ns, now_ns());
  } else {
    ++received_;
  }
  post_chunks();
  if (received_ < chunks_) return;
  progress_.set_in_flight(*this, false);
  end();
}

void MpiReceive::post_chunks() {
  for (; posted_ < std::min(chunks_, received_ + kWindow); ++posted_) {
    const int64_t begin = posted_ * kChunk;
    progress_.mpi().post_recv(*this, data_slot, posted_, data_ + begin, std::min(kChunk, bytes_of(expected_) - begin),
                              group_.world_rank(from_), mpi_tag(group_, MpiTag::transfer_data));
  }
}

void MpiReceive::rank_ended(int world_rank) {
  if (group_.world_rank(from_) == world_rank && !header_arrived_)
    fail("group '" + group_.name + "': recv of transfer " + std::to_string(expected_.sequence) + " from rank " +
         std::to_string(world_rank) + ", which has ended without that send");
}

}  // namespace trivet

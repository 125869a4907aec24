// A pipeline of three stages over a stream of items: read one after another, work on many threads, write one after
// another in the order of reading.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace trivet {

// read(item) fills an item, or returns false at the end; then come work(item) and write(item). Each of the `threads`,
// of which the calling thread is one, takes turns at all three; read() is called by one thread at a time, and so is
// write(). At most 2 * threads items exist at once. The first exception ends the pipeline and is rethrown when all
// threads are done. REQUIRES: an Item can be made and moved.
template <class Item, class Read, class Work, class Write>
class OrderedPipeline {
 public:
  OrderedPipeline(size_t threads, Read read, Work work, Write write)
      : threads_(std::max<size_t>(1, threads)), read_(read), work_(work), write_(write) {}

  void run() {
    {
      std::vector<std::jthread> others;
      for (size_t i = 1; i < threads_; ++i) others.emplace_back([this] { take_turns(); });
      take_turns();
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void take_turns() {
    try {
      for (Item item; const auto number = read(item); item = Item()) {
        work_(item);
        write(*number, std::move(item));
      }
    } catch (...) {
      end_with(std::current_exception());
    }
  }

  void end_with(std::exception_ptr failure) {  // null: all is read
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
    ended_ = true;
    room_.notify_all();
  }

  // The item's number; empty at the end.
  std::optional<uint64_t> read(Item& item) {
    const std::lock_guard reading(reading_);
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [this] { return ended_ || next_ - written_ < 2 * threads_; });
      if (ended_) return std::nullopt;
    }
    // A failure is noted before the next reader gets its turn: it would read on behind the item that is missing.
    try {
      if (read_(item)) return next_++;
      end_with(nullptr);
    } catch (...) {
      end_with(std::current_exception());
    }
    return std::nullopt;
  }

  // Writes it and those behind it, unless an earlier one is not done: the thread that writes that one goes on with it.
  void write(uint64_t number, Item item) {
    std::unique_lock lock(mutex_);
    done_.emplace(number, std::move(item));
    while (!writing_ && !failure_ && !done_.empty() && done_.begin()->first == written_) {
      Item ready = std::move(done_.extract(done_.begin()).mapped());
      writing_ = true;
      lock.unlock();
      write_(ready);
      lock.lock();
      writing_ = false;
      ++written_;
      room_.notify_all();
    }
  }

  const size_t threads_;
  Read read_;
  Work work_;
  Write write_;
  std::mutex reading_;  // held while an item is read; guards next_, which only grows, against other readers
  std::mutex mutex_;    // of all below
  std::condition_variable room_;
  uint64_t next_ = 0, written_ = 0;  // items read and written
  std::map<uint64_t, Item> done_;    // waiting to be written
  bool ended_ = false, writing_ = false;
  std::exception_ptr failure_;
};

template <class Item, class Read, class Work, class Write>
void ordered_pipeline(size_t threads, Read read, Work work, Write write) {
  OrderedPipeline<Item, Read, Work, Write>(threads, read, work, write).run();
}

}  // namespace trivet

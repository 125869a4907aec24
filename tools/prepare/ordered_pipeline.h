// A three-stage pipeline over a stream of items: read one at a time, process on many threads, write one at a time in
// the order in which they were read.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/parallel_for.h"

namespace trivet {

// read(item) fills an item, or returns false at the end; work(item) and write(item) follow. All `threads`, including
// the calling one, run all three stages, but only one thread at a time calls read(), and only one calls write(). At
// most 2 * threads items exist at a time. The first exception stops the pipeline and is rethrown once all threads are
// done. REQUIRES: Item is default-constructible and movable.
template <class Item, class Read, class Work, class Write>
void ordered_pipeline(size_t threads, const Read& read, const Work& work, const Write& write) {
  threads = std::max<size_t>(1, threads);
  std::mutex reading;  // held while an item is read
  bool ended = false;  // guarded by `reading`, like `next`: the input has ended, or a read has failed
  size_t next = 0;     // items read
  std::mutex mutex;    // guards all below
  std::condition_variable changed;
  size_t written = 0;
  std::map<size_t, Item> done;  // by item number, waiting to be written
  bool writing = false, failed = false;
  const auto take_turns = [&] {
    for (Item item;; item = Item()) {
      size_t number = 0;
      {
        const std::lock_guard one_reads(reading);
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return failed || next - written < 2 * threads; });
          if (failed) return;
        }
        if (std::exchange(ended, true) || !read(item)) return;
        ended = false;
        number = next++;
      }
      work(item);
      std::unique_lock lock(mutex);
      done.emplace(number, std::move(item));
      // Writes this item and its successors. If an earlier item is not done, its thread writes this one too.
      while (!writing && !failed && !done.empty() && done.begin()->first == written) {
        const Item ready = std::move(done.extract(done.begin()).mapped());
        writing = true;
        lock.unlock();
        write(ready);
        lock.lock();
        writing = false;
        ++written;
        changed.notify_all();
      }
    }
  };
  parallel_for(threads, threads, [&](size_t) {
    try {
      take_turns();
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        failed = true;
      }
      changed.notify_all();
      throw;
    }
  });
}

}  // namespace trivet

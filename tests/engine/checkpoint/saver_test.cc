// Checkpoints below the trainer: slices, damaged files, and saves that are killed or fail at each file-system
// operation.
#include "engine/checkpoint/saver.h"

#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <sys/wait.h>
#include <unistd.h>

#include "base/content_hash.h"
#include "base/json.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/store.h"
#include "kernels/base/arena.h"
#include "kernels/philox.h"
#include "tests/support/slice_index.h"
#include "tests/support/split_device.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

// ---- slices

Slice random_slice(const Shape& global, uint64_t number) {
  auto pick = [&, n = uint64_t{0}](int64_t low, int64_t high) mutable {
    return low + static_cast<int64_t>(philox4x32(number, n++, 5).w[0] % static_cast<uint64_t>(high - low + 1));
  };
  Slice s{.global = global};
  if (global.rank == 2) {
    s.row = pick(0, global[0] - 1);
    s.rows = pick(1, global[0] - s.row);
  }
  const bool all_columns = pick(0, 1) == 1;
  s.col = all_columns ? 0 : pick(0, s.global_cols() - 1);
  s.cols = all_columns ? s.global_cols() : pick(1, s.global_cols() - s.col);
  s.first = pick(0, s.rows * s.cols - 1);
  s.count = pick(0, s.rows * s.cols - s.first);
  return s;
}

TEST(Slice, RunsOfTwoSlicesAreTheElementsTheyShare) {
  for (uint64_t number = 0; number < 4000; ++number) {
    const Shape global = number % 4 == 0 ? Shape{13} : Shape{7, 5};
    const Slice from = random_slice(global, 2 * number), to = random_slice(global, 2 * number + 1);
    std::map<int64_t, int64_t> expected, found;  // index in `to` -> index in `from`
    for (int64_t i = 0; i < from.count; ++i)
      for (int64_t j = 0; j < to.count; ++j)
        if (global_index(from, i) == global_index(to, j)) expected[j] = i;
    int64_t end = 0;
    for_each_run(from, to, [&](int64_t f, int64_t t, int64_t n) {
      ASSERT_GT(n, 0);
      ASSERT_GE(f, end) << "runs ascend";
      end = f + n;
      for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(found.emplace(t + i, f + i).second);
    });
    ASSERT_EQ(found, expected) << number;
  }
}

// ---- a small world: two ranks with one part each of a matrix, one also with a vector, and several blocks of each

constexpr int64_t kRows = 3, kCols = 200'001;  // 2.3 MiB

struct SmallRank {
  std::vector<float> matrix, vector;
  std::vector<StateTensor> tensors;
};

float value_at(int64_t step, int64_t i) { return static_cast<float>(step * 1000) + static_cast<float>(i % 977); }

class SmallWorld {
 public:
  explicit SmallWorld(std::string folder, Disk::Fault fault = {}, int64_t keep_last = 1, bool copies = true) {
    std::filesystem::create_directories(folder);  // as CheckpointStore::prepare() does
    const Slice whole{.global = {kRows, kCols}, .rows = kRows, .cols = kCols};
    for (int rank = 0; rank < 2; ++rank) {
      SmallRank& mine = ranks_[rank];
      Slice part = whole;  // split inside a row and inside a block
      part.first = rank == 0 ? 0 : 123'457;
      part.count = rank == 0 ? 123'457 : kRows * kCols - part.first;
      mine.matrix.resize(static_cast<size_t>(part.count));
      mine.tensors.push_back({"matrix", part, {mine.matrix.data(), DType::f32, {part.count}}});
      if (rank == 1) {
        mine.vector.resize(5);
        mine.tensors.push_back(
            {"vector", {.global = {5}, .cols = 5, .count = 5}, {mine.vector.data(), DType::f32, {5}}});
      }
      int64_t bytes = 0;
      for (const StateTensor& tensor : mine.tensors) bytes += tensor.data.bytes();
      snapshots_[rank].resize(static_cast<size_t>(bytes));
      const Tensor snapshot{snapshots_[rank].data(), DType::u8, {bytes}};
      savers_[rank] =
          std::make_unique<CheckpointSaver>(CheckpointSaver::Options{.store = CheckpointStore(folder, Disk(fault)),
                                                                     .rank = rank,
                                                                     .ranks = 2,
                                                                     .run = "abc",
                                                                     .layout = "two ranks",
                                                                     .config = "# none\n",
                                                                     .keep = {.last = keep_last}},
                                            mine.tensors, copies ? snapshot : Tensor{}, *device_, *stream_);
    }
  }

  void fill(int64_t step) {
    for (int rank = 0; rank < 2; ++rank)
      for (const StateTensor& tensor : ranks_[rank].tensors)
        for (int64_t i = 0; i < tensor.slice.count; ++i)
          tensor.data.as<float>()[i] = value_at(step, global_index(tensor.slice, i));
  }
  void begin(int64_t step) {
    fill(step);
    for (auto& saver : savers_)
      saver->begin({.step = step, .consumed_samples = 8 * step, .consumed_tokens = 64 * step});
  }
  SaveEvent boundary() {
    SaveVote sum;
    for (auto& saver : savers_) {
      const SaveVote vote = saver->vote();
      sum.busy += vote.busy;
      sum.failed += vote.failed;
    }
    const SaveEvent event = savers_[0]->advance(sum);
    EXPECT_EQ(savers_[1]->advance(sum), event);
    return event;
  }
  SaveEvent wait() {
    for (;;) {
      for (auto& saver : savers_) saver->wait();
      if (const SaveEvent event = boundary(); event != SaveEvent::none) return event;
    }
  }
  SaveEvent save(int64_t step) {
    begin(step);
    return wait();
  }
  std::string error() const { return savers_[0]->error().empty() ? savers_[1]->error() : savers_[0]->error(); }
  CheckpointSaver& saver(int rank) { return *savers_[rank]; }

 private:
  std::unique_ptr<Device> device_ = create_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->create_compute_stream();
  SmallRank ranks_[2];
  std::vector<char> snapshots_[2];
  std::unique_ptr<CheckpointSaver> savers_[2];
};

// Checks the contents, read whole and as a slice without any alignment; throws what the reader throws.
void expect_holds(const std::string& path, int64_t step) {
  const OpenCheckpoint checkpoint = open_checkpoint(path);
  EXPECT_EQ(checkpoint.state.step, step);
  EXPECT_EQ(checkpoint.state.consumed_samples, 8 * step);
  const auto device = create_cpu_device();
  const auto stream = device->create_compute_stream();
  for (const Slice& slice : {Slice{.global = {kRows, kCols}, .rows = kRows, .cols = kCols, .count = kRows * kCols},
                             Slice{.global = {kRows, kCols},
                             .row = 1,
                             .rows = 2,
                             .col = 77'777,
                             .cols = 50'000,
                             .first = 9,
                             .count = 99'000}}) {
    std::vector<float> found(static_cast<size_t>(slice.count));
    const StateTensor wanted{"matrix", slice, {found.data(), DType::f32, {slice.count}}};
    read_tensors(checkpoint, {&wanted, 1}, *device, *stream);
    for (int64_t i = 0; i < slice.count; ++i)
      ASSERT_EQ(found[static_cast<size_t>(i)], value_at(step, global_index(slice, i))) << i;
  }
  float vector[5];
  const StateTensor wanted{"vector", {.global = {5}, .cols = 5, .count = 5}, {vector, DType::f32, {5}}};
  read_tensors(checkpoint, {&wanted, 1}, *device, *stream);
  EXPECT_EQ(vector[4], value_at(step, 4));
  verify_checkpoint(checkpoint, [](int64_t) {});
}

std::string folder_listing(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, " "));
}

TEST(Saver, SavesWhatStoodInMemoryWhenItBegan) {
  const TempDir dir;
  std::mutex disk_busy;
  SmallWorld world(dir / "c", [&](DiskOp, const std::string&) {
    const std::lock_guard wait(disk_busy);
    return DiskFate::normal;
  });
  {
    const std::lock_guard slow_disk(disk_busy);
    world.begin(1);
    world.fill(2);  // training continues
    EXPECT_EQ(world.boundary(), SaveEvent::none);
    EXPECT_TRUE(world.saver(0).saving());
    EXPECT_GT(world.saver(0).vote().busy, 0);
  }
  EXPECT_EQ(world.wait(), SaveEvent::committed);
  expect_holds(dir / "c/step-00000001", 1);
  EXPECT_EQ(read_text(dir / "c/latest"), "step-00000001\n");
  EXPECT_EQ(folder_listing(dir / "c/step-00000001"),
            "config.resolved.yaml manifest.json rank-00000.safetensors rank-00001.safetensors train_state.json");
}

// A device whose memory the host cannot touch, and whose stream does nothing until it is waited for.
TEST(Saver, ReadsAndWritesWhatTheHostCannotTouch) {
  const auto device = create_split_device();
  const auto ops = create_split_ops(*device, 1);
  Arena arena(*device, "saver test");
  const auto compute = device->create_compute_stream();
  // given: tensors of many blocks, of one block and of a few bytes
  std::vector<StateTensor> tensors;
  for (const int64_t n : {700'001, 1 << 18, 3})
    tensors.push_back({fmt::format("t{}", n), {.global = {n}, .cols = n, .count = n}, arena.allocate(DType::f32, {n})});
  std::vector<float> values(700'001);
  std::iota(values.begin(), values.end(), 1.0f);
  int64_t bytes = 0;
  for (const StateTensor& tensor : tensors) bytes += tensor.data.bytes();
  const HostBuffer snapshot(*device, bytes);

  for (const bool copies : {true, false}) {
    for (const StateTensor& tensor : tensors) device->copy_to_device(values.data(), tensor.data, *compute);
    const TempDir dir;
    CheckpointStore(dir / "c").prepare();
    CheckpointSaver saver(
        {.store = CheckpointStore(dir / "c"), .run = "abc", .layout = "one rank", .config = "# none\n"}, tensors,
        copies ? Tensor{snapshot.data(), DType::u8, {bytes}} : Tensor{}, *device, *compute);
    // when: they are saved and, with a snapshot, training continues immediately
    saver.begin({.step = 1});
    if (copies)
      for (const StateTensor& tensor : tensors) ops->run(op::Fill{tensor.data, -1}, *compute);
    SaveEvent event = SaveEvent::none;
    for (; event == SaveEvent::none; event = saver.advance(saver.vote())) saver.wait();
    ASSERT_EQ(event, SaveEvent::committed) << saver.error();
    // then: reading returns the values that were saved, all staged together or the largest alone
    for (const int64_t staged : {kStagedBytes, int64_t{1} << 20}) {
      for (const StateTensor& tensor : tensors) ops->run(op::Fill{tensor.data, -2}, *compute);
      read_tensors(open_checkpoint(dir / "c/step-00000001"), tensors, *device, *compute, 2, Weights::finite, staged);
      for (const StateTensor& tensor : tensors) {
        std::vector<float> found(static_cast<size_t>(tensor.slice.count));
        device->copy_to_host(tensor.data, found.data(), *compute);
        compute->synchronize();
        EXPECT_TRUE(std::equal(found.begin(), found.end(), values.begin())) << tensor.name;
      }
    }
  }
}

TEST(Saver, KeepsTheLast) {
  const TempDir dir;
  SmallWorld world(dir / "c", {}, 2, false);
  for (const int64_t step : {1, 2, 3, 4}) EXPECT_EQ(world.save(step), SaveEvent::committed);
  EXPECT_EQ(folder_listing(dir / "c"), "latest step-00000003 step-00000004");
  // A run restarted from step 2 leaves alone the steps that it has not reached, and replaces those that it has.
  EXPECT_EQ(world.save(3), SaveEvent::committed);
  EXPECT_EQ(folder_listing(dir / "c"), "latest step-00000003 step-00000004");
  EXPECT_EQ(read_text(dir / "c/latest"), "step-00000003\n");
  expect_holds(dir / "c/step-00000003", 3);
}

// Kills the process at the n-th disk operation, counted over both ranks' threads.
Disk::Fault killed_at(int n) {
  auto left = std::make_shared<std::atomic<int>>(n);
  return [left](DiskOp, const std::string&) {
    if (--*left == 0) raise(SIGKILL);
    return DiskFate::normal;
  };
}

// Under a sanitizer, only every second operation of a save: a stride coprime to the number of kinds of refusals.
constexpr int kStride = kMatrixStride == 1 ? 1 : 2;

struct NextSave {
  const char* name;
  int64_t step;
  bool exchanges =
      true;  // whether the file system can exchange; if it cannot, a step that is saved again is missing for a moment
};
class CrashPoint : public testing::TestWithParam<NextSave> {};

// Step 1 is committed; a save of the next step is killed before each of its operations in turn.
TEST_P(CrashPoint, LeavesACommittedCheckpointThatLoads) {
  const auto [name, next, exchanges] = GetParam();
  int points = 0, without = 0;
  for (bool survived = false; !survived; points += kStride) {
    ASSERT_LT(points, 200);
    const TempDir dir;
    const std::string folder = dir / "c";
    EXPECT_EQ(SmallWorld(folder).save(1), SaveEvent::committed);
    const pid_t child = fork();
    if (child == 0) {
      SmallWorld world(folder, [kill = killed_at(points + 1)](DiskOp op, const std::string& path) {
        kill(op, path);
        return op == DiskOp::exchange && !GetParam().exchanges ? DiskFate::unsupported : DiskFate::normal;
      });
      _exit(world.save(next) == SaveEvent::committed ? 0 : 3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    survived = WIFEXITED(status);
    ASSERT_EQ(survived ? WEXITSTATUS(status) : WTERMSIG(status), survived ? 0 : SIGKILL);

    const CheckpointStore store(folder);
    const std::vector<int64_t> steps = store.steps();
    if (steps.empty()) {
      ++without;
      continue;
    }
    for (const int64_t step : steps) {
      SCOPED_TRACE(fmt::format("step {}, killed before operation {}", step, points + 1));
      expect_holds(store.path_of(step), step);
    }
    ASSERT_TRUE(store.latest().has_value()) << "killed before operation " << points + 1;
    store.prepare();  // the next start
    EXPECT_EQ(folder_listing(folder).find("tmp"), std::string::npos) << folder_listing(folder);
    EXPECT_EQ(store.steps(), steps);
    if (survived) {
      EXPECT_EQ(steps, std::vector{next});
    }
  }
  EXPECT_GT(points, 25);  // directories, four writes, seven syncs, three renames and removals, at least
  // The step is missing once, or twice if the ranks' threads were interleaved differently.
  EXPECT_LE(without, exchanges ? 0 : 2);
}
INSTANTIATE_TEST_SUITE_P(OfASave, CrashPoint,
                         testing::Values(NextSave{"Next", 2}, NextSave{"SameStepAgain", 1},
                                         NextSave{"SameStepAgainOnNfs", 1, false}),
                         [](const auto& param) { return param.param.name; });

// As on NFS and Lustre, the system call itself returns EINVAL, here because one folder is inside the other.
TEST(Saver, ExchangesWhereTheFileSystemCan) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "a/b");
  std::filesystem::create_directories(dir / "c");
  EXPECT_FALSE(Disk().exchange(dir / "a", dir / "a/b"));
  EXPECT_TRUE(Disk().exchange(dir / "a", dir / "c"));
  EXPECT_TRUE(std::filesystem::exists(dir / "c/b"));
  EXPECT_THROW(Disk().exchange(dir / "none", dir / "c"), IoError);
}

// Everything is durable before anything that depends on it gets a name: for each operation, the test checks that the
// earlier operations it relies on have been synchronised.
TEST(Saver, SynchronisesEverythingBeforeItIsNamed) {
  for (const int64_t again : {2, 1}) {  // after step 1, or in its place
    // given: the operations of a run's first save and of another save
    const TempDir dir;
    const std::string folder = dir / "run/checkpoints";
    struct Operation {
      DiskOp op;
      std::string path;
    };
    std::vector<Operation> log;
    std::mutex mutex;
    const Disk::Fault record = [&](DiskOp op, const std::string& path) {
      const std::lock_guard lock(mutex);
      log.push_back({op, path});
      return DiskFate::normal;
    };
    Disk(record).make_directories(dir / "run");
    CheckpointStore(folder, Disk(record)).prepare();
    SmallWorld world(folder, record);
    ASSERT_EQ(world.save(1), SaveEvent::committed);
    ASSERT_EQ(world.save(again), SaveEvent::committed);

    // then: when a name is created, or what it replaces is removed, everything the name refers to is on the disk
    std::set<std::string> content, names;  // not yet synchronised: a power failure may lose them
    std::set<std::string> synchronised;
    const auto parent = [](const std::string& path) { return std::filesystem::path(path).parent_path().string(); };
    const auto temporary = [&](const std::string& path) {
      return path.substr(folder.size()).find(".tmp") != path.npos;
    };
    int renames = 0, removals = 0;
    for (const auto& [op, path] : log) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(op), path));
      switch (op) {
        case DiskOp::make_directory:
        case DiskOp::create: names.insert(path); break;
        case DiskOp::reserve: break;
        case DiskOp::write: content.insert(path); break;
        case DiskOp::sync:
          synchronised.insert(path);
          content.erase(path);
          std::erase_if(names, [&](const std::string& name) { return parent(name) == path; });
          break;
        case DiskOp::rename:
        case DiskOp::exchange:
          ++renames;
          EXPECT_EQ(content, std::set<std::string>{});
          for (const std::string& name : names) EXPECT_TRUE(parent(name) == folder && temporary(name)) << name;
          names.insert(path);
          break;
        case DiskOp::remove:
          if (path.ends_with(".json")) break;
          ++removals;
          for (const std::string& name : names) EXPECT_TRUE(temporary(name)) << name;
          break;
      }
    }
    EXPECT_EQ(renames, again == 2 ? 5 : 4);  // the steps, latest, and the old one
    EXPECT_EQ(removals, 1);
    EXPECT_TRUE(synchronised.contains(parent(folder))) << "where the folder itself has its name";
    EXPECT_TRUE(synchronised.contains(parent(parent(folder))));
  }
}

TEST(Saver, GoesOnWhereOldCheckpointsCannotBeRemoved) {
  // given: a file system that removes nothing, like NFS if a file in the folder is open
  const TempDir dir;
  std::atomic<bool> refuses = false;
  SmallWorld world(dir / "c", [&](DiskOp op, const std::string& path) {
    return refuses && op == DiskOp::remove && !path.ends_with(".json") ? DiskFate::io_error : DiskFate::normal;
  });
  ASSERT_EQ(world.save(1), SaveEvent::committed);
  refuses = true;
  // then: the save is committed, and reports what remains
  EXPECT_EQ(world.save(2), SaveEvent::committed) << world.error();
  EXPECT_NE(world.saver(0).not_removed().find("step-00000001"), std::string::npos) << world.saver(0).not_removed();
  expect_holds(dir / "c/step-00000002", 2);
  EXPECT_EQ(world.save(2), SaveEvent::committed) << world.error();  // replaces step 2
  // and: the next start is not refused either
  const CheckpointStore store(dir / "c", Disk([](DiskOp op, const std::string&) {
                                return op == DiskOp::remove ? DiskFate::io_error : DiskFate::normal;
                              }));
  EXPECT_NE(store.prepare().find(dir / "c"), std::string::npos);
  // and: it is removed once that is possible
  refuses = false;
  EXPECT_EQ(world.save(3), SaveEvent::committed);
  EXPECT_EQ(world.saver(0).not_removed(), "");
  EXPECT_EQ(store.steps(), std::vector<int64_t>{3});
  EXPECT_EQ(CheckpointStore(dir / "c").prepare(), "");
  EXPECT_EQ(folder_listing(dir / "c"), "latest step-00000003");
}

// A deleted run stays deleted, at whatever moment its folder is removed.
TEST(Saver, DoesNotMakeADeletedFolderAnew) {
  const TempDir dir;
  SmallWorld world(dir / "run/checkpoints");
  std::filesystem::remove_all(dir / "run");
  EXPECT_EQ(world.save(1), SaveEvent::failed);
  EXPECT_THROW(CheckpointStore(dir / "run/checkpoints").prepare(), IoError);
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

// The names of data and folders need not be UTF-8.
TEST(Saver, SavesNamesOfAnyBytes) {
  const TempDir dir;
  const Disk disk;
  disk.make_directories(dir / "c");
  write_manifest(disk, dir / "c", {.step = 3, .run = "r", .layout = "by \xe4.txt"},
                 {.step = 3, .config = {{"data.path", "/d\xff/x"}}}, "data: {path: \"/d\xff/x\"}\n");
  const OpenCheckpoint found = open_checkpoint(dir / "c");
  EXPECT_EQ(found.manifest.layout, "by \xef\xbf\xbd.txt");
  EXPECT_EQ(found.state.config.at("data.path"), "/d\xef\xbf\xbd/x");
}

TEST(Saver, NamesAFolderThatCannotBeListed) {
  const TempDir dir;
  ASSERT_EQ(SmallWorld(dir / "c").save(1), SaveEvent::committed);
  std::filesystem::permissions(dir / "", std::filesystem::perms(0711));
  for (const char* name : {"c", "c/step-00000001"})
    std::filesystem::permissions(dir / name, std::filesystem::perms(0311));
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(9);  // root may list everything
    const auto refused = [&](const std::string& path, const auto& action) {
      try {
        action();
      } catch (const IoError& error) {
        return std::string(error.what()) == path + ": cannot list it: Permission denied";
      }
      return false;
    };
    const bool both = refused(dir / "c", [&] { CheckpointStore(dir / "c").prepare(); }) &&
                      refused(dir / "c/step-00000001", [&] { open_checkpoint(dir / "c/step-00000001"); });
    _exit(both ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Disk, SomeFileSystemsHaveNothingToSynchroniseForFolders) {
  EXPECT_NO_THROW(Disk().sync_directory("/proc"));
  EXPECT_THROW(Disk().sync_directory("/proc/nothing"), IoError);
}

TEST(Disk, AsksTheSystemToSynchroniseFiles) {
  Disk disk;
  Disk::File file(disk, "/dev/null", 0);  // a file that cannot be synchronised
  EXPECT_THROW(file.sync(), IoError);
}

TEST(Saver, SurvivesADiskThatRefusesAnyOfItsOperations) {
  struct Refusal {
    DiskFate fate;
    int error;
  };
  constexpr Refusal kRefusals[] = {
      {DiskFate::no_space, ENOSPC}, {DiskFate::io_error, EIO}, {DiskFate::read_only, EROFS}};
  int points = 0;
  for (bool all_done = false; !all_done; points += kStride) {
    SCOPED_TRACE(fmt::format("operation {}", points + 1));
    const auto [fate, error] = kRefusals[points % 3];
    const TempDir dir;
    std::atomic<int> left = 1 << 30;
    SmallWorld world(dir / "c", [&](DiskOp, const std::string&) { return --left == 0 ? fate : DiskFate::normal; });
    ASSERT_EQ(world.save(1), SaveEvent::committed);
    left = points + 1;
    const SaveEvent event = world.save(2);
    all_done = left > 0;
    left = 1 << 30;
    if (all_done) {
      EXPECT_EQ(event, SaveEvent::committed);
    } else if (event == SaveEvent::committed) {  // everything but the removal of the old step
      EXPECT_EQ(CheckpointStore(dir / "c").latest(), 2);
      EXPECT_NE(world.saver(0).not_removed().find(std::strerror(error)), std::string::npos);
    } else {
      EXPECT_EQ(event, SaveEvent::failed);
      EXPECT_NE(world.error().find(dir / "c"), std::string::npos) << world.error();
      EXPECT_NE(world.error().find(std::strerror(error)), std::string::npos) << world.error();
      EXPECT_EQ(world.error().find("bytes are free") != std::string::npos, error == ENOSPC) << world.error();
    }
    const CheckpointStore store(dir / "c");
    for (const int64_t step : store.steps()) expect_holds(store.path_of(step), step);
    ASSERT_TRUE(store.latest().has_value());
    EXPECT_EQ(world.save(3), SaveEvent::committed) << world.error();  // the next save works normally
    store.prepare();                                                  // the next start removes the leftovers
    EXPECT_EQ(folder_listing(dir / "c"), "latest step-00000003");
  }
  EXPECT_GT(points, 25);
}

// ---- what must not be loaded

class Damaged : public testing::Test {
 protected:
  Damaged() {
    SmallWorld world(dir_ / "c");
    EXPECT_EQ(world.save(1), SaveEvent::committed);
  }
  void expect_refused(const std::string& text) {
    try {
      expect_holds(path_, 1);
      FAIL() << "it was loaded; expected: " << text;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what() << "\nexpected: " << text;
    }
  }
  void edit(const std::string& name, const std::function<void(std::string&)>& change) {
    std::string text = read_text(path_ + "/" + name);
    change(text);
    write_text(path_ + "/" + name, text);
  }
  // Gives the changed manifest a hash that matches.
  void edit_manifest(const std::function<void(nlohmann::json&)>& change) {
    edit("manifest.json", [&](std::string& text) {
      nlohmann::json json = parse_json(text);
      change(json);
      json.erase("xxh3_128");
      json["xxh3_128"] = content_hash(json.dump());
      text = json.dump();
    });
  }

  const TempDir dir_;
  const std::string path_ = dir_ / "c/step-00000001";
  const std::string shard_ = "rank-00001.safetensors";
};

TEST_F(Damaged, PayloadIsNamed) {
  for (const double place : {0.1, 0.5, 0.999}) {
    edit(shard_, [&](std::string& text) { text[static_cast<size_t>(place * static_cast<double>(text.size()))] ^= 4; });
    expect_refused("/rank-00001.safetensors: tensor ");
    edit(shard_, [&](std::string& text) { text[static_cast<size_t>(place * static_cast<double>(text.size()))] ^= 4; });
  }
  expect_holds(path_, 1);
}

TEST_F(Damaged, HeaderIsNamed) {
  edit(shard_, [](std::string& text) { text[text.find("range")] = 'R'; });
  expect_refused("rank-00001.safetensors: its header does not agree with the manifest");
}

// Even bits that affect no tensor element: in offsets, a name, the padding.
TEST_F(Damaged, EachBitOfAHeaderCounts) {
  const size_t bytes = static_cast<size_t>(read_safetensors(InputFile(path_ + "/" + shard_)).data_offset);
  for (size_t at = 0; at < bytes; at += 7) {
    const auto flip = [&](std::string& text) { text[at] = static_cast<char>(text[at] ^ (1 << at % 8)); };
    edit(shard_, flip);
    expect_refused("rank-00001.safetensors: its header does not agree with the manifest");
    edit(shard_, flip);
  }
  expect_holds(path_, 1);
}

TEST_F(Damaged, SizesAreCompared) {
  edit(shard_, [](std::string& text) { text.pop_back(); });
  expect_refused("rank-00001.safetensors: has 1");
  edit(shard_, [](std::string& text) { text += "xy"; });
  expect_refused("rank-00001.safetensors: has 1");
  edit(shard_, [](std::string& text) { text.clear(); });
  expect_refused("rank-00001.safetensors: has 0 bytes, expected 1");
}

TEST_F(Damaged, MissingAndExtraShards) {
  std::filesystem::copy(path_ + "/" + shard_, path_ + "/rank-00002.safetensors");
  expect_refused("rank-00002.safetensors: a shard that");
  std::filesystem::remove(path_ + "/rank-00002.safetensors");
  std::filesystem::remove(path_ + "/" + shard_);
  expect_refused("rank-00001.safetensors: No such file or directory");
}

TEST_F(Damaged, ShardOfAnotherStep) {
  ASSERT_EQ(SmallWorld(dir_ / "d").save(2), SaveEvent::committed);
  std::filesystem::copy(dir_ / "d/step-00000002/rank-00000.safetensors", path_ + "/rank-00000.safetensors",
                        std::filesystem::copy_options::overwrite_existing);
  expect_refused("rank-00000.safetensors: tensor matrix: found the hash");
}

TEST_F(Damaged, SmallFiles) {
  edit("train_state.json", [](std::string& text) { text[text.find("64") + 1] = '5'; });
  expect_refused("train_state.json: found the hash");
  edit("manifest.json", [](std::string& text) { text[text.find("two ranks")] = 'T'; });
  expect_refused("manifest.json: found the hash");
  edit("manifest.json", [](std::string& text) { text.resize(text.size() / 2); });
  expect_refused("manifest.json: not valid JSON");
  edit("manifest.json", [](std::string& text) { text.clear(); });
  expect_refused("manifest.json: not valid JSON");
  std::filesystem::remove(path_ + "/manifest.json");
  expect_refused("manifest.json: not found: this is not a committed checkpoint");
}

TEST_F(Damaged, Versions) {
  edit_manifest([](nlohmann::json& m) {
    m["version"] = {1, 7};
    m["something_new"] = {{"x", 1}};
  });
  expect_holds(path_, 1);
  edit_manifest([](nlohmann::json& m) { m["version"] = {2, 0}; });
  expect_refused("version: found 2.0, expected 1.x, which this Trivet reads");
  edit_manifest([](nlohmann::json& m) { m["format"] = "other"; });
  expect_refused("format: found 'other'");
}

// Malicious manifests with valid hashes.
TEST_F(Damaged, ImpossibleManifests) {
  const std::string good = read_text(path_ + "/manifest.json");
  const auto refused = [&](const std::function<void(nlohmann::json&)>& change, const std::string& text) {
    edit_manifest(change);
    expect_refused(text);
    write_text(path_ + "/manifest.json", good);
  };
  const auto piece = [](nlohmann::json& m) -> nlohmann::json& { return m["files"][0]["pieces"][0]; };
  refused([](auto& m) { m["files"][0]["file"] = "../other"; }, "file: found '../other'");
  refused([](auto& m) { m["files"][0]["file"] = ".."; }, "file: found '..'");
  refused([](auto& m) { m["files"][0]["bytes"] = -1; }, "bytes: found -1");
  refused([](auto& m) { m["files"][0]["bytes"] = 1e30; }, "bytes: found 1e+30");
  refused([&](auto& m) { piece(m)["offset"] = 1'000'000'000; }, "offset: found");
  refused([&](auto& m) { piece(m)["global_shape"] = {4, kCols}; }, "the shapes");
  refused([&](auto& m) { piece(m)["global_shape"] = {1ull << 63, 4}; }, "global_shape: found");
  refused([&](auto& m) { piece(m)["global_shape"] = {int64_t{1} << 40, int64_t{1} << 40}; }, "global_shape: found");
  refused(
      [&](auto& m) {  // the end of the range is 2^63
        piece(m)["global_shape"] = {int64_t{1} << 40, int64_t{1} << 22};
        piece(m)["box"] = {0, int64_t{1} << 40, 0, int64_t{1} << 22};
        piece(m)["range"] = {int64_t{1} << 62, int64_t{1} << 62};
        piece(m)["xxh3_64"] = "";
      },
      "global_shape: found");
  refused([&](auto& m) { piece(m)["box"] = {0, 4, 0, kCols}; }, "box: found rows 0+4");
  refused([&](auto& m) { piece(m)["box"] = {0, 0, 0, 0}; }, "box: found");
  refused([&](auto& m) { piece(m)["range"] = {1, kRows * kCols}; }, "range: found");
  refused([&](auto& m) { m["files"][1]["pieces"][0]["range"] = {0, 100}; }, "xxh3_64: found 32 characters");
  refused([&](auto& m) { piece(m)["xxh3_64"] = "zzzzzzzzzzzzzzzz"; }, "xxh3_64: found");
  refused([&](auto& m) { piece(m).erase("tensor"); }, "tensor: found nothing");
  refused([](auto& m) { m["files"][0]["pieces"].push_back(m["files"][0]["pieces"][0]); }, "two of its slices overlap");
  refused([](auto& m) { m["files"][0]["pieces"].clear(); }, "its slices hold");
  refused([](auto& m) { m["step"] = "1"; }, "step: found \"1\"");
  // The right number of elements, but one occurs twice and another not at all.
  refused([&](auto& m) { m["files"][1]["pieces"][0]["range"][0] = 0; }, "two of its slices overlap");
  // The same of boxes that share rows or columns without being equal.
  for (const auto& box : {std::vector<int64_t>{0, kRows - 1, 0, kCols}, {0, kRows, 0, kCols - 1}, {1, 1, 0, kCols}})
    refused([&](auto& m) { piece(m)["box"] = box; }, "two of its slices overlap");
  refused([](auto& m) { m["step"] = 2; }, "step: found 1, expected the manifest's 2");
  write_text(path_ + "/manifest.json", "{\"format\":1,\"format\":2}");
  expect_refused("the key \"format\" occurs twice");
  write_text(path_ + "/manifest.json", std::string(100'000, '['));
  expect_refused("nested more than 8 deep");
}

TEST_F(Damaged, WritesThatReportSuccessAndAreNot) {
  int points = 0;
  for (bool all_whole = false; !all_whole; ++points) {
    const TempDir dir;
    std::atomic<int> left = points + 1;
    std::atomic<bool> torn = false;
    SmallWorld world(dir / "c", [&](DiskOp op, const std::string&) {
      if (op != DiskOp::write || --left != 0) return DiskFate::normal;
      torn = true;
      return DiskFate::torn;
    });
    const SaveEvent event = world.save(1);
    all_whole = !torn;
    const CheckpointStore store(dir / "c");
    if (event == SaveEvent::failed) {
      EXPECT_TRUE(torn);
      EXPECT_TRUE(store.steps().empty());
      continue;
    }
    expect_holds(store.path_of(1), 1);
    EXPECT_EQ(store.latest().has_value(), all_whole);  // torn: `latest` itself, which is dispensable
  }
  EXPECT_GT(points, 8);
}

TEST(Store, ThoseBeforeTheLatestComeBeforeThoseThatWereGivenUp) {
  const TempDir dir;
  SmallWorld world(dir / "c", {}, 0);
  for (const int64_t step : {1, 2, 3, 4, 2}) ASSERT_EQ(world.save(step), SaveEvent::committed);
  const CheckpointStore store(dir / "c");
  EXPECT_EQ(store.paths(), (std::vector{store.path_of(2), store.path_of(1), store.path_of(4), store.path_of(3)}));
  std::filesystem::remove(dir / "c/latest");
  EXPECT_EQ(store.paths().front(), store.path_of(4));
}

TEST(Store, LatestThatNamesNoStepIsPassedOver) {
  const TempDir dir;
  ASSERT_EQ(SmallWorld(dir / "c").save(1), SaveEvent::committed);
  const CheckpointStore store(dir / "c");
  for (const char* text : {"", "step-00000007\n", "../../etc\n", "step-1\n", "step-00000001x"}) {
    write_text(dir / "c/latest", text);
    EXPECT_FALSE(store.latest().has_value()) << text;
  }
  write_text(dir / "c/latest", std::string(1000, 'x'));
  EXPECT_FALSE(store.latest().has_value());
  EXPECT_EQ(store.steps(), std::vector<int64_t>{1});
  EXPECT_TRUE(CheckpointStore(dir / "nothing").steps().empty());
}

}  // namespace
}  // namespace trivet::test

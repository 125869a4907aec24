#include "base/files.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/content_hash.h"
#include "base/host.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"

namespace {

// What this thread has synchronised, and the files' sizes at that time, while `synchronised` is set. fails: the error.
thread_local std::vector<std::pair<std::string, int64_t>>* synchronised = nullptr;
thread_local int fails = 0;

}  // namespace

// In place of the C library's.
extern "C" int fsync(int fd) {
  if (synchronised) {
    struct stat status {};
    fstat(fd, &status);
    synchronised->emplace_back(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).string(),
                               S_ISDIR(status.st_mode) ? -1 : status.st_size);
  }
  if (fails != 0) return errno = fails, -1;
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace trivet {
namespace {

// Data reach the disk before their file has its name, and the name before commit() returns.
TEST(OutputFile, IsOnTheDiskBeforeItHasItsName) {
  for (const bool first : {false, true})
    for (const int64_t bytes : {0, 5, 10 << 20}) {
      const TempDir dir;
      const std::string path = dir / "file", folder = std::filesystem::canonical(dir / "").string();
      OutputFile file(path, path + ".mine");
      file.write(std::string(static_cast<size_t>(bytes), 'x'));
      std::vector<std::pair<std::string, int64_t>> log;
      synchronised = &log;
      if (first) file.commit_as_first();
      else file.commit();
      synchronised = nullptr;
      EXPECT_EQ(log, (std::vector<std::pair<std::string, int64_t>>{{folder + "/file.mine", bytes}, {folder, -1}}));
    }
}

TEST(OutputFile, ThatCannotBeSynchronisedLeavesTheOldOne) {
  const TempDir dir;
  write_text(dir / "file", "old");
  fails = EIO;
  EXPECT_THROW(write_file(dir / "file", "new"), IoError);
  fails = 0;
  EXPECT_EQ(read_text(dir / "file"), "old");
  EXPECT_EQ(list_directory(dir / ""), std::vector<std::string>{"file"});
}

TEST(OutputFile, TheFirstToComeKeepsTheName) {
  // given: two writers of one path at the same time
  const TempDir dir;
  const std::string path = dir / "outcome";
  OutputFile first(path, path + ".1"), second(path, path + ".2");
  first.write("first");
  second.write("second");
  // when
  EXPECT_TRUE(first.commit_as_first());
  EXPECT_FALSE(second.commit_as_first());
  // then: the file is the first writer's, and stays locked for that writer's lifetime
  EXPECT_EQ(read_text(path), "first");
  EXPECT_FALSE(file_exists(path + ".1"));
  const int fd = open(path.c_str(), O_RDONLY);
  EXPECT_EQ(flock(fd, LOCK_SH | LOCK_NB), -1);
  close(fd);
}

TEST(OutputFile, AWriterThatCameTooLateLeavesNothing) {
  const TempDir dir;
  write_text(dir / "a", "there");
  {
    OutputFile file(dir / "a", dir / "a.mine");
    file.write("mine");
    EXPECT_FALSE(file.commit_as_first());
  }
  EXPECT_EQ(list_directory(dir / ""), std::vector<std::string>{"a"});
  EXPECT_EQ(read_text(dir / "a"), "there");
}

TEST(WriteFile, ReplacesAFileWholeAndFillsADeviceAsItIs) {
  const TempDir dir;
  write_text(dir / "a", "a longer text than the new one");
  write_file(dir / "a", "new");
  EXPECT_EQ(read_text(dir / "a"), "new");
  EXPECT_EQ(list_directory(dir / ""), std::vector<std::string>{"a"});
  write_file("/dev/null", "anything");
  write_file("/dev/stdout", "");
  EXPECT_NE(message_of<IoError>([] { write_file("/dev/full", "x"); }).find("No space left"), std::string::npos);
  EXPECT_THROW(write_file(dir / "none/a", "x"), IoError);
}

TEST(OutputFile, AFileThatIsReplacedKeepsItsMode) {
  const TempDir dir;
  write_text(dir / "private", "old");
  std::filesystem::permissions(dir / "private", std::filesystem::perms{0600});
  write_file(dir / "private", "new");
  EXPECT_EQ(read_text(dir / "private"), "new");
  EXPECT_EQ(std::filesystem::status(dir / "private").permissions(), std::filesystem::perms{0600});
}

// In a folder where another user has created links to a file that only this user may write.
TEST(OutputFile, NoLinkIsFollowedAndNoNameForeseen) {
  const TempDir dir;
  write_text(dir / "victim", "precious");
  for (const char* name : {"a.tmp", "link", "log"}) std::filesystem::create_symlink(dir / "victim", dir / name);
  std::filesystem::create_hard_link(dir / "victim", dir / "b.tmp");
  ASSERT_EQ(mkfifo((dir / "c.tmp").c_str(), 0600), 0);
  const auto refused = [](const auto& f) { return message_of<IoError>(f); };
  write_file(dir / "a", "new");
  EXPECT_EQ(read_text(dir / "a"), "new");
  EXPECT_NE(refused([&] { write_file(dir / "link", "x"); }).find("link: is a symbolic link"), std::string::npos);
  EXPECT_NE(refused([&] { check_writable({dir / "link"}); }).find("link: is a symbolic link"), std::string::npos);
  EXPECT_NE(refused([&] { AppendFile(dir / "log", AppendFile::Start::empty, {}); }).find("/log: "), std::string::npos);
  EXPECT_NE(refused([&] { OutputFile(dir / "a", dir / "a.tmp"); }).find("a.tmp: "), std::string::npos);
  for (const char* name : {"b.tmp", "c.tmp"})
    EXPECT_NE(refused([&] { OutputFile(dir / "b", dir / name); }).find(name), std::string::npos) << name;
  EXPECT_EQ(read_text(dir / "victim"), "precious");
  const OutputFile first(dir / "d"), second(dir / "d");
  EXPECT_NE(first.temporary(), second.temporary());
}

TEST(OutputFile, RemovesWhatKilledWritersLeftAndNothingElse) {
  const TempDir dir;
  for (const char* name : {"a.tmp-0123abcd", "a.tmp-backup", "a.tmp-01234567x", "b.tmp-01234567"})
    write_text(dir / name, "");
  const OutputFile living(dir / "a");
  write_file(dir / "a", "new");
  EXPECT_FALSE(file_exists(dir / "a.tmp-0123abcd"));
  EXPECT_TRUE(file_exists(living.temporary()));
  for (const char* name : {"a.tmp-backup", "a.tmp-01234567x", "b.tmp-01234567"})
    EXPECT_TRUE(file_exists(dir / name)) << name;
}

TEST(ForEachLine, LeavesOutALineThatWasCutOff) {
  const TempDir dir;
  write_text(dir / "log", "a\n\nb\nhalf of a li");
  std::vector<std::pair<int64_t, std::string>> lines;
  for_each_line(dir / "log", [&](const std::string& line, int64_t number) { lines.emplace_back(number, line); });
  EXPECT_EQ(lines, (std::vector<std::pair<int64_t, std::string>>{{1, "a"}, {2, ""}, {3, "b"}}));
  EXPECT_THROW(for_each_line(dir / "none", [](const std::string&, int64_t) {}), IoError);
  EXPECT_THROW(for_each_line("/dev/zero", [](const std::string&, int64_t) {}), DataError);
}

TEST(ContentHash, OfAFileIsThatOfItsBytes) {
  const TempDir dir;
  const std::string bytes((3 << 20) + 17, 'x');
  write_text(dir / "a", bytes);
  EXPECT_EQ(content_hash(InputFile(dir / "a")), content_hash(bytes));
  EXPECT_EQ(sampled_hash(InputFile(dir / "a")), content_hash(bytes));
}

TEST(ContentHash, ASampleHasBothEndsOfALargeFile) {
  const TempDir dir;
  const auto size = static_cast<size_t>(kSampledBytes) + 12345;
  const std::string bytes(size, 'x');
  const auto hash_with = [&](size_t changed) {
    std::string now = bytes;
    if (changed < size) now[changed] = 'y';
    write_text(dir / "a", now);
    return sampled_hash(InputFile(dir / "a"));
  };
  const std::string before = hash_with(size);
  EXPECT_NE(hash_with(0), before);
  EXPECT_NE(hash_with(3 * 65536 + 1000), before);
  EXPECT_NE(hash_with(size - 1), before);
}

// A change of more than a 255th of a file is noticed, wherever it is.
TEST(ContentHash, ASampleIsSpreadOverALargeFile) {
  const TempDir dir;
  constexpr int64_t kSize = 8 * kSampledBytes, kParts = 8;
  write_text(dir / "a", "");
  std::filesystem::resize_file(dir / "a", kSize);  // sparse
  std::string before = sampled_hash(InputFile(dir / "a"));
  const std::string changed(kSize / 255 + 1, 'x');
  for (int64_t part = 0; part < kParts; ++part) {
    std::fstream(dir / "a", std::ios::binary | std::ios::in | std::ios::out).seekp(kSize / kParts * part) << changed;
    const std::string now = sampled_hash(InputFile(dir / "a"));
    EXPECT_NE(now, before) << "part " << part;
    before = now;
  }
}

TEST(Host, KnowsProcesses) {
  const ProcessState mine = process_state("/proc/self");
  EXPECT_EQ(mine.state, 'R');
  EXPECT_GT(mine.start, 0);
  EXPECT_EQ(process_state("/proc/" + std::to_string(getpid())).start, mine.start);
  EXPECT_EQ(process_state("/proc/none").start, -1);
  EXPECT_FALSE(host_name().empty());
  const int null = open("/dev/null", O_RDWR);
  EXPECT_EQ(terminal_columns(null), 0);
  close(null);
}

}  // namespace
}  // namespace trivet

#include <csignal>
#include <filesystem>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <vector>

#include "base/files.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

TEST(AppendFile, ARecordIsWrittenWhollyOrNotAtAll) {
  // given: a file that may grow to 100 bytes, and records of 30
  const TempDir dir;
  const std::string record = std::string(29, 'x') + '\n';
  std::vector<std::string> warnings;
  AppendFile file(dir / "log", AppendFile::Start::keep,
                  [&](const std::string& message) { warnings.push_back(message); });
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  // when
  int written = 0;
  for (int i = 0; i < 10; ++i) written += file.append(record);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  // then: no part of the fourth record remains, and there is room again
  EXPECT_EQ(written, 3);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings[0].starts_with(dir / "log: cannot be written: ")) << warnings[0];
  EXPECT_EQ(std::filesystem::file_size(dir / "log"), 90u);
  EXPECT_TRUE(file.append("y\n"));
  EXPECT_TRUE(file.append("z\n"));
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_EQ(warnings[1], dir / "log: can be written again; 7 records before this one are missing");
  EXPECT_EQ(read_text(dir / "log"), record + record + record + "y\nz\n");
}

TEST(AppendFile, CountsAtItsEndWhatIsMissing) {
  std::vector<std::string> warnings;
  {
    AppendFile file("/dev/full", AppendFile::Start::keep, [&](const std::string& what) { warnings.push_back(what); });
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(file.append("x\n"));
  }
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_EQ(warnings[1], "/dev/full: 3 records are missing at its end");
}

// A missing sibling means that the folder is being deleted.
TEST(AppendFile, IsNotMadeAnewWithoutItsSibling) {
  const TempDir dir;
  AppendFile file(dir / "log", AppendFile::Start::keep, {}, "mark");
  EXPECT_TRUE(file.append("a\n"));
  std::filesystem::remove(dir / "log");
  EXPECT_TRUE(file.append("b\n"));
  EXPECT_FALSE(std::filesystem::exists(dir / "log"));
  write_text(dir / "mark", "");
  EXPECT_TRUE(file.append("c\n"));
  EXPECT_EQ(read_text(dir / "log"), "c\n");
}

// But never in a different folder that has replaced the original one.
TEST(AppendFile, IsMadeAnewWhereItIsRemoved) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "run");
  std::vector<std::string> warnings;
  AppendFile file(dir / "run/log", AppendFile::Start::keep,
                  [&](const std::string& message) { warnings.push_back(message); });
  EXPECT_TRUE(file.append("a\n"));
  std::filesystem::remove(dir / "run/log");
  EXPECT_TRUE(file.append("b\n"));
  EXPECT_TRUE(file.append("c\n"));
  EXPECT_EQ(read_text(dir / "run/log"), "b\nc\n");
  EXPECT_EQ(warnings, std::vector<std::string>{
                          dir / "run/log: was removed; continuing in a new file, without the earlier records"});
  std::filesystem::remove_all(dir / "run");
  std::filesystem::create_directory(dir / "run");
  EXPECT_TRUE(file.append("d\n"));
  EXPECT_TRUE(std::filesystem::is_empty(dir / "run"));
}

TEST(AppendFile, ATornRecordOfARunThatWasKilledIsCutOff) {
  const TempDir dir;
  const std::string tear(10'000, 'z');  // longer than the block that is searched for its beginning
  for (const std::string start : {"", "a\n", "a\nb\n"}) {
    write_text(dir / "log", start + tear);
    AppendFile file(dir / "log", AppendFile::Start::keep, nullptr);
    EXPECT_TRUE(file.append("c\n"));
    EXPECT_EQ(read_text(dir / "log"), start + "c\n");
  }
  AppendFile file(dir / "log", AppendFile::Start::empty, nullptr);
  EXPECT_EQ(read_text(dir / "log"), "");
}

}  // namespace
}  // namespace trivet

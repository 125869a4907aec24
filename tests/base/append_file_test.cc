#include "base/files.h"

#include <csignal>
#include <filesystem>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <vector>

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
  // then: no part of the fourth is left, and there is room again
  EXPECT_EQ(written, 3);
  EXPECT_EQ(warnings.size(), 1u);
  EXPECT_EQ(std::filesystem::file_size(dir / "log"), 90u);
  EXPECT_TRUE(file.append("y\n"));
  EXPECT_EQ(read_text(dir / "log"), record + record + record + "y\n");
}

TEST(AppendFile, ATornRecordOfARunThatWasKilledIsCutOff) {
  const TempDir dir;
  const std::string tear(10'000, 'z');  // longer than the block it is searched in
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

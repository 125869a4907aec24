#include "base/provenance.h"

#include <gtest/gtest.h>

#include "base/host.h"
#include "tests/engine/config/config_text.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

TEST(StudyProvenance, IsOfTheProgramTheMachineAndTheEnvironment) {
  // given
  const TempDir dir;
  write_text(dir / "program", "some code");
  ASSERT_EQ(setenv("NCCL_ALGO", "Ring", 1), 0);
  ASSERT_EQ(setenv("HOMELY", "x", 1), 0);

  // when
  const Provenance build{{"version", "1"}, {"commit", "abc"}, {"build", "g++"}};
  const Provenance found = provenance_of(build, dir / "program");
  unsetenv("NCCL_ALGO");
  const Provenance other_environment = provenance_of(build, dir / "program");
  write_text(dir / "program", "some other code");
  const Provenance other_program = provenance_of(build, dir / "program");

  // then
  EXPECT_NE(found.at("environment").find("NCCL_ALGO=Ring"), std::string::npos);
  EXPECT_EQ(found.at("environment").find("HOMELY"), std::string::npos);
  EXPECT_EQ(found.at("host"), host_name());
  EXPECT_GT(std::stoi(found.at("cores")), 0);
  const std::string text = provenance_text(found);
  EXPECT_NE(text.find("commit abc (g++), binary " + found.at("binary") + "; "), std::string::npos) << text;
  EXPECT_NE(text, provenance_text(other_environment));
  EXPECT_NE(provenance_text(other_environment), provenance_text(other_program))
      << "the same commit, built from other sources";
}

TEST(StudyProvenance, LoadAndLauncherDifferFromRunToRun) {
  Provenance a{{"host", "h"}, {"binary", "b"}, {"launcher", "threads"}, {"load", "1"}}, b = a;
  b["launcher"] = "mpirun", b["load"] = "2";
  EXPECT_EQ(provenance_text(a), provenance_text(b));
  b["host"] = "other";
  EXPECT_NE(provenance_text(a), provenance_text(b));
}

}  // namespace
}  // namespace trivet

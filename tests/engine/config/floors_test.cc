// The floors below the configuration name none of its keys: their errors use their own terms, and hints.h adds the keys
// as errors pass through.
#include <cctype>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>

#include "engine/config/fields.h"
#include "engine/config/problems.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

bool word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// True if `text` contains `word` as a whole word that is not a call.
bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !word_char(text[at - 1]), ends = end == text.size() || !word_char(text[end]);
    if (begins && ends && (end == text.size() || text[end] != '(')) return true;
  }
  return false;
}

// The quoted parts of a line of code.
std::string quoted_part(std::string_view line) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\') ++i;
    else if (line[i] == '"') inside = !inside, out += ' ';
    else if (inside) out += line[i];
  }
  return out;
}

// A "section.key" anywhere, comments too; or, in quoted text, the bare key if it has an underscore (as no word does).
std::string named_key(const std::string& line) {
  if (line.starts_with("#include")) return "";
  const std::string quoted = quoted_part(line);
  for (const Field& field : fields()) {
    if (has_word(line, field.name)) return std::string(field.name);
    if (field.key().find('_') != std::string_view::npos && has_word(quoted, field.key()))
      return std::string(field.key());
  }
  return "";
}

TEST(LowerFloors, NameNoKey) {
  EXPECT_EQ(named_key("  fail(\"a smaller batch.micro_batch_size would help\");"), "batch.micro_batch_size");
  EXPECT_EQ(named_key("  fail(\"by bucket_size\");"), "bucket_size");
  EXPECT_EQ(named_key("  if (device.kind() == DeviceKind::cuda) options.bucket_size = 0;"), "");
  const std::filesystem::path root(source_path(""));
  int files = 0;
  for (const char* floor : {"base", "kernels", "parallel"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / floor)) {
      const std::string type = entry.path().extension().string();
      if (type != ".h" && type != ".cc" && type != ".cu" && type != ".cuh") continue;
      ++files;
      std::istringstream text(read_text(entry.path().string()));
      int number = 0;
      for (std::string line; std::getline(text, line);)
        EXPECT_EQ((++number, named_key(line)), "") << entry.path().string() << ":" << number << ": " << line;
    }
  EXPECT_GT(files, 100);
}

TEST(LowerFloors, WhatTheyLackIsSaidWithTheKey) {
  EXPECT_EQ(with_hint(ConfigError("this build has no CUDA", Lack::gpu)),
            "device.kind is cuda, but this build has no CUDA");
  EXPECT_EQ(with_hint(ConfigError("MPI is not in this build", Lack::mpi)), "comm.backend: MPI is not in this build");
  EXPECT_NE(with_hint(ConfigError("NCCL is not there", Lack::nccl)).find("comm.backend: staged"), std::string::npos);
  EXPECT_EQ(with_hint(ConfigError("a link", Lack::links)).substr(0, 45),
            "comm.link_latency_us, comm.link_gbps: a link;");
  EXPECT_EQ(with_hint(ConfigError("a GPU of 9.0", Lack::block_scales)),
            "precision.fp8_recipe: found blockwise, which needs a GPU of 9.0; expected tensorwise, or device.kind: cpu");
  EXPECT_EQ(with_hint(Error("a bug")), "a bug");
  const auto out_of_memory = [] { throw ConfigError("out of memory", Lack::memory); };
  try {
    naming_keys([&] { naming_keys(out_of_memory); });
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "out of memory; a smaller batch.micro_batch_size, model.recompute_granularity, a higher "
                 "parallel.data_parallel_sharding_strategy or more tensor- or pipeline-parallel ranks would help");
  }
}

TEST(LowerFloors, AThreadThatDoesNotStartIsTheUsersToMend) {
  const auto naming = [](std::errc code) { naming_keys([&] { throw std::system_error(std::make_error_code(code)); }); };
  EXPECT_NE(message_of<ConfigError>([&] { naming(std::errc::resource_unavailable_try_again); }).find("ulimit -u"),
            std::string::npos);
  EXPECT_THROW(naming(std::errc::permission_denied), std::system_error);
  const auto of_output = [] {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again), "cannot write to file");
  };
  EXPECT_THROW(naming_keys(of_output), std::system_error);
}

}  // namespace
}  // namespace trivet

#include "tools/plan/system.h"

#include <fmt/format.h>

#include "base/scalar.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

const std::string kPages = source_path("configs/systems");

std::vector<SystemKey> keys_of(SystemKind kind) {
  std::vector<SystemKey> keys;
  for (const SystemKey& key : system_keys())
    if (key.is_of(kind)) keys.push_back(key);
  return keys;
}

// A spec with every key of its kind at its lower limit, one line each in the order of system_keys(), except that `line`
// replaces the line of `key`; "" omits it.
std::string page(std::string_view key = "", const std::string& line = "", SystemKind kind = SystemKind::gpu) {
  std::string text;
  for (const SystemKey& each : keys_of(kind))
    text += each.name == key ? line : fmt::format("{}: {}\n", each.name, each.low);
  return text;
}
std::string problem_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return message_of([&] { parse_system(text, "page.yaml", overrides); });
}

TEST(PlanSystem, ShippedPagesAreRead) {
  // given
  const std::vector<std::string> names = system_names(kPages);

  // when
  const System a100 = load_system("a100-80", {}, kPages), h100 = load_system("h100-sxm", {}, kPages);

  // then
  EXPECT_EQ(names, (std::vector<std::string>{"a100-80", "b200", "cpu", "gb200", "h100-roce", "h100-sxm", "h200-sxm"}));
  for (const std::string& name : names) {
    const System system = load_system(name, {}, kPages);
    EXPECT_EQ(system.name, name);
    EXPECT_EQ(system.kind(), name == "cpu" ? SystemKind::cpu : SystemKind::gpu);
    if (system.kind() == SystemKind::cpu) continue;
    EXPECT_LT(system.fp32_tflops, system.bf16_tflops);
    EXPECT_LT(system.network_gb_per_s, system.nvlink_gb_per_s);
    EXPECT_LT(system.context_gib + system.workspace_gib, system.memory_gib);
  }
  EXPECT_EQ(a100.bf16_tflops, 312);
  EXPECT_EQ(a100.sms, 108);
  EXPECT_EQ(h100.bf16_tflops, 989);
  EXPECT_EQ(h100.gpus_per_node, 8);
  EXPECT_EQ(h100.fp8_tflops, 1978.9);
  EXPECT_EQ(a100.fp8_tflops, 0);
}

TEST(PlanSystem, EveryKeyIsReadIntoItsOwnMember) {
  for (const SystemKind kind : {SystemKind::gpu, SystemKind::cpu})
    for (const SystemKey& key : keys_of(kind)) {
      // given: a spec in which only this key is not at its lower limit
      const System system =
          parse_system(page(key.name, fmt::format("{}: {}\n", key.name, key.high), kind), "page.yaml");

      // then
      for (const SystemKey& other : keys_of(kind))
        EXPECT_EQ(value_of(system, other), other.name == key.name ? other.high : other.low) << key.name;
    }
}

TEST(PlanSystem, AKeyThatIsMissingIsNamed) {
  for (const SystemKey& key : keys_of(SystemKind::gpu)) {
    if (!key.required) {
      EXPECT_EQ(value_of(parse_system(page(key.name), "page.yaml"), key), 0) << key.name;
      continue;
    }
    EXPECT_TRUE(problem_of(page(key.name)).starts_with(fmt::format("page.yaml: {}: is missing, expected a", key.name)));
  }
}

TEST(PlanSystem, APageIsOfGpusOrOfCpus) {
  const std::string both = page() + "cores: 2\n";
  EXPECT_NE(problem_of(both).find("page.yaml: sms: belongs on specs of GPUs, but this spec has cores"),
            std::string::npos);
  EXPECT_NE(problem_of(both).find("page.yaml: wake_us: is missing"), std::string::npos);
  EXPECT_NE(problem_of(page() + "wake_us: 2\n").find("page.yaml: wake_us: belongs on specs of CPUs, which have cores"),
            std::string::npos);
}

TEST(PlanSystem, AValueOutOfItsRangeIsRefusedWithItsLine) {
  int line = 0;
  for (const SystemKey& key : keys_of(SystemKind::gpu)) {
    ++line;
    const bool whole = std::holds_alternative<int System::*>(key.member);
    for (const double value : {key.low - 1, 2 * key.high}) {
      const std::string text = fmt::format("{}", value);
      EXPECT_EQ(
          problem_of(page(key.name, fmt::format("{}: {}\n", key.name, text))),
          fmt::format("page.yaml:{}: {}: found {}, expected {} from {} to {}{}{}", line, key.name, quote(text),
                      whole ? "an integer" : "a number", key.low, key.high, key.unit.empty() ? "" : " ", key.unit));
    }
  }
}

TEST(PlanSystem, WhatIsNoNumberIsRefused) {
  const auto found = [](const std::string& line) { return problem_of(page("sms", line)); };
  EXPECT_EQ(found("sms: many\n"),
            fmt::format("page.yaml:4: sms: found {}, expected an integer from 1 to 10000", quote("many")));
  EXPECT_NE(found("sms: 1.5\n").find("expected an integer"), std::string::npos);
  EXPECT_NE(found("sms: [1]\n").find("found a list, expected an integer"), std::string::npos);
  EXPECT_NE(found("sms:\n").find("expected an integer"), std::string::npos);
  EXPECT_NE(found("sms: nan\n").find("expected an integer"), std::string::npos);
}

TEST(PlanSystem, AnUnknownKeyIsRefusedWithTheNearest) {
  const std::string problem = problem_of(page() + "gemm_shore: 0.5\n");
  EXPECT_EQ(problem, fmt::format("page.yaml:{}: gemm_shore: unknown key - did you mean gemm_share?",
                                 keys_of(SystemKind::gpu).size() + 1));
  EXPECT_NE(problem_of(page() + "sms: 4\n").find("duplicate key"), std::string::npos);
  EXPECT_NE(problem_of("- sms\n").find("expected a map of keys"), std::string::npos);
}

TEST(PlanSystem, AllProblemsOfAPageComeAtOnce) {
  const std::string problem = problem_of(page("sms", "sms: many\n") + "speed: 1\n", {"contention=0.5"});
  for (const char* part : {"3 problems", ":4: sms: found", "speed: unknown key", "--system-set: contention: found"})
    EXPECT_NE(problem.find(part), std::string::npos) << part << " in " << problem;
}

TEST(PlanSystem, OfAPageWithWrongSyntaxOnlyThatIsSaid) {
  const std::string problem = problem_of("sms: [1\n");
  EXPECT_TRUE(problem.starts_with("page.yaml:")) << problem;
  EXPECT_EQ(problem.find("is missing"), std::string::npos) << problem;
}

TEST(PlanSystem, OverridesAreStrongerThanThePage) {
  // given: a spec that lacks a key
  const std::string text = page("contention");

  // when
  const System system = parse_system(text, "page.yaml", {"sms=7", "contention=1.5", "sms=8"});

  // then
  EXPECT_EQ(system.sms, 8);
  EXPECT_EQ(system.contention, 1.5);
  EXPECT_EQ(system.memory_share, 0.01);
}

TEST(PlanSystem, ABadOverrideIsRefused) {
  const auto found = [](const std::string& text) { return problem_of(page(), {text}); };
  EXPECT_EQ(found("sms"), fmt::format("--system-set: found {}, expected KEY=VALUE", quote("sms")));
  EXPECT_EQ(found("=3"), fmt::format("--system-set: found {}, expected KEY=VALUE", quote("=3")));
  EXPECT_EQ(found("smss=3"), "--system-set: smss: unknown key - did you mean sms?");
  EXPECT_EQ(found("sms="), fmt::format("--system-set: sms: found {}, expected an integer from 1 to 10000", quote("")));
}

TEST(PlanSystem, AUsersFileIsReadByItsPath) {
  // given
  const TempDir dir;
  write_text(dir / "mine.yaml", page());

  // then
  EXPECT_EQ(load_system(dir / "mine.yaml").name, "mine");
  EXPECT_EQ(load_system("mine", {}, dir / "").name, "mine");
}

TEST(PlanSystem, AnUnknownSystemIsAnsweredWithThePages) {
  EXPECT_EQ(
      message_of([] { load_system("v100", {}, kPages); }),
      fmt::format("--system: found {}, expected the path of a system spec, or the name of one in {}: a100-80, b200, cpu, "
                  "gb200, h100-roce, h100-sxm, h200-sxm",
                  quote("v100"), kPages));
  EXPECT_NE(message_of([] { load_system("no/such.yaml"); }).find("no/such.yaml"), std::string::npos);
}

}  // namespace
}  // namespace trivet

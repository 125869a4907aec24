// Documents list what the code defines: docs/glossary.md has one line per configuration key and per log column, and no
// others; docs/extending.md names files that exist.
#include <filesystem>
#include <gtest/gtest.h>
#include <regex>
#include <set>
#include <sstream>

#include "base/json.h"
#include "engine/config/fields.h"
#include "engine/metrics/console.h"
#include "engine/metrics/jsonl.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"

namespace trivet {
namespace {

namespace fs = std::filesystem;
using Names = std::multiset<std::string>;

// The names that begin the rows of the table after the line `opening`, "| `NAME` | …".
Names glossary(const std::string& opening) {
  std::ifstream in(source_path("docs/glossary.md"));
  std::string line;
  while (std::getline(in, line) && !line.starts_with(opening)) continue;
  EXPECT_TRUE(in) << opening;
  while (std::getline(in, line) && !line.starts_with("|---")) continue;
  Names names;
  while (std::getline(in, line) && line.starts_with("| `")) names.insert(line.substr(3, line.find('`', 3) - 3));
  return names;
}

TEST(Glossary, HasEveryKey) {
  Names keys;
  for (const Field& field : fields()) keys.emplace(field.name);
  EXPECT_EQ(glossary("## Config keys"), keys);
}

TEST(Glossary, HasEveryColumnOfTheConsole) {
  // given: a header whose columns are at least two spaces apart
  std::ostringstream out;
  Console(out, nullptr).step({});
  std::string header = out.str().substr(0, out.str().find('\n')) + "  ";
  // when
  Names columns;
  for (size_t begin; (begin = header.find_first_not_of(' ')) != std::string::npos;) {
    header.erase(0, begin);
    columns.insert(header.substr(0, header.find("  ")));
    header.erase(0, header.find("  "));
  }
  // then
  EXPECT_EQ(glossary("Columns of the console"), columns);
}

TEST(Glossary, HasEveryKeyOfMetricsJsonl) {
  // given: a line of each kind
  const TempDir dir;
  MetricsLog log(dir / "metrics.jsonl", nullptr);
  StepReport step;
  step.gpus.emplace();
  step.mfu_in_documents = 0.1;
  log.step(step);
  log.evaluation({});
  log.evaluation({.set = "test"});
  log.save({});
  setenv("SLURM_JOB_ID", "7", 1);
  log.begin({.step = 1, .checkpoint = "step-00000001", .goes_on = true});
  unsetenv("SLURM_JOB_ID");
  log.note("of a line");
  log.walltime({});
  log.end({});
  log.flush();
  // when
  std::ifstream in(dir / "metrics.jsonl");
  std::set<std::string> keys = {"missing_records"};  // in the record of a gap left by a disk that hung
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json record = parse_json(line);
    for (const auto& [key, value] : record.items()) keys.insert(key);
  }
  // then
  EXPECT_EQ(glossary("Keys of a line of"), Names(keys.begin(), keys.end()));
}

TEST(Extending, NamesFilesThatExist) {
  const std::string text = read_text(source_path("docs/extending.md"));
  const std::regex path("`([a-zA-Z_]+/[a-zA-Z_/.]+)`");
  int checked = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), path), end; it != end; ++it) {
    const std::string name = (*it)[1];
    if (name.find("NAME") != std::string::npos) continue;  // a new file
    EXPECT_TRUE(fs::exists(source_path(name))) << name;
    ++checked;
  }
  EXPECT_GT(checked, 20);
}

}  // namespace
}  // namespace trivet

#include <memory>

#include "launch/commands.h"
#include "tools/study/compare.h"

namespace trivet {

void add_compare_command(CLI::App& study) {
  auto folders = std::make_shared<std::pair<std::string, std::string>>();
  CLI::App* command =
      study.add_subcommand("compare", "compare the results of two machines, commits or environments, point by point");
  add_argument(*command, "A", folders->first, "folder of a study that was run (its `out`)");
  add_argument(*command, "B", folders->second, "another one, with the same factors and metric");
  command->callback([folders] {
    const StudyResults a = load_results(folders->first), b = load_results(folders->second);
    const StudyComparison comparison = compare_studies(a, b);
    for (const std::string& text : comparison_texts(a, b, comparison)) print_text(text);
    fmt::print("\n");
    print_blocks({comparison_table(a, comparison)});
  });
}

}  // namespace trivet

// The command line's own documentation: --help in 80 columns, suggestions for misspelt words, and completion
// scripts for shells. All of it is generated from the commands' own declarations.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace trivet {

// Formats help in at most 80 columns, with an example at the end.
std::shared_ptr<CLI::FormatterBase> help_formatter();

// "there is no option --rnaks: did you mean --ranks?" for the first word left unparsed; "" if there is none.
std::string unknown_word(const CLI::App& app);

// trivet completion bash|zsh: prints a script for `source <(…)`.
void add_completion_command(CLI::App& app);

}  // namespace trivet

#include "launch/help.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ranges>

#include "base/text.h"
#include "engine/config/fields.h"
#include "launch/commands.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {
namespace {

constexpr size_t kScreen = 80, kTextColumn = 24;

// Examples by command path.
constexpr std::pair<std::string_view, std::string_view> kExamples[] = {
    {"trivet", "trivet config configs/tiny.yaml --ranks 8"},
    {"trivet train", "trivet train configs/tiny.yaml --ranks 8 --set train.train_iters=100"},
    {"trivet config", "trivet config configs/gpt2_124m.yaml --ranks 4"},
    {"trivet watch", "trivet watch runs/tiny"},
    {"trivet report", "trivet report runs/tiny"},
    {"trivet generate", "trivet generate runs/demo --prompt \"A house is\" --tokens 40"},
    {"trivet data", "trivet data inspect data/gcide"},
    {"trivet data prepare",
     "trivet data prepare --input book.txt --tokenizer sentencepiece --vocab-size 4096 --output data/book"},
    {"trivet data inspect", "trivet data inspect data/gcide --documents 5"},
    {"trivet checkpoint", "trivet checkpoint inspect runs/demo"},
    {"trivet checkpoint inspect", "trivet checkpoint inspect runs/demo --tensors"},
    {"trivet checkpoint verify", "trivet checkpoint verify runs/demo"},
    {"trivet checkpoint convert", "trivet checkpoint convert runs/demo demo-hf --to hf"},
    {"trivet schedule", "trivet schedule --kind 1f1b,zb-h1 --pipeline 4 --microbatches 8 --svg schedule.svg"},
    {"trivet schedule context", "trivet schedule context --ranks 4 --svg context.svg"},
    {"trivet preflight", "trivet preflight configs/tiny.yaml --ranks 4"},
    {"trivet study", "trivet study configs/studies/dp_overlap.yaml --plan"},
    {"trivet study compare", "trivet study compare runs/studies/dp_overlap other-machine/dp_overlap"},
    {"trivet trace", "trivet trace runs/tiny --svg step.svg"},
    {"trivet contention", "trivet contention configs/tiny.yaml --ranks 4"},
    {"trivet plan", "trivet plan configs/gpt3_175b.yaml --system h100-sxm --ranks 1024"},
    {"trivet explain", "trivet explain configs/tiny.yaml --ranks 8 --rank 5"},
    {"trivet flight", "trivet flight runs/tiny"},
    {"trivet mlperf", "trivet mlperf lint results/SYSTEM/llama31_8b --round 5.1"},
    {"trivet mlperf summary", "trivet mlperf summary runs/mlperf --svg losses.svg"},
    {"trivet mlperf lint", "trivet mlperf lint results/SYSTEM/llama31_8b --round 5.1"},
    {"trivet completion", "source <(trivet completion bash)"},
};

const CLI::App& program_of(const CLI::App& app) { return app.get_parent() ? program_of(*app.get_parent()) : app; }
std::string path_of(const CLI::App& app) {
  return app.get_parent() ? path_of(*app.get_parent()) + " " + app.get_name() : "trivet";
}

// "  NAME       text", with the text in its own column.
std::string entry(const std::string& name, const std::string& text) {
  std::string line = "  " + name;
  if (text.empty()) return line + '\n';
  line += line.size() + 2 > kTextColumn ? '\n' + std::string(kTextColumn, ' ')
                                        : std::string(kTextColumn - line.size(), ' ');
  return line + wrapped(text, kScreen, kTextColumn) + '\n';
}

// " N" for an option that takes a value.
std::string value_of(const CLI::Option& option) {
  if (!option.get_option_text().empty()) return " " + option.get_option_text();
  if (option.get_type_size() == 0) return "";
  std::string type = option.get_type_name();
  if (const size_t words = type.find(":{"); words != std::string::npos) {
    type = type.substr(words + 2, type.size() - words - 3);
    std::ranges::replace(type, ',', '|');
  }
  return " " + type + (option.get_expected_max() > 1 ? " ..." : "");
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* app) const override { return app->get_description() + "\n\n"; }
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    if (positional && !option->get_option_text().empty()) return option->get_option_text();
    return option->get_name(positional, !positional);
  }
  std::string make_option(const CLI::Option* option, bool positional) const override {
    std::string name = make_option_name(option, positional), text = option->get_description();
    if (!positional) name += value_of(*option);
    const std::string& value = option->get_default_str();
    if (!value.empty() && value != "\"\"") text += value.starts_with("[") ? " " + value : fmt::format(" [{}]", value);
    if (option->get_required() && !positional) text += " (required)";
    return entry(name, text);
  }
  std::string make_group(std::string group, bool positional, std::vector<const CLI::Option*> options) const override {
    std::string text = positional ? "" : "\n" + group + ":\n";
    for (const CLI::Option* option : options) text += make_option(option, positional);
    return text;
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_name(), command->get_description());
  }
  std::string make_footer(const CLI::App* app) const override {
    std::string text;
    if (const std::string footer = app->get_footer(); !footer.empty()) text += wrapped(footer, kScreen) + "\n\n";
    const auto example =
        std::ranges::find(kExamples, path_of(*app), &std::pair<std::string_view, std::string_view>::first);
    if (example == std::end(kExamples)) return text;
    std::string command(example->second);
    command.replace(command.find("trivet"), 6, program_of(*app).get_name());
    return text + fmt::format("Example:\n  {}\n", command);
  }
};

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}
std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// The words that an option accepts as its value, as the help shows them: hf|trivet.
std::vector<std::string> values_of(const CLI::Option& option) {
  std::vector<std::string> words;
  if (option.check_lname("kind"))
    for (const ScheduleKind& kind : schedule_kinds()) words.emplace_back(kind.name);
  const std::string shown = value_of(option);
  if (shown.find('|') == shown.npos) return words;
  for (const auto part : std::views::split(shown.substr(1, shown.find(" [") - 1), '|')) {
    const std::string_view word(part.begin(), part.end());
    if (std::ranges::none_of(word, [](char c) { return c == '.' || (c >= 'A' && c <= 'Z'); })) words.emplace_back(word);
  }
  return words;
}

// The same for a configuration key; empty if the key is not limited to a list of words.
std::vector<std::string> values_of(const Field& field) {
  std::vector<std::string> words(field.words.begin(), field.words.end());
  if (field.noun == "true or false") words = {"true", "false"};
  if (field.name == "parallel.pipeline_schedule")
    for (const ScheduleKind& kind : schedule_kinds()) words.emplace_back(kind.name);
  if (!words.empty() && !field.empty.empty()) words.emplace_back(field.empty);
  return words;
}

void for_each_command(const CLI::App& app, const std::string& path,
                      const std::function<void(const CLI::App&, const std::string& path)>& f) {
  f(app, path);
  for (const CLI::App* command : app.get_subcommands({}))
    for_each_command(*command, path + "/" + command->get_name(), f);
}

std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> paths, keys;
  std::string words, values;  // cases of the shell script: by command; by the word before a value
  const auto add_values = [&](const std::string& of, const std::vector<std::string>& of_it) {
    if (!of_it.empty()) values += fmt::format("    {}) words=\"{}\" ;;\n", of, fmt::join(of_it, " "));
  };
  for_each_command(app, "", [&](const CLI::App& command, const std::string& path) {
    if (!path.empty()) paths.push_back(path);
    words += fmt::format("    \"{}\") words=\"{} {}\" ;;\n", path, fmt::join(commands_of(command), " "),
                         fmt::join(options_of(command), " "));
    for (const CLI::Option* option : command.get_options())
      for (const std::string& name : option->get_lnames()) add_values(path + ":--" + name, values_of(*option));
    for (const CLI::Option* option : command.get_options())
      if (option->get_positional()) add_values(path + ":" + command.get_name(), values_of(*option));
  });
  for (const Field& field : fields()) {
    keys.push_back(std::string(field.name) + "=");
    add_values("*:" + std::string(field.name), values_of(field));
  }
  std::string function = "_" + app.get_name();
  std::ranges::replace(function, '-', '_');
  return fmt::format(R"({0}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} prefix= path= word words=
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path/$word" in
      {2}) path=$path/$word ;;
    esac
  done
  case $path in
{3}  esac
  if [[ $before == --set && $current != *=* ]]; then
    words="{4}"
    type compopt >/dev/null 2>&1 && compopt -o nospace
  elif [[ ( ${{words%% *}} != [a-z]* || $before == --* ) && $current != -* || $current == *=* || $before == = ]]; then
    words=  # an argument or a value: one of the words that it takes, else a file, if anything
    # bash makes three words of KEY=VALUE, zsh one
    if [[ $current == = ]]; then current=
    elif [[ $current == *=* ]]; then before=${{current%%=*}} prefix=$before= current=${{current#*=}}
    elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    case $path:$before in
{5}    esac
  fi
  COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$current"))
}}
complete -o default -F {0} {1}
)",
                     function, app.get_name(), fmt::join(paths, "|"), words, fmt::join(keys, " "), values);
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

std::string unknown_word(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining(true);
  if (left.empty()) return "";
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  const std::string word = left[0].substr(0, left[0].find('='));
  const bool option = word.starts_with("-");
  const std::vector<std::string> known = option ? options_of(*command) : commands_of(*command);
  const std::string_view near = nearest(word, {known.begin(), known.end()});
  return fmt::format("there is no {} {}{}", option ? "option" : "subcommand or argument", word,
                     near.empty() ? "" : fmt::format(": did you mean {}?", near));
}

void add_completion_command(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "print a script that completes commands, options and keys");
  command->add_option("shell", *shell, "the shell that sources it")
      ->option_text("bash|zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  command->callback([shell, &app] {
    if (*shell == "zsh")
      fmt::print("autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n");
    fmt::print("{}", bash_completion(app));
  });
}

}  // namespace trivet

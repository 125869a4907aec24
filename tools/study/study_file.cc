#include "tools/study/study_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/ranges.h>
#include <limits>
#include <map>
#include <set>

#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/yaml.h"
#include "tools/study/launch.h"
#include "tools/study/results.h"

namespace trivet {
namespace {

constexpr size_t kMostFactors = 16, kMostLevels = 64, kMostListed = 10'000;

// Why neither `set` nor a level may contain the key (the study sets it for each run); "": they may.
std::string_view owner_of(std::string_view key, bool of_level) {
  if (key == "train.train_iters" && !of_level) return "the study's `steps` gives it";
  if (key == "train.run_dir") return "each run gets its own folder";
  if (key == "train.trace") return "the study's `trace` sets it";
  if (key == "comm.backend") return "the study's `launcher` sets it";
  return "";
}

// A key without a section belongs at the top level of the file: levels may contain it, `set` may not.
bool takes_launch_key(std::string_view key, bool of_level) {
  return is_launch_key(key) && (of_level || key.find('.') != std::string_view::npos);
}

class StudyReader : YamlReader {
 public:
  StudyReader(Study& study, Problems& problems) : YamlReader(study.path, problems), study_(study) {}

  void read(const YamlNode& root) {
    if (root.kind != YamlNode::map) return problem(root, "", "expected a map with name, base and factors");
    // Read after the whole map: the nodes that depend on factors or repeats.
    const YamlNode *baseline = nullptr, *points = nullptr, *predict = nullptr, *interval_width = nullptr;
    constexpr auto kMinutes = "a number of minutes above 0";
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const Handler launch = [&](const YamlNode& node, const std::string& where) {
      if (auto one = launch_setting(node, where, where)) study_.launch.push_back(std::move(*one));
    };
    map(root, "",
        {{"name", [&](const YamlNode& node, const std::string& where) { read_name(node, where); }},
         {"base", into(study_.base)},
         {"out", into(study_.out)},
         {"ranks", launch},
         {"launcher", launch},
         {"mpirun_arguments", launch},
         {"srun_arguments", launch},
         {"set", [&](const YamlNode& node, const std::string& where) { study_.set = settings(node, where, false); }},
         {"design", into(study_.design)},
         {"factors", [&](const YamlNode& node, const std::string&) { read_factors(node); }},
         {"baseline", into(baseline)},
         {"points", into(points)},
         {"predict", into(predict)},
         {"repeats", [&](const YamlNode& node, const std::string& where) { read_repeats(node, where); }},
         {"interval_width", into(interval_width)},
         {"baseline_every", into(study_.baseline_every, 1, 1000)},
         {"seed", into(study_.seed, 0, std::numeric_limits<int64_t>::max())},
         {"steps", into(study_.steps, 1, 1'000'000)},
         {"warmup_steps", into(study_.warmup_steps, 0, 999'999)},
         {"budget_minutes", number_into(study_.budget_minutes, kMinutes, 0, kInfinity)},
         {"timeout_minutes", number_into(study_.timeout_minutes, kMinutes, 0, kInfinity)},
         {"trace", into(study_.trace)},
         {"metric", [&](const YamlNode& node, const std::string& where) { study_.metric = metric(node, where); }},
         {"responses", [&](const YamlNode& node, const std::string& where) { read_responses(node, where); }},
         {"agree", [&](const YamlNode& node, const std::string& where) { read_agree(node, where); }}});
    if (interval_width) read_interval_width(*interval_width);
    if (baseline) read_baseline(*baseline);
    read_points(points, baseline != nullptr);
    if (predict) read_choices(*predict, "predict", study_.predict);
    check_whole();
  }

 private:
  // ---- top-level keys

  void read_name(const YamlNode& node, const std::string& where) {
    const auto name = value(node, where, "up to 100 letters, digits, - and _", [](const std::string& text) {
      const bool good = !text.empty() && text.size() <= 100 && std::ranges::all_of(text, [](unsigned char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
      });
      return good ? std::optional(text) : std::nullopt;
    });
    study_.name = name.value_or("?");
  }

  Handler number_into(double& to, const char* expected, double above, double below) {
    return [=, this, &to](const YamlNode& node, const std::string& where) {
      to = value(node, where, expected, [&](const std::string& text) {
             const auto number = parse_number(text);
             return number && *number > above && *number < below ? number : std::nullopt;
           }).value_or(to);
    };
  }
  void read_repeats(const YamlNode& node, const std::string& where) {
    constexpr int64_t kMostRepeats = 1000;
    const auto repeats = value(node, where, "auto, or a number of rounds from 1 to 1000", [](const std::string& text) {
      if (text == "auto") return std::optional(int64_t{0});
      const auto number = parse_number(text);
      const bool good = number && *number >= 1 && *number <= kMostRepeats && *number == std::floor(*number);
      return good ? std::optional(static_cast<int64_t>(*number)) : std::nullopt;
    });
    if (!repeats) return;
    study_.auto_repeats = *repeats == 0;
    study_.repeats = *repeats == 0 ? kMostRepeats : *repeats;
  }
  void read_interval_width(const YamlNode& node) {
    number_into(study_.interval_width, "a fraction above 0 and below 1, such as 0.02", 0, 1)(node, "interval_width");
    if (!study_.auto_repeats)
      problem(node, "interval_width", "needs repeats: auto, which ends when all intervals are narrower");
  }
  std::string metric(const YamlNode& node, const std::string& where) {
    const std::string name = text(node, where).value_or(study_.metric);
    static const std::vector<std::string> known = run_metrics();
    if (std::ranges::count(known, name) == 0) unknown(node, where, name, {known.begin(), known.end()}, "metric");
    return name;
  }
  void read_responses(const YamlNode& node, const std::string& where) {
    if (node.kind != YamlNode::list) return problem(node, where, "expected a list of metrics");
    for (const YamlNode& item : node.items) study_.responses.push_back(metric(item, where));
  }
  void read_agree(const YamlNode& node, const std::string& where) {
    study_.tolerance =
        value(node, where, "bitwise, off, or a relative tolerance from 0 to below 1", [&](const std::string& text) {
          study_.check_agreement = text != "off";
          const auto number = text == "off" || text == "bitwise" ? std::optional(0.0) : parse_number(text);
          return number && *number >= 0 && *number < 1 ? number : std::nullopt;
        }).value_or(0);
  }

  // ---- keys and values of runs, in `set` and in levels

  // True if the study may set the key; otherwise reports a problem.
  bool settable(const YamlNode& at, const std::string& where, const std::string& key, bool of_level) {
    if (takes_launch_key(key, of_level)) return true;
    if (!find_field(key)) {
      unknown_config_key(at, where, key, of_level);
      return false;
    }
    const std::string_view owner = owner_of(key, of_level);
    if (!owner.empty()) problem(at, path_of(where, key), fmt::format("cannot be set here: {}", owner));
    return owner.empty();
  }
  // A key that --set accepts, or one of launch.h, with its value.
  std::optional<Setting> setting(const YamlNode& at, const std::string& where, const std::string& key,
                                 const YamlNode& node, bool of_level) {
    if (!settable(at, where, key, of_level)) return {};
    const Field* field = find_field(key);
    if (!field) return launch_setting(node, path_of(where, key), key);
    const auto value = scalar_of(*field, node);
    Config trial;
    const auto wrong = value && !value->null ? parse_field(*field, {.text = value->text}, trial)
                                             : fmt::format("found {}, expected {}", found_text(node), expected(*field));
    if (wrong) problem(node, path_of(where, key), *wrong);
    return wrong ? std::nullopt : std::optional(Setting{key, value->text});
  }
  std::optional<Setting> launch_setting(const YamlNode& node, const std::string& where, const std::string& key) {
    Setting setting{key, ""};
    if (takes_arguments(key)) {
      if (node.kind != YamlNode::list) problem(node, where, "expected a list of strings");
      for (const YamlNode& item : node.kind == YamlNode::list ? node.items : std::vector<YamlNode>()) {
        const std::string argument = scalar(item, where, "text").value_or("");
        if (std::ranges::any_of(argument, is_control))
          problem(item, where, fmt::format("found {}, expected text without control characters", quote(argument)));
        setting.value += argument + '\n';
      }
      return setting;
    }
    setting.value = scalar(node, where, "a value").value_or("");
    if (setting.value.empty() && !key.starts_with("env.")) return {};
    const std::string expected = launch_key_problem(key, setting.value);
    if (expected.empty()) return setting;
    problem(node, where,
            fmt::format("found {}, expected {}", quote(key.starts_with("env.") ? key : setting.value), expected));
    return {};
  }
  void unknown_config_key(const YamlNode& at, const std::string& where, const std::string& key, bool of_level) {
    std::vector<std::string_view> names, launch;
    for (const Field& field : fields()) names.push_back(field.name);
    for (const std::string_view name : launch_keys())
      if (takes_launch_key(name, of_level)) launch.push_back(name);
    names.insert(names.end(), launch.begin(), launch.end());
    const auto word_of_key = [](std::string_view name) { return name.substr(name.find('.') + 1); };
    const auto elsewhere = std::ranges::find(names, word_of_key(key), word_of_key);
    const std::string_view meant = elsewhere == names.end() ? nearest(key, names) : *elsewhere;
    problem(at, path_of(where, key),
            meant.empty()
                ? fmt::format("unknown key; expected a key of a run (trivet config --keys lists them), {}, or "
                              "env.NAME",
                              fmt::join(launch, ", "))
                : fmt::format("unknown key - did you mean {}?", meant));
  }
  // The settings in a map; none for a null node.
  std::vector<Setting> settings(const YamlNode& node, const std::string& where, bool of_level) {
    std::vector<Setting> all;
    if (node.is_null()) return all;
    entries(node, where, [&](const YamlNode& at, const std::string& key, const YamlNode& value) {
      if (auto one = setting(at, where, key, value, of_level)) all.push_back(std::move(*one));
    });
    return all;
  }

  // ---- factors

  void read_factors(const YamlNode& node) {
    if (node.kind != YamlNode::list)
      return problem(node, "factors", "expected a list of factors, each with key or name, and levels");
    if (node.items.size() > kMostFactors)
      return problem(node, "factors", fmt::format("found {}, expected at most {}", node.items.size(), kMostFactors));
    for (const YamlNode& factor : node.items) read_factor(factor);
  }

  void read_factor(const YamlNode& node) {
    Factor factor;
    const YamlNode *key_node = nullptr, *levels = nullptr, *changes = nullptr;
    map(node, "factors",
        {{"name", into(factor.name)},
         {"key", into(key_node)},
         {"levels", into(levels)},
         {"changes_numbers", into(changes)},
         {"condition", into(factor.condition)}});
    if (node.kind != YamlNode::map) return;
    const std::string key = key_node ? text(*key_node, "factors.key").value_or("") : "";
    if (key.empty() && factor.name.empty()) return problem(node, "factors", "a factor needs a key, or a name");
    if (factor.name.empty()) factor.name = key.substr(key.find('.') + 1);
    if (std::ranges::any_of(study_.factors, [&](const Factor& other) { return other.name == factor.name; }))
      problem(node, "factors", fmt::format("another factor is called {}: give this one a name", quote(factor.name)));
    if (!levels) return problem(node, "factors." + factor.name, "levels is required");
    if (key.empty() || settable(*key_node, "factors", key, true)) read_levels(*levels, key, factor);

    bool time_only = true;
    for (const Level& level : factor.levels)
      for (const Setting& setting : level.settings) time_only &= is_time_only(setting.key);
    factor.changes_numbers = !time_only;
    if (changes) into(factor.changes_numbers)(*changes, "factors.changes_numbers");
    own_keys(node, factor);
    keys_.emplace_back(key);
    study_.factors.push_back(std::move(factor));
  }

  // key: the factor's key, which each level sets to a value; "": each level has its own settings.
  void read_levels(const YamlNode& levels, const std::string& key, Factor& factor) {
    const std::string where = "factors." + factor.name;
    const bool values = !key.empty() && levels.kind == YamlNode::list;
    if (!values && levels.kind != YamlNode::map)
      return problem(levels, where,
                     key.empty() ? "expected a map of labels, each with the keys it sets; or give the factor a key"
                                 : "expected a list of values, or a map of labels and values");
    const auto add = [&](const YamlNode& at, std::string label, const YamlNode& value) {
      if (key.empty()) return add_level(at, factor, {label, settings(value, path_of(where, label), true)});
      auto one = setting(at, where, key, value, true);
      if (!one) return;
      if (values) label = one->value;
      std::ranges::replace(label, '\n', ' ');  // a newline separates a launcher's arguments
      add_level(at, factor, {label, {std::move(*one)}});
    };
    if (values)
      for (const YamlNode& value : levels.items) add(value, "", value);
    else entries(levels, where, add);
    // Count invalid levels too.
    const size_t found = levels.items.size() / (values ? 1 : 2);
    if (found == 0 || found > kMostLevels)
      problem(levels, where, fmt::format("found {} levels, expected 1 to {}", found, kMostLevels));
  }
  void add_level(const YamlNode& at, Factor& factor, Level level) {
    const std::string where = "factors." + factor.name;
    const bool control = std::ranges::any_of(level.label, is_control);
    if (level.label.empty() || level.label.size() > 100 || control)
      return problem(at, where, fmt::format("found the level {}, expected up to 100 characters", quote(level.label)));
    if (std::ranges::any_of(factor.levels, [&](const Level& other) { return other.label == level.label; }))
      return problem(at, where, fmt::format("the level {} appears twice", quote(level.label)));
    factor.levels.push_back(std::move(level));
  }
  // Registers the factor's keys: a key may belong to only one factor.
  void own_keys(const YamlNode& node, const Factor& factor) {
    std::set<std::string> keys;
    for (const Level& level : factor.levels)
      for (const Setting& setting : level.settings) keys.insert(setting.key);
    for (const std::string& key : keys)
      if (const auto [owner, is_new] = owners_.emplace(key, factor.name); !is_new)
        problem(node, "factors." + factor.name, fmt::format("{} is also set by the factor {}", key, owner->second));
  }

  // ---- references to levels

  void read_choice(const YamlNode& node, const std::string& where, Choice& choice) {
    entries(node, where, [&](const YamlNode& at, const std::string& name, const YamlNode& value) {
      std::vector<std::string_view> names;
      for (size_t i = 0; i < study_.factors.size(); ++i) {
        const Factor& factor = study_.factors[i];
        names.push_back(factor.name);
        if (factor.name != name && (keys_[i].empty() || keys_[i] != name)) continue;
        const auto label = scalar(value, path_of(where, name), "a level of this factor");
        if (!label) return;
        const auto level = std::ranges::find(factor.levels, *label, &Level::label);
        if (level != factor.levels.end()) {
          choice[i] = static_cast<size_t>(level - factor.levels.begin());
          return;
        }
        std::vector<std::string_view> labels;
        for (const Level& other : factor.levels) labels.push_back(other.label);
        return unknown(value, path_of(where, name), *label, labels, "level");
      }
      unknown(at, where, name, names, "factor");
    });
  }
  void read_baseline(const YamlNode& node) {
    Choice choice = study_.baseline();
    read_choice(node, "baseline", choice);
    for (size_t i = 0; i < choice.size(); ++i) study_.factors[i].baseline = choice[i];
  }
  void read_choices(const YamlNode& node, const std::string& where, std::vector<Choice>& choices) {
    if (node.kind != YamlNode::list || node.items.empty() || node.items.size() > kMostListed)
      return problem(node, where,
                     fmt::format("expected a list of 1 to {} points, each a map of factors and levels", kMostListed));
    for (const YamlNode& point : node.items) read_choice(point, where, choices.emplace_back(study_.baseline()));
  }
  void read_points(const YamlNode* node, bool has_baseline) {
    if (study_.design != Design::list) {
      if (node) problem(*node, "points", fmt::format("needs design list, found {}", word_of(study_.design)));
      return;
    }
    read_choices(node ? *node : YamlNode(), "points", study_.list);
    if (!has_baseline && !study_.list.empty())
      for (size_t i = 0; i < study_.factors.size(); ++i) study_.factors[i].baseline = study_.list[0][i];
  }

  void check_whole() {
    const auto add = [&](std::string_view key, std::string_view text) { problems_.add_at(study_.path, key, text); };
    std::vector<Setting> all = study_.launch;
    all.insert(all.end(), study_.set.begin(), study_.set.end());
    for (const Factor& factor : study_.factors)
      for (const Level& level : factor.levels) all.insert(all.end(), level.settings.begin(), level.settings.end());
    std::map<std::string, std::string> idle;  // by key: its launcher, which no point uses
    for (const auto& [key, value] : all)
      if (const std::string launcher = key.substr(0, key.find_first_of("._")); parse_word<Launcher>(launcher))
        if (std::ranges::none_of(all,
                                 [&](const Setting& one) { return one.key == "launcher" && one.value == launcher; }))
          idle.emplace(key, launcher);
    for (const auto& [key, launcher] : idle) add(key, "has no effect: no point has launcher " + launcher);
    if (study_.name.empty()) add("name", "is required: it names the study's folder and its report");
    if (study_.base.empty()) add("base", "is required: the run's YAML file, relative to the study's");
    if (study_.factors.empty() && problems_.empty()) add("factors", "is required: a list of what to vary");
    if (study_.warmup_steps >= study_.steps)
      add("warmup_steps", fmt::format("{} leaves none of the {} steps to measure", study_.warmup_steps, study_.steps));
    if (study_.auto_repeats && study_.budget_minutes == 0)
      add("budget_minutes", "is required with repeats: auto: the intervals may never become that narrow");
    for (const Setting& setting : study_.set)
      if (owners_.contains(setting.key)) add("set." + setting.key, "is also set by a factor: leave one of them out");
  }

  Study& study_;
  std::vector<std::string> keys_;              // [factor]: its key; "" if it has none
  std::map<std::string, std::string> owners_;  // by key: the factor that sets it
};

}  // namespace

Study parse_study(const std::string& text, const std::string& path) {
  Study study;
  study.path = path;
  study.text = text;
  const Origins origins;
  Problems problems(study.path, origins);
  const YamlTree tree = parse_yaml(text, path, problems);
  if (tree.whole) StudyReader(study, problems).read(tree.root);
  problems.throw_if_any();
  std::erase(study.responses, study.metric);
  study.responses.insert(study.responses.begin(), study.metric);

  const std::filesystem::path base(study.base);
  if (base.is_relative()) study.base = (std::filesystem::path(path).parent_path() / base).lexically_normal().string();
  if (study.out.empty()) study.out = "runs/studies/" + study.name;
  return study;
}

Study load_study(const std::string& path) { return parse_study(read_yaml_text(path), path); }

}  // namespace trivet

#include "tools/plan/system.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fmt/ranges.h>
#include <set>

#include "engine/config/yaml.h"

namespace trivet {
namespace {

constexpr std::optional<SystemKind> kBoth = std::nullopt;

// The only list of keys: parsing, ranges, overrides, required keys and the listing are all derived from it.
constexpr std::array kKeys = std::to_array<SystemKey>({
    {"fp32_tflops", "TFLOP/s", 1e-3, 1e5, &System::fp32_tflops, kBoth},
    {"bf16_tflops", "TFLOP/s", 1e-3, 1e5, &System::bf16_tflops, kBoth},
    {"fp8_tflops", "TFLOP/s", 1e-3, 1e5, &System::fp8_tflops, SystemKind::gpu, false},
    {"sms", "", 1, 10'000, &System::sms},
    {"gemm_share", "", 0.01, 1, &System::gemm_share},
    {"gemm_k0", "elements", 0, 10'000, &System::gemm_k0},
    {"gemm_tile_m", "rows", 1, 4096, &System::gemm_tile_m},
    {"gemm_tile_n", "columns", 1, 4096, &System::gemm_tile_n},
    {"gemm_unaligned", "", 0.01, 1, &System::gemm_unaligned},
    {"attention_forward", "", 0.01, 1, &System::attention_forward, kBoth},
    {"attention_backward", "", 0.01, 1, &System::attention_backward, kBoth},
    {"memory_gib", "GiB", 0.1, 10'000, &System::memory_gib, kBoth},
    {"memory_gb_per_s", "GB/s", 0.1, 100'000, &System::memory_gb_per_s, kBoth},
    {"memory_share", "", 0.01, 1, &System::memory_share},
    {"kernel_us", "us", 0, 10'000, &System::kernel_us, kBoth},
    {"host_us", "us", 0, 10'000, &System::host_us},
    {"gpus_per_node", "", 1, 10'000, &System::gpus_per_node},
    {"nvlink_gb_per_s", "GB/s", 1e-3, 10'000, &System::nvlink_gb_per_s},
    {"nvlink_us", "us", 0, 10'000, &System::nvlink_us},
    {"nvls_gb_per_s", "GB/s", 0, 10'000, &System::nvls_gb_per_s},
    {"network_gb_per_s", "GB/s", 1e-3, 10'000, &System::network_gb_per_s},
    {"network_us", "us", 0, 100'000, &System::network_us},
    {"network_share", "", 0.01, 1, &System::network_share},
    {"collective_us", "us", 0, 100'000, &System::collective_us},
    {"contention", "", 1, 10, &System::contention, kBoth},
    {"context_gib", "GiB", 0, 100, &System::context_gib},
    {"communicator_gib", "GiB", 0, 100, &System::communicator_gib},
    {"workspace_gib", "GiB", 0, 100, &System::workspace_gib},
    {"power_watts", "W", 0, 100'000, &System::power_watts, kBoth},
    {"cores", "", 1, 10'000, &System::cores, SystemKind::cpu},
    {"cache_gb_per_s", "GB/s", 0.1, 100'000, &System::cache_gb_per_s, SystemKind::cpu},
    {"vector_g_per_s", "10^9/s", 0.1, 100'000, &System::vector_g_per_s, SystemKind::cpu},
    {"score_g_per_s", "10^9/s", 0.1, 100'000, &System::score_g_per_s, SystemKind::cpu},
    {"copy_gb_per_s", "GB/s", 0.1, 100'000, &System::copy_gb_per_s, SystemKind::cpu},
    {"team_us", "us", 0, 10'000, &System::team_us, SystemKind::cpu},
    {"wake_us", "us", 0, 10'000, &System::wake_us, SystemKind::cpu},
});

std::string expected(const SystemKey& key) {
  const bool whole = std::holds_alternative<int System::*>(key.member);
  return fmt::format("{} from {} to {}{}{}", whole ? "an integer" : "a number", key.low, key.high,
                     key.unit.empty() ? "" : " ", key.unit);
}

std::optional<double> parse(const SystemKey& key, const std::string& text) {
  const auto number = parse_number(text);
  const bool good = number && *number >= key.low && *number <= key.high;
  const bool fits = good && (std::holds_alternative<double System::*>(key.member) || *number == std::floor(*number));
  return fits ? number : std::nullopt;
}

using Names = std::set<std::string_view>;

class SystemReader : YamlReader {
 public:
  SystemReader(System& system, const std::string& path, Problems& problems)
      : YamlReader(path, problems), system_(system) {}

  // Adds the names of the map's keys to `given`, whether or not their values are valid.
  void read(const YamlNode& root, Names& given) {
    Handlers handlers;
    for (const SystemKey& key : kKeys)
      handlers.emplace_back(key.name, [&](const YamlNode& node, const std::string& where) {
        given.insert(key.name);
        const auto parse_key = [&](const std::string& text) { return parse(key, text); };
        if (const auto number = value(node, where, expected(key), parse_key)) set_value(system_, key, *number);
      });
    map(root, "", handlers);
  }

 private:
  System& system_;
};

// Parses the value of a --system-set as a one-line spec.
void read_override(const std::string& text, System& system, Names& given, Problems& problems) {
  static const std::string kOption = "--system-set";
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos)
    return problems.add_at(kOption, "", fmt::format("found {}, expected KEY=VALUE", quote(text)));
  const YamlNode key{.value = {.text = text.substr(0, equals)}}, value{.value = {.text = text.substr(equals + 1)}};
  SystemReader(system, kOption, problems).read({.kind = YamlNode::map, .items = {key, value}}, given);
}

}  // namespace

std::span<const SystemKey> system_keys() { return kKeys; }

void set_value(System& system, const SystemKey& key, double value) {
  std::visit([&]<class T>(T System::*member) { system.*member = static_cast<T>(value); }, key.member);
}

double value_of(const System& system, const SystemKey& key) {
  return std::visit([&](auto member) { return static_cast<double>(system.*member); }, key.member);
}

System parse_system(const std::string& text, const std::string& path, const std::vector<std::string>& overrides) {
  System system;
  system.name = std::filesystem::path(path).stem().string();
  const Origins origins;
  Problems problems(path, origins);
  Names given;
  const YamlTree tree = parse_yaml(text, path, problems);
  if (tree.whole) SystemReader(system, path, problems).read(tree.root, given);
  for (const std::string& one : overrides) read_override(one, system, given, problems);
  const bool of_cpus = given.contains("cores");
  for (const SystemKey& key : kKeys) {
    const bool has = given.contains(key.name), needs = key.is_of(of_cpus ? SystemKind::cpu : SystemKind::gpu);
    if (tree.whole && needs && key.required && !has)
      problems.add_at(path, key.name, fmt::format("is missing, expected {}", expected(key)));
    else if (tree.whole && has && !needs)
      problems.add_at(path, key.name,
                      of_cpus ? "belongs on specs of GPUs, but this spec has cores, like a spec of CPUs"
                              : "belongs on specs of CPUs, which have cores");
  }
  problems.throw_if_any();
  return system;
}

std::string systems_folder() {
  constexpr const char* kFolder = "configs/systems";
  std::error_code error;
  if (std::filesystem::is_directory(kFolder, error)) return kFolder;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);  // in a folder of the checkout
  return (program.parent_path().parent_path() / kFolder).string();
}

namespace {

std::filesystem::path path_of(const std::string& name_or_path, const std::string& folder) {
  const bool is_path = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".yaml");
  const auto path =
      is_path ? std::filesystem::path(name_or_path) : std::filesystem::path(folder) / (name_or_path + ".yaml");
  if (!is_path && !std::filesystem::exists(path))
    throw ConfigError(
        fmt::format("--system: found {}, expected the path of a system spec, or the name of one in {}: {}",
                    quote(name_or_path), folder, fmt::join(system_names(folder), ", ")));
  return path;
}

}  // namespace

std::string page_text(const std::string& name_or_path, const std::string& folder) {
  return read_yaml_text(path_of(name_or_path, folder).string());
}

System load_system(const std::string& name_or_path, const std::vector<std::string>& overrides,
                   const std::string& folder) {
  const std::string path = path_of(name_or_path, folder).string();
  return parse_system(read_yaml_text(path), path, overrides);
}

std::vector<std::string> system_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code missing;  // no folder: no names
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing))
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace trivet

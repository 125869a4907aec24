// ToolSection: a tool's additions to a run: a section of keys (`mlperf:`, `plan:`), the rules of their values,
// and a procedure that directs the run by them. A program's rows are listed in launch/, by hand: nothing registers
// itself, since the linker drops a file of which nothing is named.
#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace trivet {

class Communicator;
class Problems;
class Rules;
class RunObserver;   // engine/metrics/observer.h
class RunProcedure;  // engine/train/procedure.h
struct Config;
struct Field;
struct LoadedConfig;

struct ToolSection {
  std::string_view name;
  // Makes the struct of the section's values. Null: this program was built without the tool, whose keys it refuses.
  std::any (*defaults)() = nullptr;
  void (*declare)(std::vector<Field>& table) = nullptr;  // the keys (field_types.h)

  // The rules (rules.h). Null: there are none.
  void (*check)(const Config& config, Rules& rule) = nullptr;            // of the values alone
  void (*check_run)(const LoadedConfig& loaded, Rules& rule) = nullptr;  // of its task
  // Gives values to keys that the configuration leaves open. batch: the samples of a step, at most.
  void (*derive)(LoadedConfig& loaded, int64_t batch, Problems& problems, std::vector<std::string>& notes) = nullptr;

  // The key that gives a run to `procedure` where it has another value than its default. Empty: there is none.
  std::string_view directing_key = {};
  // Before anything is initialised. from_checkpoint: one that is named, not the run's own. Collective.
  std::unique_ptr<RunProcedure> (*procedure)(const LoadedConfig& loaded, bool from_checkpoint,
                                             Communicator& world) = nullptr;

  // The observer of a run of this configuration, on rank 0; may return null: none. Null: never one.
  std::unique_ptr<RunObserver> (*observer)(const LoadedConfig& loaded) = nullptr;
};

// The rows of this program, which launch/all_sections.cc or launch/core_sections.cc defines.
std::span<const ToolSection> tool_sections();

// The one whose procedure directs a run of this configuration; null: none does.
const ToolSection* directing_section(const Config& config);

// The values of the tools' sections: a struct of each.
class ToolValues {
 public:
  ToolValues();

  // REQUIRES: the tool is built.
  template <class T>
  T& of() {
    for (std::any& section : sections_)
      if (T* const values = std::any_cast<T>(&section)) return *values;
    fail("a section of a tool that is not in this program");
  }
  template <class T>
  const T& of() const {
    return const_cast<ToolValues*>(this)->of<T>();
  }

 private:
  std::vector<std::any> sections_;
};

}  // namespace trivet

// A ToolSection is what a tool adds to a run: a section of keys (`mlperf:`, `plan:`), rules for their values, and a
// procedure that directs the run. Each program lists its ToolSections by hand in launch/: they do not register
// themselves, because the linker drops unreferenced object files.
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
  // Creates the struct of the section's values. Null: this program was built without the tool, and rejects its keys.
  std::any (*defaults)() = nullptr;
  void (*declare)(std::vector<Field>& table) = nullptr;  // the keys (field_types.h)

  // The rules (rules.h). Null: there are none.
  void (*check)(const Config& config, Rules& rule) = nullptr;            // for the values alone
  void (*check_run)(const LoadedConfig& loaded, Rules& rule) = nullptr;  // for the run
  // Sets keys that the configuration leaves open. batch: the maximum number of samples per step.
  void (*derive)(LoadedConfig& loaded, int64_t batch, Problems& problems, std::vector<std::string>& notes) = nullptr;

  // If this key's value is not the default, `procedure` directs the run. Empty: no such key.
  std::string_view directing_key = {};
  // Called before anything is initialised. from_checkpoint: the run starts from a named checkpoint. Collective.
  std::unique_ptr<RunProcedure> (*procedure)(const LoadedConfig& loaded, bool from_checkpoint,
                                             Communicator& world) = nullptr;

  // Creates the observer for a run with this configuration, on rank 0, or returns null. Null: the tool has no observer.
  std::unique_ptr<RunObserver> (*observer)(const LoadedConfig& loaded) = nullptr;
};

// The ToolSections of this program, defined in launch/all_sections.cc or launch/core_sections.cc.
std::span<const ToolSection> tool_sections();

// The section whose procedure directs a run with this configuration; null: none.
const ToolSection* directing_section(const Config& config);

// The values of the tools' sections: one struct for each.
class ToolValues {
 public:
  ToolValues();

  // REQUIRES: the tool is part of this program.
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

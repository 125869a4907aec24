// A system: the planner's constants for a machine. Its spec is a YAML file with one line `key: number` for each of the
// system_keys() of its kind and the number's source in a comment: configs/systems/NAME.yaml, or a user's own file. A
// spec that sets `cores` describes CPUs.
//
// GB is 1e9 bytes, GiB 2^30; a link's GB/s are per direction. Specs contain no other constants, and none that belong to
// a model, a layout or a framework.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trivet {

enum class SystemKind { gpu, cpu };

struct System {
  std::string name;  // the spec's file name without its folder and ".yaml"

  double fp32_tflops = 0, bf16_tflops = 0;  // peaks of dense GEMMs
  double fp8_tflops = 0;                    // the same; 0: no FP8
  int sms = 0;                              // compute units, over which a GEMM's tiles are distributed
  double gemm_share = 0;                    // fraction of the peak, for a GEMM with a long k that fills every wave
  double gemm_k0 = 0;                       // k that reaches half of gemm_share, because tile pipelines fill and drain
  int gemm_tile_m = 0, gemm_tile_n = 0;     // the largest output tile of one compute unit
  double gemm_unaligned = 0;                // fraction of the rate left if rows are not multiples of 16 bytes
  double attention_forward = 0, attention_backward = 0;  // fractions of the peak, for FLOPs actually computed

  double memory_gib = 0, memory_gb_per_s = 0;
  double memory_share = 0;  // fraction of memory_gb_per_s that memory-bound kernels reach
  double kernel_us = 0;     // a kernel's time on the device beyond its work: launch, first loads, tail
  double host_us = 0;       // the host's time to issue one operation

  int gpus_per_node = 0;  // the ranks that NVLink connects
  double nvlink_gb_per_s = 0, nvlink_us = 0;
  double nvls_gb_per_s = 0;  // all-reduce rate if the switch does the reduction (NVLink SHARP); 0: it does not
  double network_gb_per_s = 0, network_us = 0;  // of one GPU's network card
  double network_share = 0;                     // fraction of network_gb_per_s reached by messages of many MB
  double collective_us = 0;                     // a collective's time before its first hop
  double contention = 0;                        // factor by which communication slows down compute

  double context_gib = 0;       // device memory of the CUDA context with its kernels
  double communicator_gib = 0;  // device memory of NCCL's buffers, per communicator
  double workspace_gib = 0;     // device memory of libraries' workspaces
  double power_watts = 0;       // of one GPU with its share of the node; 0: unknown

  // A CPU spec describes one node, on which the ranks are threads of one process. Peaks, memory_gb_per_s (of the
  // optimizer's passes) and kernel_us are per core; attention's fractions are of the fp32 or bf16 GEMM rate.
  int cores = 0;              // 0: a GPU spec
  double cache_gb_per_s = 0;  // per core: operands and results of GEMMs and other ops
  double vector_g_per_s = 0;  // per core: elements of norms, activations and sums, in addition to their bytes
  double score_g_per_s = 0;   // per core: attention scores, counted once per matmul
  double copy_gb_per_s = 0;   // per core that copies or adds other ranks' data
  double team_us = 0;         // fork-and-join overhead of an operation on several threads
  double wake_us = 0;         // from waking a thread until it runs

  SystemKind kind() const { return cores > 0 ? SystemKind::cpu : SystemKind::gpu; }
};

struct SystemKey {
  std::string_view name, unit;
  double low, high;  // the physical range, both ends included
  std::variant<double System::*, int System::*> member;
  std::optional<SystemKind> kind = SystemKind::gpu;  // kind of spec that contains this key; empty: all
  bool required = true;                              // required in those specs; if not, 0 means absent
  bool is_of(SystemKind spec) const { return !kind || *kind == spec; }
};
std::span<const SystemKey> system_keys();
double value_of(const System& system, const SystemKey& key);
void set_value(System& system, const SystemKey& key, double value);

// The folder of Trivet's own specs: configs/systems, or else the same folder in the checkout that contains the program.
std::string systems_folder();

// Loads the spec NAME from the folder, or the file at a path that contains '/' or ends in ".yaml". `overrides` are the
// KEY=VALUE of --system-set; the last one for a key wins. Throws IoError, or one ConfigError that lists every problem
// with its place, key, and found and expected values.
System load_system(const std::string& name_or_path, const std::vector<std::string>& overrides = {},
                   const std::string& folder = systems_folder());
// The text of that spec. Throws ConfigError, IoError.
std::string page_text(const std::string& name_or_path, const std::string& folder = systems_folder());
// Like load_system(), but from the text of a spec; `path` names it in messages.
System parse_system(const std::string& text, const std::string& path, const std::vector<std::string>& overrides = {});

// The names of the folder's specs, in alphabetical order.
std::vector<std::string> system_names(const std::string& folder = systems_folder());

}  // namespace trivet

// The file of a study:
//
//   name: bucket_size                 # letters, digits, - and _
//   base: ../tiny.yaml                # the run's file, relative to this one
//   ranks: 2                          # without it, as many as one model needs
//   launcher: threads                 # threads | mpirun | srun | netlab
//   mpirun_arguments: [--oversubscribe, --bind-to, none]
//   srun_arguments: [--mpi=pmix, --kill-on-bad-exit=1]
//   set:                              # at every point: keys of a run, and those of launch.h
//     parallel.tensor_model_parallel_size: 1
//     netlab.gbps: 1
//   design: grid                      # grid | one_at_a_time | list
//   factors:
//     - key: parallel.bucket_size     # a level is a value of the key
//       levels: [1000, 40000000]
//     - key: env.NCCL_ALGO            # an environment variable; launch.h has all such keys
//       levels: [Ring, Tree]
//     - name: link                    # a level sets any number of keys
//       levels:
//         none: {}
//         slow: {comm.link_gbps: 1, comm.link_latency_us: 50}
//       changes_numbers: false
//       condition: true               # given, not chosen: each level has its own baseline and winner
//   baseline: {link: none}            # without it, and of factors left out: the first level (list: the first point)
//   points:                           # design: list; a factor left out has its baseline level
//     - {bucket_size: 1000, link: slow}
//   repeats: 5                        # rounds: a run of each point; verdicts need 5. auto: until the 95 % interval of
//                                     # every ratio is narrower than interval_width, or budget_minutes end
//   interval_width: 0.02              # with repeats: auto: upper end over lower end, minus 1
//   baseline_every: 8                 # runs of other points, at most, between two runs of a baseline in a round
//   seed: 1                           # of the random order within each round
//   steps: 10                         # of a run, of which
//   warmup_steps: 2                   # are not measured
//   budget_minutes: 30                # one call starts no run that would end later; required with repeats: auto
//   timeout_minutes: 10               # of a run
//   trace: true                       # keep the trace of each point's first repeat
//   metric: step_seconds              # what decides: any number in metrics.jsonl, memory_bytes or peak_rss_bytes
//   responses: [memory_bytes]         # what else the points are compared in
//   agree: bitwise                    # bitwise | a relative tolerance | off
//   out: runs/studies/bucket_size     # relative to the working directory
//
// A setting of a level that has no effect at a point (a bucket size under ZeRO-3) is left out there, and points that
// are then the same run are one. So levels without effect next to some others still make a grid.
//
// Points that must agree in loss: those that have the same level of every factor that changes numbers, and the
// repeats of each. A factor does not change numbers when it says `changes_numbers: false`, or when it says nothing and
// sets only keys that change when things happen and never what is computed (is_time_only).
//
// Data paths in the base are the run's own affair: relative to the working directory, as in `trivet train`.
#pragma once

#include <string>
#include <string_view>

#include "tools/study/study.h"

namespace trivet {

// Throws one ConfigError with every problem of the file, as load_config does; IoError.
Study load_study(const std::string& path);

// The same from text; `path` names it and is where `base` is relative to.
Study parse_study(const std::string& text, const std::string& path);

// Changes when things happen in a run, never a bit of what it computes: keys of overlap and comm (but tp_comm_overlap,
// whose chunked GEMMs reorder sums), bucket sizes, prefetching, tracing. Also the launcher, its arguments and links;
// not an environment variable, which may change anything.
bool is_time_only(std::string_view key);

}  // namespace trivet

// A study file:
//
//   name: bucket_size                 # letters, digits, - and _
//   base: ../tiny.yaml                # the run's file, relative to this one
//   ranks: 2                          # default: the number that one model replica needs
//   launcher: threads                 # threads | mpirun | srun | netlab
//   mpirun_arguments: [--oversubscribe, --bind-to, none]
//   srun_arguments: [--mpi=pmix, --kill-on-bad-exit=1]
//   set:                              # for every point: config keys, and those of launch.h
//     parallel.tensor_model_parallel_size: 1
//     netlab.gbps: 1
//   design: grid                      # grid | one_at_a_time | list
//   factors:
//     - key: parallel.bucket_size     # a level is a value of the key
//       levels: [1000, 40000000]
//     - key: env.NCCL_ALGO            # an environment variable; launch.h lists all such keys
//       levels: [Ring, Tree]
//     - name: link                    # a level sets any number of keys
//       levels:
//         none: {}
//         slow: {comm.link_gbps: 1, comm.link_latency_us: 50}
//       changes_numbers: false
//       condition: true               # given, not chosen: each level has its own baseline and winner
//   baseline: {link: none}            # a factor left out takes its first level; list without baseline: the first point
//   points:                           # design: list; a factor left out takes its baseline level
//     - {bucket_size: 1000, link: slow}
//   predict:                          # points like these, which --fit predicts before it runs them
//     - {bucket_size: 40000000, link: slow}
//   repeats: 5                        # rounds of one run per point; verdicts need 5. auto: until every ratio's 95 %
//                                     # interval is narrower than interval_width, or budget_minutes have passed
//   interval_width: 0.02              # with repeats: auto: upper end over lower end, minus 1
//   baseline_every: 8                 # at most this many runs of other points between baseline runs in a round
//   seed: 1                           # seeds the random order within each round
//   steps: 10                         # per run; a level may set train.train_iters instead
//   warmup_steps: 2                   # the first of these, not measured
//   budget_minutes: 30                # no run is started that would end after this; required with repeats: auto
//   timeout_minutes: 10               # per run
//   trace: true                       # keep the trace of each point's first repeat
//   metric: step_seconds              # decides verdicts: any number in metrics.jsonl, memory_bytes or peak_rss_bytes
//   responses: [memory_bytes]         # further metrics on which points are compared
//   agree: bitwise                    # bitwise | a relative tolerance | off
//   out: runs/studies/bucket_size     # relative to the working directory
//
// A level's setting that has no effect at a point (a bucket size under ZeRO-3) is dropped there, and points that then
// describe the same run are merged. So a grid may include levels that have no effect in some combinations.
//
// Losses must agree between points with the same level of every factor that changes numbers, and between the repeats of
// each. A factor does not change numbers if it sets `changes_numbers: false`, or if it lacks that key and sets only
// keys that affect timing and never results (is_time_only).
//
// Data paths in the base file are not resolved here: they are relative to the working directory, as in `trivet train`.
#pragma once

#include <string>
#include <string_view>

#include "tools/study/study.h"

namespace trivet {

// Throws one ConfigError that lists every problem in the file, as load_config does, or an IoError.
Study load_study(const std::string& path);

// The same from text; `path` names it in messages, and `base` is relative to it.
Study parse_study(const std::string& text, const std::string& path);

// True if the key affects a run's timing, but not one bit of its results: overlap and comm keys (except
// tp_comm_overlap, whose chunked GEMMs reorder sums), bucket sizes, prefetching, tracing; also the launcher, its
// arguments and links. False for an environment variable, which may change anything.
bool is_time_only(std::string_view key);

}  // namespace trivet

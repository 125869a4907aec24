// Provenance: what made a number, in every row of a study's results: the program, the machine, and the environment
// variables that reach into either. Times are divided by each other only within one call of the program, where all of
// it is the same; trivet study compare reports the differences between two sets of results.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace trivet {

// [name]: version and commit of the program; build: compiler, its flags, back ends; binary: the first 16 digits of the
// program's content hash, as a commit can be built in many ways; host, processor, cores (that the study may use),
// kernel; environment: "NAME=VALUE …", of the study's own process, what may change how fast ranks run; launcher of the
// ranks, with what the study gives it; threads that compute at the same time on this machine (0: ranks may be
// elsewhere); load: of the machine before the run, processes that run or wait. Earlier versions wrote none, or some.
using Provenance = std::map<std::string, std::string>;
constexpr std::string_view kProvenance[] = {"version", "commit", "build",    "binary",      "host",    "processor",
                                            "cores",   "kernel", "launcher", "environment", "threads", "load"};
std::string provenance_value(const Provenance& provenance, std::string_view name);  // "": it has none

// Provenance of this machine and the program at `path`, now; with version, commit and build of `build`, without
// launcher, threads and load. Throws IoError if the program cannot be read.
Provenance provenance_of(Provenance build, const std::string& path);

// "AMD EPYC, 2 cores (HOST, Linux 6.1.0); trivet 0.1.0, commit 1234567 (g++ …), binary 0123456789abcdef; OMP_…=…": all
// but launcher, threads and load, which differ from run to run.
std::string provenance_text(const Provenance& provenance);

}  // namespace trivet

// Provenance: the origin of every row of a study's results: the program, the machine, and the environment variables
// that affect either. Ratios of times are taken only within one invocation of the program, where all of
// this is the same; trivet study compare reports the differences between two sets of results.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace trivet {

// [name]: version and commit of the program; build: compiler, its flags, back ends; binary: the first 16 digits of the
// program's content hash, because a commit can be built in many ways; host, processor, cores (that the study may use),
// kernel; environment: "NAME=VALUE …", variables of the study's own process that can affect the ranks' speed; launcher
// of the ranks, with the study's options for it; threads that compute concurrently on this machine (0: ranks may be
// elsewhere); load: processes running or waiting on this machine before the run. Earlier versions wrote fewer or none.
using Provenance = std::map<std::string, std::string>;
constexpr std::string_view kProvenance[] = {"version", "commit", "build",    "binary",      "host",    "processor",
                                            "cores",   "kernel", "launcher", "environment", "threads", "load"};
std::string provenance_value(const Provenance& provenance, std::string_view name);  // "": none

// The current provenance of this machine and the program at `path`, with version, commit and build from `build`,
// without launcher, threads and load. Throws IoError if the program cannot be read.
Provenance provenance_of(Provenance build, const std::string& path);

// "AMD EPYC, 2 cores (HOST, Linux 6.1.0); trivet 0.1.0, commit 1234567 (g++ …), binary 0123456789abcdef; OMP_…=…": all
// but launcher, threads and load, which differ from run to run.
std::string provenance_text(const Provenance& provenance);

}  // namespace trivet

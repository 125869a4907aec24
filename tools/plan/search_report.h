// The results of a search, as tables and as JSON.
#pragma once

#include <string>
#include <vector>

#include "base/text.h"
#include "tools/plan/search.h"

namespace trivet {

// The `count` best layouts, with the parts of their steps besides computing; and pareto_of() all.
std::vector<TextBlock> describe(const SearchResult& result, size_t count);
TextBlock changes_of(const Candidate& candidate);
// The outcome of all layouts, and how fast those that were not rehearsed could be.
std::string extent_of(const SearchResult& result, size_t count);
// out: the file that has the best one.
std::string to_json(const SearchResult& result, const System& system, const std::string& out, size_t count);

// The file of a study (tools/study/study_file.h) of the best layouts, to be written to `path`: measures the plan.
std::string study_of(const SearchResult& result, const LoadedConfig& run, const System& system, const std::string& path,
                     size_t count);

// The candidates on the Pareto front of time and memory, the fastest first. found: the fastest first.
std::vector<const Candidate*> pareto_of(const std::vector<Candidate>& found);

}  // namespace trivet

// The results of a search, as tables and as JSON.
#pragma once

#include <string>
#include <vector>

#include "base/text.h"
#include "tools/plan/search.h"

namespace trivet {

// Tables of the `count` best layouts with their steps' overheads, and of the Pareto front of all (pareto_of()).
std::vector<TextBlock> describe(const SearchResult& result, size_t count);
TextBlock changes_of(const Candidate& candidate);
// The number of layouts by outcome, and a lower bound on the step time of those that were not rehearsed.
std::string extent_of(const SearchResult& result, size_t count);
// out: the path of the file with the best layout.
std::string to_json(const SearchResult& result, const System& system, const std::string& out, size_t count);

// A study file (tools/study/study_file.h) that measures the best layouts, to be written to `path`.
std::string study_of(const SearchResult& result, const LoadedConfig& run, const System& system, const std::string& path,
                     size_t count);

// The candidates on the Pareto front of time and memory. `found` and the result are sorted, fastest first.
std::vector<const Candidate*> pareto_of(const std::vector<Candidate>& found);

}  // namespace trivet

// The points of a study's design, before anybody asks whether they can run.
#pragma once

#include <string>
#include <vector>

#include "engine/study/study.h"

namespace trivet {

// Each once. grid: all, the last factor changes fastest. one_at_a_time: the baseline, then every other level of each
// factor in turn. list: as listed, the baseline in front where it is not among them. Throws ConfigError for more than
// 10,000.
std::vector<Choice> design_points(const Study& study);

std::vector<std::string> labels_of(const Study& study, const Choice& choice);

// "bucket_size=1000, link=slow": of the factors with several levels.
std::string describe_choice(const Study& study, const Choice& choice);
// The same, only of the factors that are conditions ("" where there are none), and only of the others.
std::string describe_conditions(const Study& study, const Choice& choice);
std::string describe_chosen(const Study& study, const Choice& choice);

}  // namespace trivet

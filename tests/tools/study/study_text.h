// A study of a small configuration, in a folder of its own, and results for it that need no run.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/engine/config/config_text.h"
#include "tests/support/temp_dir.h"
#include "tools/study/plan.h"
#include "tools/study/study.h"
#include "tools/study/study_file.h"

namespace trivet {

inline const std::string kGoodStudy = R"(name: good
base: run.yaml
ranks: 2
steps: 4
warmup_steps: 1
repeats: 2
factors:
  - key: parallel.bucket_size
    levels: [1000, 2000, 3000]
  - name: size
    levels:
      small: {}
      big: {model.hidden_size: 16, model.num_layers: 4}
)";

// `text` with `from`, which must occur in it, replaced by `to`.
inline std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

class StudyFolder {
 public:
  explicit StudyFolder(const std::string& config = kGoodConfig) { write_text(dir_ / "run.yaml", config); }
  Study study(const std::string& text = kGoodStudy) const {
    Study study = parse_study(text, dir_ / "study.yaml");
    study.out = dir_ / "out";
    return study;
  }
  std::string operator/(const std::string& name) const { return dir_ / name; }

 private:
  TempDir dir_;
};

// A finished run of a point: its steps took `step_seconds` each.
inline RunRow row_of(const Point& point, int64_t repeat, double step_seconds,
                     const std::vector<double>& losses = {4, 3, 2, 1}) {
  RunRow row;
  row.point = point.id;
  row.repeat = repeat;
  row.seconds = 10 * step_seconds;
  row.metrics = {{"step_seconds", step_seconds}, {"loss", losses.back()}};
  row.losses = losses;
  return row;
}

}  // namespace trivet

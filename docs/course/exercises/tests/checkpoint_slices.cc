#include "docs/course/exercises/checkpoint_slices.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

const Matrix kWhole = matrix(7, 10, 1);
const std::vector<Box> kByRows{{0, 3, 0, 10}, {3, 4, 0, 10}}, kByColumns{{0, 7, 0, 3}, {0, 7, 3, 3}, {0, 7, 6, 4}},
    kByBoth{{0, 4, 0, 5}, {0, 4, 5, 5}, {4, 3, 0, 5}, {4, 3, 5, 5}};

std::vector<float> part_of_whole(const Box& box) {
  std::vector<float> part;
  for (int64_t row = box.row; row < box.row + box.rows; ++row)
    for (int64_t col = box.col; col < box.col + box.cols; ++col) part.push_back(kWhole(row, col));
  return part;
}

TEST(checkpoint_slices, load_under_any_layout) {
  const std::pair<const char*, const std::vector<Box>*> layouts[] = {
      {"rows", &kByRows}, {"columns", &kByColumns}, {"both", &kByBoth}};
  for (const auto& [saved_by, saved] : layouts)
    for (const auto& [loaded_by, loaded] : layouts)
      for (size_t i = 0; i < loaded->size(); ++i) {
        const Box& to = (*loaded)[i];
        std::vector<float> wanted(static_cast<size_t>(to.rows * to.cols), -9);
        for (const Box& from : *saved) copy_overlap(from, part_of_whole(from), to, wanted);
        expect_near(wanted, part_of_whole(to), 0,
                    fmt::format("saved by {}, loaded by {}: box {} (-9: never written)", saved_by, loaded_by, i));
      }
}

}  // namespace
}  // namespace trivet::exercise

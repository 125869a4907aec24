#include "docs/course/exercises/critical_batch.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

double error_of(const BatchLaw& law, const std::vector<BatchRun>& runs) {
  double error = 0;
  for (const auto& [batch, steps] : runs)
    error += std::pow(law.least_steps * (1 + law.critical / batch) / steps - 1, 2);
  return error;
}

TEST(critical_batch, is_found_where_runs_are_exact) {
  std::vector<BatchRun> runs;
  for (const double batch : {8, 16, 64, 512}) runs.push_back({batch, 250 * (1 + 48 / batch)});
  const auto [least_steps, critical] = critical_batch(runs);
  EXPECT_NEAR(least_steps, 250, 1e-6);
  EXPECT_NEAR(critical, 48, 1e-6);
}

TEST(critical_batch, has_the_least_relative_error) {
  // The steps are 5 % above and below the law in turn.
  std::vector<BatchRun> runs;
  for (const double batch : {1, 4, 16, 64, 256, 1024})
    runs.push_back({batch, 250 * (1 + 48 / batch) * (runs.size() % 2 == 0 ? 1.05 : 0.95)});
  const BatchLaw law = critical_batch(runs);
  for (const double factor : {0.98, 1.02}) {
    ASSERT_LT(error_of(law, runs), error_of({factor * law.least_steps, law.critical}, runs))
        << "you find " << law.least_steps << " steps at least, but " << factor << " times that fits better";
    ASSERT_LT(error_of(law, runs), error_of({law.least_steps, factor * law.critical}, runs))
        << "you find a critical batch of " << law.critical << ", but " << factor << " times that fits better";
  }
}

}  // namespace
}  // namespace trivet::exercise

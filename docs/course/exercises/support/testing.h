// What the tests of the exercises share: made-up numbers, ranks that are threads, and comparisons that say where two
// vectors first differ.
#pragma once

#include <gtest/gtest.h>
#include <mutex>
#include <source_location>

#include "docs/course/exercises/support/matrix.h"
#include "docs/course/exercises/support/ranks.h"
#include "parallel/comm/world.h"
#include "tests/support/rank_values.h"

namespace trivet::exercise {

// From -1 to 1, the same in every run.
inline std::vector<float> numbers(int64_t count, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(mixed(i + (seed << 32)) >> 40) * 0x1p-23f - 1;
  return x;
}
inline Matrix matrix(int64_t rows, int64_t cols, uint64_t seed) {
  Matrix x(rows, cols);
  x.values = numbers(rows * cols, seed);
  return x;
}

// body(rank's communicator, its stream) on n ranks. The first error of a rank is a failure of the test.
template <class Body>
void on_ranks(int n, const Body& body) {
  try {
    run_thread_ranks(n, [&](Communicator& world) {
      RankStreams rank;
      const FailureGuard guard(world);
      body(world, *rank.stream);
    });
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

// Fails the test with `problem`, unless that is empty or the test has failed before: one message at a time is enough to
// work on. Any rank may call this. Ranks take turns, because HasFailure() reads without GoogleTest's lock.
inline void expect_no(const std::string& problem, std::source_location at = std::source_location::current()) {
  static std::mutex turn;
  const std::lock_guard lock(turn);
  if (problem.empty() || testing::Test::HasFailure()) return;
  ADD_FAILURE_AT(at.file_name(), static_cast<int>(at.line())) << problem;
}

// Reports the first element that is not within `tolerance`, and how many are not. Numbers of any type.
template <class Found, class Expected>
void expect_near(const Found& found, const Expected& expected, double tolerance, const std::string& what,
                 std::source_location at = std::source_location::current()) {
  const auto value = [](const auto& x, size_t i) { return static_cast<double>(x[i]); };
  std::string problem;
  if (found.size() != expected.size())
    problem = fmt::format("{}: found {} elements, expected {}", what, found.size(), expected.size());
  size_t wrong = 0, first = 0;
  for (size_t i = found.size(); problem.empty() && i-- > 0;)
    if (!(std::abs(value(found, i) - value(expected, i)) <= tolerance)) ++wrong, first = i;
  if (wrong > 0)
    problem = fmt::format("{}: {} of {} elements are wrong. The first is element {}: found {:.7g}, expected {:.7g}",
                          what, wrong, found.size(), first, value(found, first), value(expected, first));
  expect_no(problem, at);
}

}  // namespace trivet::exercise

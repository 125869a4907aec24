// The main function of exercise_holes and exercise_mistakes: each suite of the program has to fail by an assertion of
// its own. A suite that passes, or throws, is an error; a crash ends the program with its signal.
#include <gtest/gtest.h>
#include <iostream>
#include <map>

namespace {

class FirstFailures : public testing::EmptyTestEventListener {
 public:
  void OnTestSuiteStart(const testing::TestSuite& suite) override { suites_[suite_ = suite.name()]; }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    Suite& suite = suites_[suite_];
    if (result.file_name() == nullptr) suite.threw = true;  // gtest caught an exception
    if (suite.first.empty())
      suite.first = std::string(result.file_name() ? result.file_name() : "?") + ":" +
                    std::to_string(result.line_number()) + "\n    " + result.summary();
  }
  // Prints each suite's first failure; returns whether all failed as they have to.
  bool report() const {
    bool good = !suites_.empty();
    for (const auto& [name, suite] : suites_) {
      const char* verdict = suite.first.empty() ? "PASSES" : suite.threw ? "THROWS" : "fails";
      std::cout << name << " " << verdict << ": " << suite.first << "\n";
      good = good && !suite.first.empty() && !suite.threw;
    }
    return good;
  }

 private:
  struct Suite {
    std::string first;
    bool threw = false;
  };
  std::map<std::string, Suite> suites_;
  std::string suite_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* const failures = new FirstFailures;  // gtest owns it
  listeners.Append(failures);
  const bool all_passed = RUN_ALL_TESTS() == 0;
  return failures->report() && !all_passed ? 0 : 1;
}

// TensorBoard's event files: bytes that TensorFlow's writer makes, and what is in them after runs that were killed and
// resumed. tests/tensorboard.py looks at them with TensorBoard itself, by hand.
#include "engine/metrics/tensorboard.h"

#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <map>

#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

std::string bytes_of_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  std::ranges::sort(files);
  return files;
}

// By tag, the steps that the files of a folder have, in their order. Fails on a damaged file.
std::map<std::string, std::vector<int64_t>> steps_of(const std::string& folder) {
  std::map<std::string, std::vector<int64_t>> steps;
  for (const std::string& file : files_of(folder)) {
    int events = 0;
    EXPECT_EQ(for_each_event(read_text(file),
                             [&](const TensorBoardEvent& event, size_t) {
                               EXPECT_EQ(event.file_version, events++ == 0 ? "brain.Event:2" : "");
                               for (const auto& [tag, value] : event.scalars) steps[tag].push_back(event.step);
                               return true;
                             }),
              "");
  }
  return steps;
}

StepReport step_of(int64_t step) {
  StepReport report;
  report.step = step;
  report.loss = static_cast<double>(step) / 8;
  return report;
}

void run(const std::string& folder, const RunBegin& begin, int64_t last, std::string* note = nullptr) {
  TensorBoardLog log(folder, nullptr);
  const std::string text = log.begin(begin);
  if (note) *note = text;
  for (int64_t step = begin.step + 1; step <= last; ++step) {
    log.step(step_of(step));
    if (step % 5 == 0) log.evaluation({.step = step, .loss = 1});
  }
  log.flush();
}

std::vector<int64_t> up_to(int64_t last, int64_t by = 1) {
  std::vector<int64_t> steps;
  for (int64_t step = by; step <= last; step += by) steps.push_back(step);
  return steps;
}

// Records of TensorFlow's own writer.
TEST(TensorBoard, ReadsWhatTensorFlowWrites) {
  const std::string golden = bytes_of_hex(
      "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d"
      "1a00000000000000129bd82d0900000040fc54d94110012a0d0a0b0a046c6f737315000020408c508023");
  std::vector<TensorBoardEvent> events;
  std::vector<size_t> ends;
  EXPECT_EQ(for_each_event(golden,
                           [&](const TensorBoardEvent& event, size_t end) {
                             events.push_back(event);
                             ends.push_back(end);
                             return true;
                           }),
            "");
  EXPECT_EQ(ends, (std::vector<size_t>{40, 82}));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].wall_time, 1.7e9);
  EXPECT_EQ(events[1].step, 1);
  ASSERT_EQ(events[1].scalars.size(), 1u);
  EXPECT_EQ(events[1].scalars[0], (std::pair<std::string, float>{"loss", 2.5f}));
  // Each byte counts.
  for (size_t i = 0; i < golden.size(); ++i) {
    std::string damaged = golden;
    damaged[i] ^= 4;
    EXPECT_NE(for_each_event(damaged, [](const TensorBoardEvent&, size_t) { return true; }), "") << i;
  }
}

TEST(TensorBoard, WritesMegatronsTags) {
  const TempDir dir;
  TensorBoardLog log(dir / "a/b", nullptr);
  log.begin({});
  StepReport report = step_of(300);  // a step of two bytes
  report.grad_norm = 2, report.learning_rate = 0.5, report.step_seconds = 0.25, report.model_tflops_per_rank = 100;
  report.batch_size = 64;
  log.step(report);
  log.evaluation({.step = 300, .loss = 0});
  log.flush();
  std::map<std::string, float> scalars;
  for_each_event(read_text(files_of(dir / "a/b").at(0)), [&](const TensorBoardEvent& event, size_t) {
    EXPECT_EQ(event.step, event.scalars.empty() ? 0 : 300);
    scalars.insert(event.scalars.begin(), event.scalars.end());
    return true;
  });
  EXPECT_EQ(scalars["lm loss"], 37.5f);
  EXPECT_EQ(scalars["grad-norm"], 2);
  EXPECT_EQ(scalars["learning-rate"], 0.5f);
  EXPECT_EQ(scalars["iteration-time"], 0.25f);
  EXPECT_EQ(scalars["throughput"], 100);
  EXPECT_EQ(scalars["batch-size"], 64);
  EXPECT_TRUE(scalars.contains("lm loss validation"));
  EXPECT_EQ(scalars["lm loss validation ppl"], 1);
  EXPECT_FALSE(scalars.contains("mfu")) << "unknown";
}

TEST(TensorBoard, HasEachStepOnceAfterAKillAndAResume) {
  const TempDir dir;
  run(dir / "tb", {}, 17);
  // Killed in a write, then resumed behind step 10 on a host whose clock is behind.
  const std::string first = files_of(dir / "tb").at(0);
  std::filesystem::resize_file(first, std::filesystem::file_size(first) - 5);
  const std::string later = std::filesystem::path(first).parent_path() / "events.out.tfevents.9999999990.other.1";
  std::filesystem::rename(first, later);
  run(dir / "tb", {.step = 10, .checkpoint = "x", .goes_on = true}, 12);
  EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(12));
  run(dir / "tb", {.step = 11, .checkpoint = "x", .goes_on = true}, 20);
  EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(20));
  EXPECT_EQ(steps_of(dir / "tb")["lm loss validation"], up_to(20, 5));
  // One whose evaluation was interrupted makes it again.
  run(dir / "tb", {.step = 15, .checkpoint = "x", .goes_on = true, .evaluates_again = true}, 15);
  EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(15));
  EXPECT_EQ(steps_of(dir / "tb")["lm loss validation"], up_to(10, 5));
  const std::vector<std::string> files = files_of(dir / "tb");
  EXPECT_EQ(files.front(), later) << "names are in the order of the runs";
}

TEST(TensorBoard, OfANewRunMovesAnEarlierOnesAside) {
  const TempDir dir;
  run(dir / "tb", {}, 7);
  std::string note;
  run(dir / "tb", {}, 3, &note);
  EXPECT_NE(note.find("earlier-1"), std::string::npos) << note;
  EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(3));
  EXPECT_EQ(steps_of(dir / "tb/earlier-1")["lm loss"], up_to(7));
}

}  // namespace
}  // namespace trivet

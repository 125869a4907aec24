// TensorBoard's event files: the format, against bytes from TensorFlow's writer, and the contents after runs that were
// killed and resumed. tests/read_tensorboard.py, which is run by hand, reads them with TensorBoard itself.
#include "engine/metrics/tensorboard.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <map>

#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

// ---- a strict reader, which shares nothing but the format with the writer

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  bool session_start = false;
  std::vector<std::pair<std::string, float>> scalars;
};

template <class T>
T value_at(std::string_view data, size_t at) {
  T value;
  std::memcpy(&value, data.data() + at, sizeof value);
  return value;
}

uint32_t checksum(std::string_view data) {
  uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// Calls each(field, number, bytes) for the fields of a message; `number` is a varint's value. False: not a message.
bool for_each_field(std::string_view message,
                    const std::function<bool(uint64_t field, uint64_t number, std::string_view bytes)>& each) {
  const auto take_varint = [&](uint64_t& x) {
    x = 0;
    for (int shift = 0; shift < 64 && !message.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(message.front());
      message.remove_prefix(1);
      x |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return true;
    }
    return false;
  };
  uint64_t key = 0;
  while (!message.empty()) {
    if (!take_varint(key)) return false;
    uint64_t number = 0, size = 0;
    switch (key & 7) {
      case 0:
        if (!take_varint(number)) return false;
        break;
      case 1: size = 8; break;
      case 5: size = 4; break;
      case 2:
        if (!take_varint(size)) return false;
        break;
      default: return false;
    }
    if (size > message.size() || !each(key >> 3, number, message.substr(0, size))) return false;
    message.remove_prefix(size);
  }
  return true;
}

bool parse(std::string_view message, Event& event) {
  const auto value = [&](uint64_t field, uint64_t, std::string_view bytes) {
    if (field == 1) event.scalars.back().first = bytes;
    if (field == 2 && bytes.size() == 4) event.scalars.back().second = value_at<float>(bytes, 0);
    return field <= 2;
  };
  return for_each_field(message, [&](uint64_t field, uint64_t number, std::string_view bytes) {
    switch (field) {
      case 1: event.wall_time = bytes.size() == 8 ? value_at<double>(bytes, 0) : 0; return bytes.size() == 8;
      case 2: event.step = static_cast<int64_t>(number); return true;
      case 3: event.file_version = bytes; return true;
      case 7: event.session_start = bytes == "\x08\x01"; return event.session_start;
      case 5:
        return for_each_field(bytes, [&](uint64_t of, uint64_t, std::string_view inner) {
          event.scalars.emplace_back();
          return of == 1 && for_each_field(inner, value);
        });
      default: return false;
    }
  });
}

// Calls each(event, end) for the events of a file. Returns what is wrong with the file, or "".
std::string for_each_event(std::string_view file, const std::function<void(const Event&, size_t end)>& each) {
  for (size_t at = 0; at < file.size();) {
    const std::string_view rest = file.substr(at);
    if (rest.size() < 16) return fmt::format("byte {}: a frame is cut off", at);
    const auto size = value_at<uint64_t>(rest, 0);
    if (value_at<uint32_t>(rest, 8) != checksum(rest.substr(0, 8))) return fmt::format("byte {}: a bad length", at);
    if (size > rest.size() - 16) return fmt::format("byte {}: a frame is cut off", at);
    const std::string_view message = rest.substr(12, size);
    Event event;
    if (value_at<uint32_t>(rest, 12 + size) != checksum(message) || !parse(message, event))
      return fmt::format("byte {}: a damaged event", at);
    each(event, at += 16 + size);
  }
  return {};
}

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

// The steps by tag, in the order of a folder's files. Fails on a damaged file.
std::map<std::string, std::vector<int64_t>> steps_of(const std::string& folder) {
  std::map<std::string, std::vector<int64_t>> steps;
  for (const std::string& file : files_of(folder)) {
    int events = 0;
    EXPECT_EQ(for_each_event(read_text(file),
                             [&](const Event& event, size_t) {
                               EXPECT_EQ(event.file_version, events++ == 0 ? "brain.Event:2" : "");
                               for (const auto& [tag, value] : event.scalars) steps[tag].push_back(event.step);
                             }),
              "");
  }
  return steps;
}

StepReport shown_step(int64_t step) {
  StepReport report;
  report.step = step;
  report.loss = static_cast<double>(step) / 8;
  return report;
}

void write_run(const std::string& folder, const RunBegin& begin, int64_t last, std::string* note = nullptr) {
  TensorBoardLog log(folder, nullptr);
  const std::string text = log.begin(begin);
  if (note) *note = text;
  for (int64_t step = begin.step + 1; step <= last; ++step) {
    log.step(shown_step(step));
    if (step % 5 == 0) log.evaluation({.step = step, .loss = 1});
  }
  log.flush();
}

std::vector<int64_t> up_to(int64_t last, int64_t by = 1) {
  std::vector<int64_t> steps;
  for (int64_t step = by; step <= last; step += by) steps.push_back(step);
  return steps;
}

// Records from TensorFlow's own writer.
TEST(TensorBoard, ReadsWhatTensorFlowWrites) {
  const std::string golden = bytes_of_hex(
      "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d"
      "1a00000000000000129bd82d0900000040fc54d94110012a0d0a0b0a046c6f737315000020408c508023");
  std::vector<Event> events;
  std::vector<size_t> ends;
  EXPECT_EQ(for_each_event(golden,
                           [&](const Event& event, size_t end) {
                             events.push_back(event);
                             ends.push_back(end);
                           }),
            "");
  EXPECT_EQ(ends, (std::vector<size_t>{40, 82}));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].wall_time, 1.7e9);
  EXPECT_EQ(events[1].step, 1);
  ASSERT_EQ(events[1].scalars.size(), 1u);
  EXPECT_EQ(events[1].scalars[0], (std::pair<std::string, float>{"loss", 2.5f}));
  // Damage to any byte is detected.
  for (size_t i = 0; i < golden.size(); ++i) {
    std::string damaged = golden;
    damaged[i] ^= 4;
    EXPECT_NE(for_each_event(damaged, [](const Event&, size_t) {}), "") << i;
  }
}

TEST(TensorBoard, WritesMegatronsTags) {
  const TempDir dir;
  TensorBoardLog log(dir / "a/b", nullptr);
  log.begin({});
  StepReport report = shown_step(300);  // a step that takes two bytes
  report.grad_norm = 2, report.learning_rate = 0.5, report.step_seconds = 0.25, report.model_tflops_per_rank = 100;
  report.batch_size = 64;
  log.step(report);
  log.evaluation({.step = 300, .loss = 0});
  log.flush();
  std::map<std::string, float> scalars;
  for_each_event(read_text(files_of(dir / "a/b").at(0)), [&](const Event& event, size_t) {
    EXPECT_EQ(event.step, event.session_start ? 1 : event.scalars.empty() ? 0 : 300);
    scalars.insert(event.scalars.begin(), event.scalars.end());
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
  write_run(dir / "tb", {}, 17);
  // Killed during a write, then resumed after step 10 on a host whose clock lags.
  const std::string first = files_of(dir / "tb").at(0);
  std::filesystem::resize_file(first, std::filesystem::file_size(first) - 5);
  const std::string later = std::filesystem::path(first).parent_path() / "events.out.tfevents.9999999990.other.1";
  std::filesystem::rename(first, later);
  write_run(dir / "tb", {.step = 10, .checkpoint = "x", .goes_on = true}, 12);
  EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(12));
  write_run(dir / "tb", {.step = 11, .checkpoint = "x", .goes_on = true}, 20);
  EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(20));
  EXPECT_EQ(steps_of(dir / "tb")["lm loss validation"], up_to(20, 5));
  // A run repeats an evaluation that was interrupted.
  write_run(dir / "tb", {.step = 15, .checkpoint = "x", .goes_on = true, .evaluates_again = true}, 15);
  EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(15));
  EXPECT_EQ(steps_of(dir / "tb")["lm loss validation"], up_to(10, 5));
  const std::vector<std::string> files = files_of(dir / "tb");
  EXPECT_EQ(files.front(), later) << "names are in the order of the runs";
}

// Steps whose varints have one, two and three bytes, on both sides of each border.
TEST(TensorBoard, ResumesAfterStepsOfAnySize) {
  for (const int64_t step : {127, 128, 129, 300, 16383, 16384, 16500}) {
    const TempDir dir;
    write_run(dir / "tb", {}, step + 200);
    write_run(dir / "tb", {.step = step, .checkpoint = "x", .goes_on = true}, step + 5);
    EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(step + 5)) << step;
  }
}

TEST(TensorBoard, CutsNoFileOfAnother) {
  const TempDir dir;
  write_run(dir / "tb", {}, 5);
  write_text(dir / "victim", "precious, and forty bytes long or more, surely");
  std::filesystem::create_symlink(dir / "victim", dir / "tb/events.out.tfevents.5.link");
  write_run(dir / "tb", {.step = 3, .checkpoint = "x", .goes_on = true}, 6);
  EXPECT_EQ(read_text(dir / "victim").size(), 46u);
  std::filesystem::remove(dir / "tb/events.out.tfevents.5.link");
  EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(6));
  // A damaged file is left as it is and named.
  const std::string first = files_of(dir / "tb").at(0);
  std::string text = read_text(first);
  text[1] ^= 1;
  write_text(first, text);
  std::string note;
  write_run(dir / "tb", {.step = 2, .checkpoint = "x", .goes_on = true}, 2, &note);
  EXPECT_NE(note.find(first), std::string::npos) << note;
  EXPECT_EQ(read_text(first), text);
}

TEST(TensorBoard, OfANewRunMovesAnEarlierOnesAside) {
  const TempDir dir;
  write_run(dir / "tb", {}, 7);
  std::string note;
  write_run(dir / "tb", {}, 3, &note);
  EXPECT_NE(note.find("earlier-1"), std::string::npos) << note;
  EXPECT_EQ(steps_of(dir / "tb")["lm loss"], up_to(3));
  EXPECT_EQ(steps_of(dir / "tb/earlier-1")["lm loss"], up_to(7));
}

}  // namespace
}  // namespace trivet

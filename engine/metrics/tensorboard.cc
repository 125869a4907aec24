#include "engine/metrics/tensorboard.h"

#include <algorithm>
#include <bit>
#include <boost/crc.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <limits>
#include <unistd.h>

#include "base/check.h"
#include "base/host.h"

namespace trivet {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kValidation = "lm loss validation";

// ---- frames: length (8 bytes), its checksum (4), the message, its checksum (4)

constexpr size_t kAround = 16;

// CRC-32C (Castagnoli), rotated and offset, because a plain CRC of data that contains CRCs would be weak.
uint32_t checksum(std::string_view data) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(data.data(), data.size());
  return std::rotl(crc.checksum(), 17) + 0xa282ead8u;
}

template <class T>
std::string bytes_of(const T& value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// ---- messages: Protocol Buffers fields, each a key (number and type) and a value

enum class Wire : uint64_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
enum EventField : uint64_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };

void put_varint(std::string& out, uint64_t x) {
  for (; x >= 128; x >>= 7) out += static_cast<char>(x | 128);
  out += static_cast<char>(x);
}
void put(std::string& out, uint64_t field, Wire wire, std::string_view value) {
  put_varint(out, field << 3 | static_cast<uint64_t>(wire));
  if (wire == Wire::bytes) put_varint(out, value.size());
  out += value;
}

// The frame of an Event with the current time.
std::string event(int64_t step, EventField field, std::string_view value) {
  std::string message, step_value;
  put_varint(step_value, static_cast<uint64_t>(step));
  put(message, kWallTime, Wire::fixed64, bytes_of(unix_seconds()));
  put(message, kStep, Wire::varint, step_value);
  put(message, field, Wire::bytes, value);
  const std::string length = bytes_of(uint64_t{message.size()});
  return length + bytes_of(checksum(length)) + message + bytes_of(checksum(message));
}

// ---- the files of a folder

std::vector<fs::path> event_files(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (fs::is_regular_file(entry.symlink_status()) && entry.path().filename().string().starts_with(kPrefix))
      files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// The step of an event written by this class, whose first fields are its time and its step.
int64_t step_of_event(std::string_view message) {
  int64_t step = 0;
  for (size_t i = 10, shift = 0; i < message.size() && shift < 63; ++i, shift += 7) {
    step |= static_cast<int64_t>(message[i] & 127) << shift;
    if ((message[i] & 128) == 0) break;
  }
  return step;
}

// Removes the records that a run resumed after `step` will rewrite, and a killed run's partial record. False: the file
// is damaged and left unchanged.
bool cut(const fs::path& path, int64_t step, bool evaluates_again) {
  const std::string text = read_small_file(path.string(), std::numeric_limits<int64_t>::max());
  size_t end = 0;
  for (uint64_t size; end + kAround <= text.size(); end += kAround + size) {
    std::memcpy(&size, text.data() + end, sizeof size);
    uint32_t sum;
    std::memcpy(&sum, text.data() + end + sizeof size, sizeof sum);
    if (sum != checksum({text.data() + end, sizeof size})) return false;
    if (size > text.size() - end - kAround) break;
    const std::string_view message(text.data() + end + 12, size);
    const bool evaluation = message.find(kValidation) != std::string_view::npos;
    if (step_of_event(message) > step || (evaluates_again && step_of_event(message) == step && evaluation)) break;
  }
  if (end < text.size()) fs::resize_file(path, end);
  return true;
}

}  // namespace

TensorBoardLog::TensorBoardLog(std::string folder, AppendFile::Warn warn)
    : folder_(std::move(folder)), warn_(std::move(warn)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error || access(folder_.c_str(), W_OK) != 0)
    throw IoError(fmt::format("train.tensorboard_dir: {}: cannot be written to: {}", folder_,
                              error ? error.message() : error_text(errno)));
}

std::string TensorBoardLog::begin(const RunBegin& run) {
  std::string note;
  auto now = static_cast<int64_t>(unix_seconds());
  try {
    const std::vector<fs::path> before = event_files(folder_);
    if (!run.goes_on && !before.empty()) {
      int number = 1;
      while (fs::exists(fmt::format("{}/earlier-{}", folder_, number))) ++number;
      const fs::path aside = fmt::format("{}/earlier-{}", folder_, number);
      fs::create_directory(aside);
      for (const fs::path& file : before) fs::rename(file, aside / file.filename());
      note = fmt::format("{} held an earlier run's events, which are now in {}", folder_, aside.string());
    }
    for (const fs::path& file : before) {
      if (run.goes_on && !cut(file, run.step, run.evaluates_again))
        note = fmt::format("{} is damaged and left as it is: repeated steps may be shown twice", file.string());
      // Readers sort files by name, and this host's clock may lag another's.
      const std::string name = file.filename().string().substr(kPrefix.size());
      now = std::max<int64_t>(now, std::min<int64_t>(std::strtoll(name.c_str(), nullptr, 10), 9'999'999'998) + 1);
    }
    const auto file =
        std::make_shared<AppendFile>(fmt::format("{}/{}{:010}.{}.{}", folder_, kPrefix, now, host_name(), getpid()),
                                     AppendFile::Start::empty, warn_);
    queue_.emplace(SinkQueue::Sink{.write = [file](const std::string& frames) { return file->append(frames, true); }});
  } catch (const std::exception& error) {
    return fmt::format("no events are written: train.tensorboard_dir: {}", error.what());
  }
  queue_->push(event(0, kFileVersion, "brain.Event:2"));
  // On a second session event, a reader discards the steps already read that will be repeated.
  queue_->push(event(run.step + 1, kSessionLog, "\x08\x01"));
  return note;
}

void TensorBoardLog::add(int64_t step, const Scalars& scalars) {
  if (!queue_) return;
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    if (std::isnan(number) && tag != "lm loss") continue;  // unknown
    std::string value;
    put(value, 1, Wire::bytes, tag);
    put(value, 2, Wire::fixed32, bytes_of(static_cast<float>(number)));
    put(summary, 1, Wire::bytes, value);
  }
  queue_->push(event(step, kSummary, summary));
}

void TensorBoardLog::step(const StepReport& r) {
  add(r.step, {{"lm loss", r.loss},
               {"grad-norm", r.grad_norm},
               {"learning-rate", r.learning_rate},
               {"batch-size", r.batch_size ? static_cast<double>(*r.batch_size) : StepReport::kUnknown},
               {"iteration-time", r.step_seconds},
               {"throughput", r.model_tflops_per_rank},
               {"tokens-per-second", r.tokens_per_second},
               {"mfu", r.mfu},
               {"exposed-communication", r.stats.of_window(StepStats::sum(r.stats.exposed))},
               {"pipeline-bubble", r.bubble_fraction}});
}

void TensorBoardLog::evaluation(const EvalReport& r) {
  const bool valid = r.set == "validation";
  add(r.step, {{valid ? kValidation : "lm loss test", r.loss},
               {valid ? "lm loss validation ppl" : "lm loss test ppl", std::exp(r.loss)}});
}

void TensorBoardLog::flush() {
  if (queue_) queue_->drain();
}

}  // namespace trivet

#include "engine/metrics/tensorboard.h"

#include <algorithm>
#include <array>
#include <bit>
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

// CRC-32C (Castagnoli), turned and shifted, as a checksum of data that holds checksums would be weak.
uint32_t checksum(std::string_view data) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      table[i] = i;
      for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82F63B78u : 0);
    }
    return table;
  }();
  uint32_t crc = ~0u;
  for (const char c : data) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return std::rotl(~crc, 17) + 0xa282ead8u;
}

template <class T>
std::string bytes_of(const T& value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
template <class T>
T value_at(std::string_view data, size_t at) {
  T value;
  std::memcpy(&value, data.data() + at, sizeof value);
  return value;
}

std::string framed(const std::string& message) {
  const std::string length = bytes_of(uint64_t{message.size()});
  return length + bytes_of(checksum(length)) + message + bytes_of(checksum(message));
}

// ---- messages: fields of Protocol Buffers, each a key (number and type) and its value

enum Wire : uint64_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
enum EventField : uint64_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };

void put_varint(std::string& out, uint64_t x) {
  for (; x >= 128; x >>= 7) out += static_cast<char>(x | 128);
  out += static_cast<char>(x);
}
void put(std::string& out, uint64_t field, Wire wire, std::string_view value) {
  put_varint(out, field << 3 | wire);
  if (wire == Wire::bytes) put_varint(out, value.size());
  out += value;
}

std::string event(int64_t step) {
  std::string out;
  put(out, kWallTime, fixed64, bytes_of(unix_seconds()));
  put_varint(out, kStep << 3 | varint);
  put_varint(out, static_cast<uint64_t>(step));
  return out;
}

// Calls each(field, number, bytes) for the fields of a message; `number` is a varint's value. False: it is none.
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
      case varint:
        if (!take_varint(number)) return false;
        break;
      case fixed64: size = 8; break;
      case fixed32: size = 4; break;
      case Wire::bytes:
        if (!take_varint(size)) return false;
        break;
      default: return false;
    }
    if (size > message.size() || !each(key >> 3, number, message.substr(0, size))) return false;
    message.remove_prefix(size);
  }
  return true;
}

bool parse(std::string_view message, TensorBoardEvent& event) {
  const auto value = [&](uint64_t field, uint64_t, std::string_view bytes) {
    if (field == 1) event.scalars.back().first = bytes;
    if (field == 2 && bytes.size() == 4) event.scalars.back().second = value_at<float>(bytes, 0);
    return true;
  };
  return for_each_field(message, [&](uint64_t field, uint64_t number, std::string_view bytes) {
    switch (field) {
      case kWallTime: event.wall_time = bytes.size() == 8 ? value_at<double>(bytes, 0) : 0; return bytes.size() == 8;
      case kStep: event.step = static_cast<int64_t>(number); return true;
      case kFileVersion: event.file_version = bytes; return true;
      case kSessionLog: event.session_start = bytes == "\x08\x01"; return true;
      case kSummary:
        return for_each_field(bytes, [&](uint64_t of, uint64_t, std::string_view inner) {
          if (of != 1) return true;
          event.scalars.emplace_back();
          return for_each_field(inner, value);
        });
      default: return true;
    }
  });
}

// ---- the files of a folder

std::vector<fs::path> event_files(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename().string().starts_with(kPrefix)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// Cuts off what a run that goes on behind `step` writes again, and what a killed one left unfinished.
void cut(const fs::path& path, int64_t step, bool evaluates_again) {
  size_t end = 0;
  const std::string text = read_small_file(path.string(), std::numeric_limits<int64_t>::max());
  for_each_event(text, [&](const TensorBoardEvent& event, size_t behind) {
    const bool evaluation = !event.scalars.empty() && event.scalars.front().first == kValidation;
    if (event.step > step || (evaluates_again && event.step == step && evaluation)) return false;
    end = behind;
    return true;
  });
  if (end < text.size()) fs::resize_file(path, end);
}

}  // namespace

std::string for_each_event(std::string_view file, const std::function<bool(const TensorBoardEvent&, size_t)>& each) {
  for (size_t at = 0; at < file.size();) {
    const std::string_view rest = file.substr(at);
    if (rest.size() < kAround) return fmt::format("byte {}: a frame is cut off", at);
    const auto size = value_at<uint64_t>(rest, 0);
    if (value_at<uint32_t>(rest, 8) != checksum(rest.substr(0, 8)))
      return fmt::format("byte {}: a length has a wrong checksum", at);
    if (size > rest.size() - kAround) return fmt::format("byte {}: a frame is cut off", at);
    const std::string_view message = rest.substr(12, size);
    TensorBoardEvent event;
    if (value_at<uint32_t>(rest, 12 + size) != checksum(message) || !parse(message, event))
      return fmt::format("byte {}: an event is damaged", at);
    at += kAround + size;
    if (!each(event, at)) break;
  }
  return {};
}

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
      note = fmt::format("{} held an earlier run's events, which are in {} now", folder_, aside.string());
    }
    if (run.goes_on)
      for (const fs::path& file : before) {
        cut(file, run.step, run.evaluates_again);
        // Readers go by the order of the names, and this host's clock may be behind another's.
        const std::string name = file.filename().string().substr(kPrefix.size());
        now = std::max<int64_t>(now, std::strtoll(name.c_str(), nullptr, 10) + 1);
      }
    const auto file =
        std::make_shared<AppendFile>(fmt::format("{}/{}{:010}.{}.{}", folder_, kPrefix, now, host_name(), getpid()),
                                     AppendFile::Start::empty, warn_);
    queue_.emplace(SinkQueue::Sink{.write = [file](const std::string& frames) { return file->append(frames, true); },
                                   .gap = [](int64_t) { return std::string(); }});
  } catch (const std::exception& error) {
    return fmt::format("no events are written: train.tensorboard_dir: {}", error.what());
  }
  std::string version = event(0);
  put(version, kFileVersion, bytes, "brain.Event:2");
  queue_->push(framed(version));
  // A reader that has seen steps which are done again forgets them.
  std::string start = event(run.step + 1);
  put(start, kSessionLog, bytes, "\x08\x01");
  if (run.goes_on) queue_->push(framed(start));
  return note;
}

void TensorBoardLog::add(int64_t step, const Scalars& scalars) {
  if (!queue_) return;
  std::string summary, whole = event(step);
  for (const auto& [tag, number] : scalars) {
    if (std::isnan(number) && tag != "lm loss") continue;  // unknown
    std::string value;
    put(value, 1, bytes, tag);
    put(value, 2, fixed32, bytes_of(static_cast<float>(number)));
    put(summary, 1, bytes, value);
  }
  put(whole, kSummary, bytes, summary);
  queue_->push(framed(whole));
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

// The trace event format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <map>

#include "base/check.h"
#include "base/json.h"
#include "tools/draw/render.h"

namespace trivet {
namespace {

double microseconds_of(std::string_view unit) {
  if (unit == "s") return 1e6;
  if (unit == "ms" || unit.empty()) return 1e3;
  if (unit == "us") return 1;
  throw ConfigError(fmt::format("a timeline's unit is '{}'; expected s, ms, us or nothing", unit));
}

// The op that receives `transfer`'s message: same micro-batch, neighbouring stage.
Op taker_of(const Timeline& timeline, const TransferSpan& transfer) {
  const Schedule stages{.p = timeline.p, .v = timeline.v, .map = timeline.map};
  const int step = transfer.channel.payload == Payload::activation ? 1 : -1;
  const int stage = stages.stage_of(transfer.channel.from, transfer.op.chunk) + step;
  return {transfer.op.kind, transfer.op.microbatch, stages.chunk_of(stage)};
}

class Writer {
 public:
  void timeline(const Timeline& timeline, int group) {
    scale_ = microseconds_of(timeline.unit);
    chunks_ = timeline.v > 1;
    first_pid_ = 1 + group * 100000;  // trace viewers treat process 0 as the idle task
    for (int rank = 0; rank < timeline.p; ++rank) name_rank(timeline.title, rank);
    // A rank has one F, and one B or I, per micro-batch and chunk: messages leave and arrive there.
    std::map<std::tuple<int, bool, int, int>, const OpSpan*> spans;
    const auto key = [](int rank, const Op& op) {
      return std::tuple(rank, op.kind == OpKind::forward, op.microbatch, op.chunk);
    };
    for (const OpSpan& span : timeline.ops) {
      op(span);
      if (span.op.kind != OpKind::backward_weight) spans[key(span.rank, span.op)] = &span;
    }
    slots(timeline);
    for (const TransferSpan& span : timeline.transfers) {
      transfer(span);
      const auto maker = spans.find(key(span.channel.from, span.op));
      const auto taker = spans.find(key(span.channel.to, taker_of(timeline, span)));
      if (maker != spans.end() && taker != spans.end()) arrow(*maker->second, *taker->second);
      ++message_;
    }
  }

  std::string finish() { return fmt::format("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", text_); }

 private:
  template <class... Args>
  void event(fmt::format_string<Args...> format, Args&&... args) {
    if (!text_.empty()) text_ += ",\n";
    text_ += '{';
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '}';
  }

  void name_rank(const std::string& title, int rank) {
    const int pid = first_pid_ + rank;
    event(R"("ph":"M","pid":{},"name":"process_name","args":{{"name":{}}})", pid,
          json_text(fmt::format("{} rank {}", title, rank)));
    event(R"("ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}})", pid, pid);
    event(R"("ph":"M","pid":{},"tid":1,"name":"thread_name","args":{{"name":"compute"}})", pid);
  }

  void op(const OpSpan& span) {
    event(R"("ph":"X","pid":{},"tid":1,"cat":"compute","name":"{}","ts":{:.3f},"dur":{:.3f},)"
          R"("args":{{"microbatch":{},"chunk":{}}})",
          first_pid_ + span.rank, to_string(span.op, chunks_), span.start * scale_, (span.end - span.start) * scale_,
          span.op.microbatch, span.op.chunk);
  }

  // Slots in use: one more when F starts, one fewer when B or W ends.
  void slots(const Timeline& timeline) {
    std::vector<int> used(static_cast<size_t>(timeline.p));
    for (const OpSpan& span : timeline.ops) {
      const bool takes = span.op.kind == OpKind::forward;
      if (!takes && span.op.kind == OpKind::backward_input) continue;
      used[static_cast<size_t>(span.rank)] += takes ? 1 : -1;
      event(R"("ph":"C","pid":{},"name":"slots","ts":{:.3f},"args":{{"slots":{}}})", first_pid_ + span.rank,
            (takes ? span.start : span.end) * scale_, used[static_cast<size_t>(span.rank)]);
    }
  }

  void transfer(const TransferSpan& span) {
    const bool activation = span.channel.payload == Payload::activation;
    const auto half = [&](char phase, double time) {
      event(R"("ph":"{}","pid":{},"tid":2,"id":{},"cat":"comm.pipeline","name":"{} {}","ts":{:.3f},)"
            R"("args":{{"to":{},"bytes":{:.0f}}})",
            phase, first_pid_ + span.channel.from, message_, activation ? "activations" : "gradients",
            to_string(span.op, chunks_), time * scale_, span.channel.to, span.bytes);
    };
    half('b', span.start);
    half('e', span.end);
  }

  void arrow(const OpSpan& maker, const OpSpan& taker) {
    // Just inside the slice: an arrow that starts exactly at its end belongs to no slice.
    const double leaves = std::max(maker.start * scale_, maker.end * scale_ - 0.001);
    event(R"("ph":"s","pid":{},"tid":1,"id":{},"cat":"message","name":"message","ts":{:.3f})", first_pid_ + maker.rank,
          message_, leaves);
    event(R"("ph":"f","bp":"e","pid":{},"tid":1,"id":{},"cat":"message","name":"message","ts":{:.3f})",
          first_pid_ + taker.rank, message_, taker.start * scale_);
  }

  std::string text_;
  double scale_ = 1;
  bool chunks_ = false;
  int first_pid_ = 0;
  size_t message_ = 0;
};

}  // namespace

std::string render_trace(std::span<const Timeline> timelines) {
  Writer writer;
  for (size_t i = 0; i < timelines.size(); ++i) writer.timeline(timelines[i], static_cast<int>(i));
  return writer.finish();
}

}  // namespace trivet

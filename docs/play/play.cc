// The browser page's way into the engine: does what `trivet schedule` does, with values from the page as its options.
#include <emscripten/bind.h>
#include <fmt/format.h>

#include "base/check.h"
#include "parallel/pipeline/check.h"
#include "parallel/pipeline/simulate.h"
#include "tools/draw/render.h"
#include "tools/draw/schedule_table.h"

namespace trivet {
namespace {

using emscripten::val;

constexpr const char* kFile = "mine.txt";  // the name of the reader's own schedule, in messages and in the YAML
constexpr double kMostPasses = 1e4;        // of one schedule: more would freeze the page for seconds

Schedule schedule_of(const val& request) {
  if (request["text"].isNull()) {
    const int v = request["v"].as<int>();
    Schedule schedule = make_schedule({.kind = request["kind"].as<std::string>(),
                                       .p = request["p"].as<int>(),
                                       .m = request["m"].as<int>(),
                                       .v = v > 0 ? std::optional(v) : std::nullopt});
    check_schedule(schedule);
    return schedule;
  }
  Schedule schedule = parse_schedule(request["text"].as<std::string>(), kFile);
  if (const double passes = 1.0 * schedule.p * schedule.m * schedule.v; passes > kMostPasses)
    throw ConfigError(
        fmt::format("{}: p m v = {:.3g} forward passes, and this page takes at most {:g}; trivet schedule "
                    "--file takes more",
                    kFile, passes, kMostPasses));
  check_schedule(schedule, fmt::format("{}: ", kFile));
  return schedule;
}

// request: text (null: the generator's), kind, p, m, v (0: the kind's), and as numbers f, i, w, latency, and width (of
// the picture; 0: as wide as its numbers need). Returns either `problem`, or p, m, v, text, numbers (an object, by
// column) and picture (SVG).
val play(const val& request) {
  val answer = val::object();
  try {
    const Schedule schedule = schedule_of(request);
    const auto share = [&](const char* cost) { return request[cost].as<double>() / schedule.v; };  // of a chunk
    const Costs costs{.stages = {{share("f"), share("i"), share("w")}}, .latency = request["latency"].as<double>()};
    Timeline timeline = simulate(schedule, costs);
    timeline.title = fmt::format("{}: p = {}, m = {}, v = {}", schedule.kind, schedule.p, schedule.m, schedule.v);
    answer.set("picture", render_svg(std::span(&timeline, 1),
                                     {.width = request["width"].as<int>(), .transfers = costs.latency > 0}));
    answer.set("p", schedule.p);
    answer.set("m", schedule.m);
    answer.set("v", schedule.v);
    answer.set("text", to_text(schedule));
    val numbers = val::object();
    const std::vector<std::string> names = schedule_columns(), cells = schedule_row(schedule, costs, timeline);
    for (size_t i = 0; i < names.size(); ++i) numbers.set(names[i], cells[i]);
    answer.set("numbers", numbers);
  } catch (const std::exception& error) {
    answer.set("problem", std::string(error.what()));
  }
  return answer;
}

// [[name, summary], …]
val kinds() {
  val list = val::array();
  for (const ScheduleKind& kind : schedule_kinds()) {
    val pair = val::array();
    pair.call<void>("push", std::string(kind.name), std::string(kind.summary));
    list.call<void>("push", pair);
  }
  return list;
}

EMSCRIPTEN_BINDINGS(play) {
  emscripten::function("play", &play);
  emscripten::function("kinds", &kinds);
}

}  // namespace
}  // namespace trivet

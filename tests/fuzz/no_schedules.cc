// Stubs of the functions called by resolve() and on_gpus(), which share validate.cc with check_config(). The config
// target never resolves anything, and clang 14 cannot compile the schedules.
#include <array>
#include <string_view>

#include "base/built_with.h"
#include "base/check.h"
#include "parallel/pipeline/check.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {

bool built_with_cuda() { return false; }
void check_schedule(const Schedule&, std::string_view) { fail("not in a fuzz target"); }
int safe_channel_depth(const Schedule&) { fail("not in a fuzz target"); }
Schedule make_schedule(const ScheduleRequest&) { fail("not in a fuzz target"); }
std::span<const ScheduleKind> schedule_kinds() {  // the rules read only the names
  static const std::array<ScheduleKind, 2> kinds{ScheduleKind{.name = "1f1b"}, ScheduleKind{.name = "interleaved"}};
  return kinds;
}
Schedule read_schedule_file(const std::string&) { fail("not in a fuzz target"); }

}  // namespace trivet

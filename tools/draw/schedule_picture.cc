#include "tools/draw/schedule_picture.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/svg.h"
#include "base/text.h"
#include "engine/train/lr_schedule.h"

namespace trivet {
namespace {

constexpr double kLeft = 90, kWidth = 620, kHeight = 150, kGap = 60, kTop = 40;

// A panel of one value over the steps, from 0 up. samples: of the curve, at most.
void panel(Canvas& canvas, double top, const std::string& title, int64_t steps,
           const std::function<double(int64_t step)>& value) {
  constexpr int64_t kPoints = 600;
  std::vector<std::pair<double, double>> points;  // x, value
  for (int64_t i = 0, n = std::min(steps, kPoints); i < n; ++i) {
    const int64_t step = n == 1 ? 1
                                : 1 + static_cast<int64_t>(static_cast<double>(i) / static_cast<double>(n - 1) *
                                                           static_cast<double>(steps - 1));
    points.emplace_back(kLeft + kWidth * static_cast<double>(step) / static_cast<double>(steps), value(step));
  }
  double most = 0;
  for (const auto& [x, y] : points) most = std::max(most, y);
  const double scale = most > 0 ? kHeight / most : 0;
  canvas.text(kLeft, top - 10, "head", title);
  const double step = most > 0 ? round_step(most, 4) : 1;
  for (double y = 0; y <= most * 1.0001; y += step) {
    canvas.line(kLeft, top + kHeight - y * scale, kLeft + kWidth, top + kHeight - y * scale, "grid");
    canvas.text(kLeft - 8, top + kHeight - y * scale + 4, "soft end", fmt::format("{:.3g}", y));
  }
  std::string path;
  for (const auto& [x, y] : points)
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L', x, top + kHeight - y * scale);
  canvas.put("<path class=\"line s0\" d=\"{}\"/>", path);
  const double tick = std::max(1.0, round_step(static_cast<double>(steps), 6));
  for (double x = 0; x <= static_cast<double>(steps); x += tick)
    canvas.text(kLeft + kWidth * x / static_cast<double>(steps), top + kHeight + 18, "soft mid",
                grouped(static_cast<int64_t>(x)));
}

}  // namespace

std::string schedule_picture(const Config& config, const Layout& layout) {
  const int64_t steps = config.train.train_iters;
  const BatchSizes& sizes = layout.batch_sizes;
  Canvas canvas;
  panel(canvas, kTop, "learning rate", steps,
        [&](int64_t step) { return learning_rates(config, step, sizes.samples_of(step)).all; });
  panel(canvas, kTop + kHeight + kGap, "samples of a step", steps,
        [&](int64_t step) { return static_cast<double>(sizes.of_step(sizes.samples_of(step - 1))); });
  canvas.text(kLeft + kWidth / 2, kTop + 2 * kHeight + kGap + 40, "soft mid", "step");
  return canvas.finish(kLeft + kWidth + 40, kTop + 2 * kHeight + kGap + 55,
                       fmt::format("Learning rate and batch size of {} steps", steps));
}

}  // namespace trivet

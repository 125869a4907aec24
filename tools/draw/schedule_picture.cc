#include "tools/draw/schedule_picture.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/svg.h"
#include "engine/train/lr_schedule.h"

namespace trivet {
namespace {

constexpr double kLeft = 90, kWidth = 620, kHeight = 150, kGap = 60, kTop = 40;

// Draws a panel that plots one value over the steps, on an axis from 0.
void panel(Canvas& canvas, double top, const char* title, int64_t steps,
           const std::function<double(int64_t step)>& value) {
  constexpr int64_t kPoints = 600;
  std::vector<std::pair<double, double>> points;  // step, value
  double most = 0;
  for (int64_t i = 0, n = std::min(steps, kPoints); i < n; ++i) {
    const int64_t step = 1 + i * (steps - 1) / std::max<int64_t>(1, n - 1);
    points.emplace_back(step, value(step));
    most = std::max(most, points.back().second);
  }
  Chart chart{canvas, kLeft, top, kWidth, kHeight, 0, static_cast<double>(steps), 0, most};
  chart.draw_axes(title);
  chart.draw_curve(points, "s0");
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

// Progress: one line on stderr that is redrawn during long work; if stderr is not a terminal, one line every few
// seconds. For use by one thread.
#pragma once

#include <fmt/format.h>
#include <string>
#include <unistd.h>

#include "base/host.h"
#include "base/text.h"

namespace trivet {

class RedrawnLine {
 public:
  RedrawnLine() = default;
  ~RedrawnLine() { clear(); }
  RedrawnLine(const RedrawnLine&) = delete;
  RedrawnLine& operator=(const RedrawnLine&) = delete;

  bool terminal() const { return terminal_; }
  // True if enough time has passed since the last draw() or put_off() to draw the next line.
  bool due() const { return now_seconds() - drawn_at_ >= (terminal_ ? 0.1 : 5); }
  void put_off() { drawn_at_ = now_seconds(); }
  void draw(const std::string& line) {
    drawn_at_ = now_seconds();
    // A line that the terminal wraps could not be redrawn.
    const auto columns = static_cast<size_t>(terminal_columns(STDERR_FILENO));
    write_stderr(terminal_ ? "\r\x1b[K" + (columns > 2 ? shortened(line, columns - 2) : line) : line + "\n");
    drawn_ = terminal_;
  }
  void clear() {
    if (drawn_) write_stderr("\r\x1b[K");
    drawn_ = false;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool drawn_ = false;
  double drawn_at_ = now_seconds();
};

// [=====     ]  50 %
inline std::string progress_bar(double done) {
  const auto width = static_cast<size_t>((done < 0 ? 0 : done > 1 ? 1 : done) * 30);
  return fmt::format("[{}{}] {:3.0f} %", std::string(width, '='), std::string(30 - width, ' '), 100 * done);
}

}  // namespace trivet

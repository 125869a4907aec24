// Facts about the machine that a process runs on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trivet {

double now_seconds();  // of a clock that never goes back
double unix_seconds();  // since the epoch, by the clock on the wall
std::string host_name();
int usable_cores();  // of the machine's, those that this process may run on
// The kernel's number of its boot: the same in all containers of a machine, whatever they call it; "": unknown.
std::string boot_id();
int64_t boot_number();  // its hash, 0 or more
// The same for processes whose clocks that never go back are one: of one boot and one time namespace. 0 or more.
int64_t clock_number();
// The text of an errno, and the limit of this process (ulimit) that it ran into.
std::string error_text(int error);
// Writes to standard error in one piece, as the ranks share a terminal. One that is closed, full or read-only is no
// reason to end anything, and one that accepts nothing, such as a paused pager, costs two seconds once.
void write_stderr(std::string_view text) noexcept;
bool stderr_accepts(int milliseconds = 0) noexcept;  // within the time; in handlers of signals, too
// The width of the terminal of a file descriptor; 0 if it is not a terminal.
int terminal_columns(int fd);

// A process or thread as /proc has it.
struct ProcessState {
  char state = '?';    // R runs, S sleeps, T is stopped, Z has ended; ?: there is none
  int64_t start = -1;  // clock ticks after the boot: tells it from a later one with its number
};
// `folder`: /proc/PID or /proc/self/task/TID.
ProcessState process_state(const std::string& folder);

}  // namespace trivet

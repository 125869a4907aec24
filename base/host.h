// Facts about the machine that a process runs on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trivet {

double now_seconds();   // on the monotonic clock
double unix_seconds();  // since the epoch, on the wall clock
std::string host_name();
int usable_cores();  // the machine's cores that this process may run on
// The kernel's boot ID: the same in all containers of a machine, whatever their host names; "": unknown.
std::string boot_id();
int64_t boot_number();  // the hash of boot_id(); never negative
// Equal for processes that share a monotonic clock, that is, a boot and a time namespace. Never negative.
int64_t clock_number();
// The message of an errno, with this process's limit (ulimit) if one was hit.
std::string error_text(int error);
// Writes to standard error in one piece, because ranks share a terminal. If it is closed, full or read-only, the text
// is dropped; while it accepts nothing, as with a paused pager, only the first call waits (two seconds).
void write_stderr(std::string_view text) noexcept;
bool stderr_accepts(int milliseconds = 0) noexcept;  // true if it does within that time; safe in signal handlers
// The width of the terminal at a file descriptor; 0 if it is not a terminal.
int terminal_columns(int fd);

// The state of a process or thread, from /proc.
struct ProcessState {
  char state = '?';    // R running, S sleeping, T stopped, Z ended; ?: no such process or thread
  int64_t start = -1;  // clock ticks since boot: distinguishes this process from a later one with the same pid
};
// `folder`: /proc/PID or /proc/self/task/TID.
ProcessState process_state(const std::string& folder);

}  // namespace trivet

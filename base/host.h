// What a process knows of the machine it runs on.
#pragma once

#include <cstdint>
#include <string>

namespace trivet {

double now_seconds();  // of a clock that never goes back
std::string host_name();
// The kernel's number of its boot: the same in all containers of a machine, whatever they call it; "": unknown.
std::string boot_id();
// The width of the terminal behind a file descriptor; 0: it is no terminal.
int terminal_columns(int fd);

// A process or thread as /proc has it.
struct ProcessState {
  char state = '?';    // R runs, S sleeps, T is stopped, Z has ended; ?: there is none
  int64_t start = -1;  // clock ticks after the boot: tells it from a later one with its number
};
// `folder`: /proc/PID or /proc/self/task/TID.
ProcessState process_state(const std::string& folder);

}  // namespace trivet

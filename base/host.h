// What a process knows of the machine it runs on, and the signals that ask it to end.
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

// Watches SIGTERM, SIGINT and SIGUSR1 (Slurm's --signal, mpirun's forwarding). The first one is noted, and the program
// ends in order; a second one ends the process at once.
void watch_stop_signals();
int stop_signal();  // the first that came; 0: none

}  // namespace trivet

// Signals that ask the program to end: SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 (Slurm's --signal, Grid Engine's -notify,
// mpirun's forwarding), SIGXCPU (a limit on CPU time), and SIGHUP (a closed terminal), unless it is ignored, as under
// nohup.
//
// The first signal is reported and recorded, and the program ends cleanly. A later signal means impatience and ends the
// process immediately, but only if it comes at least kImpatienceSeconds after the first: timeout(1), schedulers and
// launchers send a signal to the process and again to its group, microseconds apart. A later SIGHUP never ends the
// process this way, nor does SIGXCPU, which the kernel repeats every second.
#pragma once

#include <string_view>

namespace trivet {

inline constexpr int kImpatienceSeconds = 1;

// From now on, signals are recorded and reported with these messages.
void watch_stop_signals(std::string_view at_first, std::string_view at_once);
int stop_signal();  // the first signal received; 0: none

// Sets the messages written to stderr from now on ("trivet: SIGTERM: MESSAGE"): one for the first signal, one for the
// signal that ends the process. Empty: nothing is written; longer than 300 bytes: truncated. One thread at a time.
void set_stop_texts(std::string_view at_first, std::string_view at_once);

}  // namespace trivet

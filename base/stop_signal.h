// Signals that ask the program to end: SIGTERM, SIGINT, SIGUSR1 (Slurm's --signal, mpirun's forwarding), and SIGHUP (a
// closed terminal), unless it is ignored, as under nohup.
#pragma once

namespace trivet {

// From now on the first such signal is noted, and the program ends in order; a second one, except
// SIGHUP, ends the process at once.
void watch_stop_signals();
int stop_signal();  // the first that came; 0: none

}  // namespace trivet

// Signals that ask the program to end: SIGTERM, SIGINT, SIGUSR1 (Slurm's --signal, mpirun's forwarding). The first one
// is noted, and whoever is at work ends it in order; a second one ends the process at once.
#pragma once

namespace trivet {

void watch_stop_signals();
int stop_signal();  // the first that came; 0: none

}  // namespace trivet

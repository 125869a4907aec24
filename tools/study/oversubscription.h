// Oversubscription: points whose ranks compute with more threads than there are cores. Ranks then take turns: a rank
// waits for the scheduler where it seems to wait for the wire or for a peer, and a setting that moves waiting from one
// column to the other looks like a gain. Such points are measured, and shown with wait and idle, but nothing is
// concluded from them unless the study says `allow_oversubscription: true`.
#pragma once

#include <string>

#include "tools/study/summary.h"

namespace trivet {

struct Config;

// CPU threads that compute at the same time on this machine: of all ranks together; 0 where ranks may be elsewhere. A
// rank whose device is a GPU has one, which queues.
int compute_threads(const Config& config, const Launch& launch);

// What is wrong with points of the plan on a machine with so many cores (0: unknown), and what to do; "": nothing.
std::string oversubscription_text(const Study& study, const Plan& plan, int cores);

// Whether a run's row tells so, of the threads that it had and the cores of its machine.
bool oversubscribed(const RunRow& row);
// Takes back what was found from a comparison.
void refuse(Verdict& verdict);

// Marks the points that were measured so, and takes back what was concluded with them: the best and the main effects
// under their conditions, and verdicts of a point where it or its baseline is one of them.
void refuse_oversubscribed(const Study& study, const Plan& plan, const std::vector<RunRow>& rows, Summary& summary);

}  // namespace trivet

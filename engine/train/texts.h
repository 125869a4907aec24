// Texts between ranks: what an error or a decision needs, where a number is not enough. Both are collective over
// `world` and synchronise `stream`: not for the inside of a step.
#pragma once

#include <string>

#include "parallel/comm/comm.h"

namespace trivet {

// Rank 0's text.
std::string broadcast_text(Communicator& world, const std::string& mine, Stream& stream);

// "rank 3: TEXT" of the first rank whose text is not empty, at most 1000 characters of it; empty where all are.
std::string first_text(Communicator& world, const std::string& mine, Stream& stream);

}  // namespace trivet

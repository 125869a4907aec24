// The section `prometheus:` of a configuration, and its observer, which shows the run to Prometheus, by a
// file for the textfile collector of node_exporter, written by rename, and by an HTTP endpoint. Rank 0 has it, and its
// numbers are of the whole run. Nothing that goes wrong with either ends or delays training.
#pragma once

#include <string>

#include "engine/config/tool_section.h"

namespace trivet {

struct PrometheusConfig {
  std::string textfile{};  // NAME.prom; empty: none
  std::string listen{};    // ADDRESS:PORT; empty: no endpoint
};

ToolSection prometheus_section();

}  // namespace trivet

// The configuration section `prometheus:` and its observer, which exports the run's metrics to Prometheus: through a
// file for node_exporter's textfile collector, replaced by rename, and through an HTTP endpoint. Only rank 0 has the
// observer; its values cover the whole run. A failure of either export neither stops nor delays training.
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

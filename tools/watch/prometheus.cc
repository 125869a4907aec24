#include "tools/watch/prometheus.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "base/files.h"
#include "base/host.h"
#include "base/sink_queue.h"
#include "base/utf8.h"
#include "engine/checkpoint/store.h"
#include "engine/config/field_types.h"
#include "engine/config/rules.h"
#include "engine/metrics/jsonl.h"

namespace trivet {
namespace {

// Each number in metrics.jsonl is a gauge named after its key: trivet_loss, or trivet_checkpoint_seconds for an event.
class PrometheusObserver : public RunObserver {
 public:
  PrometheusObserver(const Config& config, const PrometheusConfig& keys)
      : registry_(std::make_shared<prometheus::Registry>()),
        labels_{{"run", printable_line(config.train.run_dir)}, {"host", printable_line(host_name())}} {
    if (!keys.listen.empty()) listen(keys.listen);
    if (!keys.textfile.empty())
      queue_.emplace(SinkQueue::Sink{.write = [path = keys.textfile, registry = registry_, warned = false](
                                                  auto&) mutable { return write(path, *registry, warned), true; }});
  }

  void record(const nlohmann::ordered_json& record) override {
    std::string event = text_in(record, "event");
    if (event == "resume") event = "start";  // both mark a start of the program
    for (const auto& [key, value] : record.items())
      if (value.is_number()) set(event + (event.empty() ? "" : "_") + key, value.get<double>());
    set(event + (event.empty() ? "" : "_") + "timestamp_seconds", unix_seconds());
    if (event == "start") set_running(true);
    if (!event.empty() || now_seconds() - published_ >= 1) publish();
  }

  ~PrometheusObserver() override {
    set_running(false);
    publish();
  }

 private:
  void set_running(bool running) { set("running", running, "1 while the program trains, 0 when it has ended."); }

  void set(const std::string& name, double value, const char* help = "As in metrics.jsonl (docs/glossary.md).") {
    prometheus::BuildGauge().Name("trivet_" + name).Help(help).Labels(labels_).Register(*registry_).Add({}).Set(value);
  }

  void listen(const std::string& address) {
    try {
      exposer_.emplace(address, /*num_threads=*/1);
      exposer_->RegisterCollectable(registry_);
    } catch (const std::exception& error) {
      warn_on_stderr(fmt::format("prometheus.listen: cannot listen on {} ({}): the run is not shown there", address,
                                 error.what()));
    }
  }

  // The push wakes the writer thread, which writes the values that are current at that time.
  void publish() {
    published_ = now_seconds();
    if (queue_) queue_->push(" ");
  }

  // warned: whether the previous write failed.
  static void write(const std::string& path, const prometheus::Registry& registry, bool& warned) {
    try {
      OutputFile file(path);
      file.write(prometheus::TextSerializer().Serialize(registry.Collect()));
      file.commit();
      warned = false;
    } catch (const std::exception& error) {
      if (!std::exchange(warned, true))
        warn_on_stderr(fmt::format("prometheus.textfile: {}; the run continues and tries again", error.what()));
    }
  }

  const std::shared_ptr<prometheus::Registry> registry_;
  const prometheus::Labels labels_;
  double published_ = 0;
  std::optional<prometheus::Exposer> exposer_;
  std::optional<SinkQueue> queue_;
};

void declare_prometheus(std::vector<Field>& table) {
#define KEY(member, ...)                                                                                       \
  add_field<decltype(PrometheusConfig::member)>(                                                               \
      table, "prometheus." #member, [](Config& c) -> void* { return &c.tools.of<PrometheusConfig>().member; }, \
      __VA_ARGS__)
  KEY(textfile, "file NAME.prom for the textfile collector of node_exporter, written by rename");
  KEY(listen, "ADDRESS:PORT of an HTTP endpoint /metrics, such as 127.0.0.1:9464");
#undef KEY
}

void check_prometheus(const Config& config, Rules& rule) {
  const auto& [textfile, listen] = config.tools.of<PrometheusConfig>();
  rule("prometheus.textfile", {}, !textfile.empty() && !textfile.ends_with(".prom"),
       "node_exporter does not read it: found {}, expected a name that ends in .prom", textfile);
  const size_t colon = listen.rfind(':');
  const auto port = colon == std::string::npos ? std::optional<int64_t>() : parse_integer(listen.substr(colon + 1));
  rule("prometheus.listen", {}, !listen.empty() && (colon == 0 || !port || *port < 1 || *port > 65535),
       "found {}, expected ADDRESS:PORT, such as 127.0.0.1:9464", listen);
}

}  // namespace

ToolSection prometheus_section() {
  return {.name = "prometheus",
          .defaults = [] { return std::any(PrometheusConfig()); },
          .declare = declare_prometheus,
          .check = check_prometheus,
          .observer = [](const LoadedConfig& loaded) -> std::unique_ptr<RunObserver> {
            const auto& keys = loaded.config.tools.of<PrometheusConfig>();
            if (loaded.config.train.skip_train || (keys.textfile.empty() && keys.listen.empty())) return nullptr;
            return std::make_unique<PrometheusObserver>(loaded.config, keys);
          }};
}

}  // namespace trivet

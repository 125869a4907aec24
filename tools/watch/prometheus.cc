#include "tools/watch/prometheus.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sstream>

#include "base/files.h"
#include "base/host.h"
#include "base/sink_queue.h"
#include "base/utf8.h"
#include "engine/checkpoint/store.h"
#include "engine/config/field_types.h"
#include "engine/config/rules.h"
#include "engine/metrics/observer.h"

namespace trivet {
namespace {

using prometheus::Gauge, prometheus::Labels;

// Names and units as Prometheus's conventions have them: base units, ratios from 0 to 1.
class PrometheusObserver : public RunObserver {
 public:
  PrometheusObserver(const Config& config, const PrometheusConfig& keys)
      : registry_(std::make_shared<prometheus::Registry>()),
        labels_{{"run", printable_line(config.train.run_dir)}, {"host", printable_line(host_name())}},
        text_(std::make_shared<Text>()) {
    gauge("trivet_total_steps", "Steps of the whole run.").Set(static_cast<double>(config.train.train_iters));
    if (!keys.listen.empty()) listen(keys.listen);
    if (!keys.textfile.empty())
      queue_.emplace(SinkQueue::Sink{
          .write = [path = keys.textfile, text = text_,
                    failed = false](auto&) mutable { return failed = !write(path, text->get(), failed), true; },
          .gap = [](int64_t) { return std::string(); }});
  }

  std::string begin(const RunBegin& run) override {
    gauge("trivet_running", "1 while the program trains, 0 when it has ended.").Set(1);
    gauge("trivet_ranks", "Ranks of the run.").Set(run.ranks);
    gauge("trivet_resumed_step", "Step that this start of the program began behind; 0: a new run.")
        .Set(static_cast<double>(run.step));
    gauge("trivet_start_timestamp_seconds", "When this start of the program began to train.").Set(unix_seconds());
    publish();
    return {};
  }

  void step(const StepReport& r) override {
    gauge("trivet_step", "Last step that is done.").Set(static_cast<double>(r.step));
    gauge("trivet_last_step_timestamp_seconds", "When the last step was done.").Set(unix_seconds());
    gauge("trivet_loss", "Training loss of the last step, nats per token.").Set(r.loss);
    gauge("trivet_gradient_norm", "Norm of the gradient before it was clipped.").Set(r.grad_norm);
    gauge("trivet_learning_rate", "Learning rate of the last step.").Set(r.learning_rate);
    gauge("trivet_step_seconds", "Duration of the last step.").Set(r.step_seconds);
    gauge("trivet_remaining_seconds", "Time of the steps to come, by the median of the last ones.")
        .Set(r.remaining_seconds);
    gauge("trivet_tokens_per_second", "Tokens a second, of all ranks.").Set(r.tokens_per_second);
    gauge("trivet_model_flops_per_second", "Model FLOPs a second, of one rank.").Set(r.model_tflops_per_rank * 1e12);
    gauge("trivet_mfu_ratio", "Model FLOPs utilisation.").Set(r.mfu);
    gauge("trivet_pipeline_bubble_ratio", "Share of the step in which a rank waits for its pipeline.")
        .Set(r.bubble_fraction);
    if (r.gpus) {
      gauge("trivet_power_watts", "Power of all GPUs of the run.").Set(r.gpus->power_watts);
      gauge("trivet_energy_joules_per_token", "Energy of all GPUs, for each token that is trained on.")
          .Set(r.gpus->energy_joules_per_token);
      gauge("trivet_sm_clock_hertz", "Clock of the SMs, mean of all GPUs.").Set(r.gpus->sm_clock_mhz * 1e6);
      const auto slowed = [&](const char* by, int64_t gpus) {
        gauge("trivet_slowed_gpus", "GPUs whose clocks are held down.", {{"by", by}}).Set(static_cast<double>(gpus));
      };
      slowed("power", r.gpus->slowed_by_power), slowed("heat", r.gpus->slowed_by_heat);
    }
    for (size_t k = 0; k < kCommClasses.size() && r.stats.window > 0; ++k) {
      const Labels of_class{{"class", std::string(kCommClasses[k])}};
      gauge("trivet_exposed_communication_ratio", "Share of the step on the wire beside which nothing computes.",
            of_class)
          .Set(r.stats.of_window(r.stats.exposed[k]));
      gauge("trivet_wait_ratio", "Share of the step in which a rank waits for its peers.", of_class)
          .Set(r.stats.of_window(r.stats.wait[k]));
    }
    auto& tokens = prometheus::BuildCounter()
                       .Name("trivet_trained_tokens_total")
                       .Help("Tokens trained on since the beginning of the run.")
                       .Register(*registry_)
                       .Add(labels_);
    tokens.Increment(static_cast<double>(r.consumed_tokens) - tokens.Value());
    if (now_seconds() - published_ >= 1) publish();
  }

  void evaluation(const EvalReport& r) override {
    gauge("trivet_evaluation_loss", "Loss of the last evaluation, nats per token.", {{"set", r.set}}).Set(r.loss);
    publish();
  }

  void save(const SaveReport& r) override {
    gauge("trivet_checkpoint_step", "Step of the last committed checkpoint.").Set(static_cast<double>(r.step));
    gauge("trivet_checkpoint_timestamp_seconds", "When it was committed.").Set(unix_seconds());
    gauge("trivet_checkpoint_bytes", "Size of it.").Set(static_cast<double>(r.bytes));
    gauge("trivet_checkpoint_save_seconds", "From its beginning until it was committed.").Set(r.seconds);
    gauge("trivet_checkpoint_stall_seconds", "How long training stood still for it.").Set(r.stall_seconds);
    publish();
  }

  ~PrometheusObserver() override {
    gauge("trivet_running", "1 while the program trains, 0 when it has ended.").Set(0);
    publish();
  }

 private:
  // What the file is to hold next.
  class Text {
   public:
    void set(std::string text) {
      const std::lock_guard lock(mutex_);
      text_ = std::move(text);
    }
    std::string get() const {
      const std::lock_guard lock(mutex_);
      return text_;
    }

   private:
    mutable std::mutex mutex_;
    std::string text_;
  };

  Gauge& gauge(const char* name, const char* help, const Labels& more = {}) {
    Labels labels = labels_;
    labels.insert(more.begin(), more.end());
    return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels);
  }

  void listen(const std::string& address) {
    try {
      exposer_.emplace(address, /*num_threads=*/1);
      exposer_->RegisterCollectable(registry_);
    } catch (const std::exception& error) {
      warn_on_stderr(fmt::format("prometheus.listen: {} cannot be listened to ({}): the run is not shown there",
                                 address, error.what()));
    }
  }

  void publish() {
    if (!queue_) return;
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, registry_->Collect());
    text_->set(text.str());
    published_ = now_seconds();
    queue_->push(" ");
  }

  // warned: of the write before.
  static bool write(const std::string& path, const std::string& text, bool warned) {
    try {
      OutputFile file(path);
      file.write(text);
      file.commit();
      return true;
    } catch (const std::exception& error) {
      if (!warned)
        warn_on_stderr(fmt::format("prometheus.textfile: {}; the run goes on, and tries again", error.what()));
      return false;
    }
  }

  const std::shared_ptr<prometheus::Registry> registry_;
  const Labels labels_;
  const std::shared_ptr<Text> text_;
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
       "is not read by node_exporter: found {}, expected a name that ends in .prom", textfile);
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

#include "tools/watch/prometheus.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <sys/socket.h>
#include <unistd.h>

#include "base/files.h"
#include "base/host.h"
#include "engine/metrics/observer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

std::unique_ptr<RunObserver> observer_of(const PrometheusConfig& keys, const std::string& run_dir = "runs/a") {
  LoadedConfig loaded{.config = tiny_config(), .origins = {}, .path = "test"};
  loaded.config.train.run_dir = run_dir;
  loaded.config.tools.of<PrometheusConfig>() = keys;
  return prometheus_section().observer(loaded);
}

const nlohmann::ordered_json kStart = {
    {"event", "start"}, {"step", 3}, {"total_steps", 20}, {"ranks", 4}, {"host", "x"}};
const nlohmann::ordered_json kStep = {{"step", 7},   {"consumed_tokens", 896},
                                      {"loss", 2.5}, {"grad_norm", std::nan("")},
                                      {"mfu", 0.4},  {"power_watts", 1400}};

// A series' value; fails if the series does not exist.
double value_of(const std::string& text, const std::string& series) {
  const size_t at = text.find("\n" + series + " ");
  EXPECT_NE(at, std::string::npos) << series << " in\n" << text;
  return at == std::string::npos ? 0 : std::stod(text.substr(at + series.size() + 2));
}

// A socket on an unused port on this machine.
struct Listener {
  Listener() : fd(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw IoError("no socket");
    port = ntohs(address.sin_port);
  }
  FileDescriptor fd;
  int port = 0;
};

std::string http_get(int port) {
  const FileDescriptor fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return "no connection";
  constexpr std::string_view kRequest = "GET /metrics HTTP/1.0\r\n\r\n";
  write_all(fd, kRequest);
  std::string text(1 << 16, '\0');
  size_t size = 0;
  for (ssize_t n; (n = read(fd, text.data() + size, text.size() - size)) > 0;) size += static_cast<size_t>(n);
  return text.substr(0, size);
}

TEST(Prometheus, FileHasTheNumbersOfTheRecords) {
  const TempDir dir;
  {
    const auto observer = observer_of({.textfile = dir / "a.prom"});
    observer->record(kStart);
    observer->record(kStep);
    observer->record({{"event", "eval"}, {"step", 7}, {"validation_loss", 2.25}});
    observer->record({{"event", "checkpoint"}, {"step", 7}, {"bytes", 4096}});
  }
  const std::string text = read_text(dir / "a.prom");
  const auto value = [&](const std::string& name) {
    return value_of(text, fmt::format(R"(trivet_{}{{host="{}",run="runs/a"}})", name, host_name()));
  };
  EXPECT_EQ(value("running"), 0) << "it has ended";
  EXPECT_EQ(value("step"), 7);
  EXPECT_EQ(value("start_total_steps"), 20);
  EXPECT_EQ(value("start_step"), 3);
  EXPECT_EQ(value("loss"), 2.5);
  EXPECT_TRUE(std::isnan(value("grad_norm")));
  EXPECT_EQ(value("mfu"), 0.4);
  EXPECT_EQ(value("consumed_tokens"), 896);
  EXPECT_EQ(value("checkpoint_bytes"), 4096);
  EXPECT_EQ(value("power_watts"), 1400);
  EXPECT_EQ(value("eval_validation_loss"), 2.25);
  EXPECT_NEAR(value("timestamp_seconds"), unix_seconds(), 60);
}

// A requeued run shows its progress and counts as running, as one that was started from the beginning does.
TEST(Prometheus, AResumeIsAStart) {
  const TempDir dir;
  nlohmann::ordered_json resume = kStart;
  resume["event"] = "resume";
  observer_of({.textfile = dir / "a.prom"})->record(resume);
  const std::string text = read_text(dir / "a.prom");
  for (const auto& [name, value] : {std::pair("running", 0), {"start_step", 3}, {"start_total_steps", 20}})
    EXPECT_EQ(value_of(text, fmt::format(R"(trivet_{}{{host="{}",run="runs/a"}})", name, host_name())), value) << name;
}

// node_exporter and Prometheus refuse a sample with a timestamp, a family in two blocks, a name without help, and a
// last line without a newline (node_exporter 1284).
TEST(Prometheus, FileIsWhatCollectorsTakeForHostileNamesToo) {
  const TempDir dir;
  for (const std::string name : {"runs/a", "a\"} 1\nfake 2", "a\\", "\xff\xfe", "{}="}) {
    auto observer = observer_of({.textfile = dir / "a.prom"}, name);
    observer->record(kStart);
    observer->record(kStep);
    observer.reset();
    const std::string text = read_text(dir / "a.prom");
    ASSERT_TRUE(text.ends_with('\n'));
    std::set<std::string> families;
    std::string family;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (std::regex_match(line, match, std::regex("# HELP (trivet_[a-z_]+) .+"))) {
        family = match[1];
        EXPECT_TRUE(families.insert(family).second) << line;
      } else if (!line.starts_with("# TYPE " + family + " ")) {
        const std::regex sample(
            family + R"rx((\{[a-z]+="([^"\\\n]|\\["\\n])*"(,[a-z]+="([^"\\\n]|\\["\\n])*")*\}) [-+.0-9eNaInf]+)rx");
        EXPECT_TRUE(std::regex_match(line, sample)) << line;
      }
    }
    EXPECT_GT(families.size(), 7u);
  }
}

// Two runs on one port: the second trains, with one warning (opentelemetry-cpp 1986).
TEST(Prometheus, OfAPortThatIsTakenWarnsOnce) {
  const Listener other;
  testing::internal::CaptureStderr();
  const auto observer = observer_of({.listen = fmt::format("127.0.0.1:{}", other.port)});
  observer->record(kStart);
  observer->record(kStep);
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find(fmt::format("cannot listen on 127.0.0.1:{}", other.port)), std::string::npos) << warning;
  EXPECT_EQ(std::ranges::count(warning, '\n'), 1) << warning;
}

TEST(Prometheus, AnswersOnItsPort) {
  int port = 0;
  { port = Listener().port; }
  const auto observer = observer_of({.listen = fmt::format("127.0.0.1:{}", port)});
  observer->record(kStart);
  observer->record(kStep);
  const std::string text = http_get(port);
  EXPECT_NE(text.find("\ntrivet_loss{"), std::string::npos) << text;
}

TEST(Prometheus, OfAFolderThatIsGoneWarnsOnceAndComesBack) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "below");
  testing::internal::CaptureStderr();
  auto observer = observer_of({.textfile = dir / "below/a.prom"});
  std::filesystem::remove(dir / "below");
  for (int i = 0; i < 3; ++i) observer->record({{"event", "eval"}, {"validation_loss", 1}});
  observer.reset();
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("prometheus.textfile: "), std::string::npos) << warning;
  EXPECT_EQ(std::ranges::count(warning, '\n'), 1) << warning;
}

TEST(Prometheus, RefusesWhatCannotWork) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"prometheus.listen", "9464"}, {"prometheus.listen", "x:0"}, {"prometheus.textfile", "a.txt"}}) {
    Config config = tiny_config();
    set_key(config, key, value);
    try {
      resolved(config, 1);
      ADD_FAILURE() << key << " " << value;
    } catch (const ConfigError& error) {
      for (const std::string& part : {key, value, std::string("expected")})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(observer_of({}), nullptr) << "off by default";
}

}  // namespace
}  // namespace trivet::test

#include "common/base/metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>

#include "common/base/build_revision.h"
#include "common/base/line_writer.h"
#include "common/base/listen.h"
#include "common/base/log.h"
#include "common/base/metrics_text.h"
#include "common/base/write_all.h"

namespace flotilla {
namespace {

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident) * sysconf(_SC_PAGESIZE);
}

double OpenFds() {
  // Since Linux 6.2 the directory's size; to read it makes the kernel an inode for each.
  struct stat folder = {};
  if (stat("/proc/self/fd", &folder) == 0 && folder.st_size > 0)
    return static_cast<double>(folder.st_size);
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  int count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count - 3;  // ".", ".." and the directory itself
}

double StartTimeSeconds() {
  static const double start = static_cast<double>(std::time(nullptr));
  return start;
}

}  // namespace

prometheus::Family<prometheus::Counter>& AddCounters(prometheus::Registry* registry,
                                                     const std::string& name,
                                                     const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry);
}

prometheus::Family<prometheus::Gauge>& AddGauges(prometheus::Registry* registry,
                                                 const std::string& name, const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry);
}

prometheus::Counter& AddCounter(prometheus::Registry* registry, const MetricSpec& spec) {
  return AddCounters(registry, spec.name, spec.help).Add(spec.labels);
}

void SetTotal(prometheus::Counter* counter, uint64_t total) {
  counter->Increment(static_cast<double>(total) - counter->Value());
}

prometheus::Gauge& AddGauge(prometheus::Registry* registry, const MetricSpec& spec) {
  return AddGauges(registry, spec.name, spec.help).Add(spec.labels);
}

prometheus::Histogram& AddHistogram(prometheus::Registry* registry, const MetricSpec& spec,
                                    const prometheus::Histogram::BucketBoundaries& buckets) {
  return prometheus::BuildHistogram().Name(spec.name).Help(spec.help).Register(*registry).Add(
      spec.labels, buckets);
}

std::string RenderMetrics(const prometheus::Registry& registry) {
  return MetricsText(registry.Collect());
}

StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& path, const std::string& process,
    std::shared_ptr<prometheus::Registry> registry) {
  UnixListener listener;
  if (!path.empty()) {
    ASSIGN_OR_RETURN(listener, UnixListener::Listen(path, SOCK_STREAM));
  }
  StartTimeSeconds();
  return std::unique_ptr<MetricsServer>(
      new MetricsServer(std::move(listener), process, std::move(registry)));
}

MetricsServer::MetricsServer(UnixListener listener, std::string process,
                             std::shared_ptr<prometheus::Registry> registry)
    : listener_(std::move(listener)), process_(std::move(process)), registry_(std::move(registry)) {
  if (listener_.valid()) thread_ = std::thread([this] { Run(); });
}

MetricsServer::~MetricsServer() {
  stop_.store(true);
  if (listener_.valid()) shutdown(listener_.fd(), SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
}

void MetricsServer::Run() {
  while (!stop_.load()) {
    UniqueFd client(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) {
      if (!OutlastAcceptError(errno)) return;
      continue;
    }
    timeval timeout{.tv_sec = 2, .tv_usec = 0};
    setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    WriteAll(client.get(), RenderMetrics(*registry_) + RenderProcessMetrics(process_));
  }
}

std::string RenderProcessMetrics(const std::string& process) {
  std::ostringstream out;
  auto gauge = [&](const char* name, const char* type, const char* help, double value) {
    char number[64];
    std::snprintf(number, sizeof(number), "%.17g", value);
    out << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n'
        << name << "{process=\"" << process << "\"} " << number << '\n';
  };
  gauge("process_cpu_seconds_total", "counter", "CPU time used, in seconds.", CpuSeconds());
  gauge("process_resident_memory_bytes", "gauge", "Resident memory, in bytes.", ResidentBytes());
  gauge("process_open_fds", "gauge", "Open file descriptors.", OpenFds());
  gauge("process_start_time_seconds", "gauge", "Start time, in seconds since the epoch.",
        StartTimeSeconds());
  gauge("flotilla_log_lines_lost_total", "counter",
        "Lines of the log that could not be written: a full disk, or a reader that stalls.",
        static_cast<double>(LineWriter::lines_lost()));
  out << "# HELP flotilla_build_info Version and commit of the running binary.\n"
         "# TYPE flotilla_build_info gauge\n"
         "flotilla_build_info{process=\""
      << process << "\",revision=\"" << BuildRevision() << "\",version=\"" << FLOTILLA_VERSION
      << "\"} 1\n";
  return out.str();
}

}  // namespace flotilla

#include "deploy/launcher/metrics_pages.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/base/unix_listener.h"
#include "deploy/launcher/metrics_vllm.h"

namespace flotilla {
namespace {

constexpr size_t kMaxPageBytes = 16 << 20;

UniqueFd ConnectUnix(const std::string& path) {
  const StatusOr<sockaddr_un> address = UnixAddress(path);
  if (!address.ok()) return UniqueFd();
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0)
    fd.reset();
  return fd;
}

int MsLeft(int64_t deadline_ns) {
  const int64_t left = deadline_ns - RealClock::Now();
  return static_cast<int>(std::clamp<int64_t>((left + kNsPerMs - 1) / kNsPerMs, 0, 60'000));
}

// Reads what there is. False at the end of the stream, on an error, or beyond `limit`.
bool ReadSome(int fd, size_t limit, std::string* out) {
  std::array<char, 65536> buffer;
  const ssize_t n = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0 || out->size() + static_cast<size_t>(n) > limit) return false;
  out->append(buffer.data(), static_cast<size_t>(n));
  return true;
}

enum class Names { kNative, kVllm };

// Which names a target asks for; nothing if there is no such page. Other parameters are ignored.
std::optional<Names> NamesOf(absl::string_view target) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(target, absl::MaxSplits('?', 1));
  if (parts.first == "/metrics/vllm") return Names::kVllm;
  if (parts.first != "/metrics") return std::nullopt;
  for (absl::string_view parameter : absl::StrSplit(parts.second, '&')) {
    if (!absl::ConsumePrefix(&parameter, "names=")) continue;
    if (parameter != "vllm") return std::nullopt;
    return Names::kVllm;
  }
  return Names::kNative;
}

// What each socket gives until it closes, asked all at once; empty where nothing came in time.
std::vector<std::string> GatherPages(const std::vector<MetricsSource>& sources,
                                     int64_t timeout_ns) {
  const int64_t deadline = RealClock::Now() + timeout_ns;
  std::vector<std::string> pages(sources.size());
  std::vector<UniqueFd> fds;
  fds.reserve(sources.size());
  std::vector<bool> whole(sources.size(), false);
  for (const MetricsSource& source : sources) fds.push_back(ConnectUnix(source.socket));
  for (;;) {
    std::vector<pollfd> waiting;
    std::vector<size_t> index;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (!fds[i].valid()) continue;
      waiting.push_back({fds[i].get(), POLLIN, 0});
      index.push_back(i);
    }
    if (waiting.empty()) break;
    if (poll(waiting.data(), waiting.size(), MsLeft(deadline)) <= 0) break;
    for (size_t k = 0; k < waiting.size(); ++k) {
      const size_t i = index[k];
      if (waiting[k].revents == 0 || ReadSome(fds[i].get(), kMaxPageBytes, &pages[i])) continue;
      whole[i] = true;
      fds[i].reset();
    }
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    if (!whole[i]) pages[i].clear();  // half a page would be a wrong one
  }
  return pages;
}

}  // namespace

std::optional<std::string> MergedMetrics(const std::vector<MetricsSource>& sources,
                                         const std::string& target) {
  const std::optional<Names> names = NamesOf(target);
  if (!names) return std::nullopt;
  const std::vector<std::string> pages = GatherPages(sources, kSourceTimeoutNs);
  MetricsMerger merger;
  for (size_t i = 0; i < pages.size(); ++i) merger.Add(pages[i], sources[i].labels);
  const std::string page = merger.Render();
  return *names == Names::kVllm ? RenderVllmNames(page) : page;
}

}  // namespace flotilla

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

enum class Read { kMore, kEnd, kFailed };

// Reads what there is; fails beyond `limit`.
Read ReadSome(int fd, size_t limit, std::string* out) {
  std::array<char, 65536> buffer;
  const ssize_t n = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Read::kMore : Read::kFailed;
  if (n == 0) return Read::kEnd;
  if (out->size() + static_cast<size_t>(n) > limit) return Read::kFailed;
  out->append(buffer.data(), static_cast<size_t>(n));
  return Read::kMore;
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

// Gives `merger` what each socket gives until it closes, in their order; nothing where the end did
// not come in time: half a page would be a wrong one. All are asked at once, and a page is merged
// while processes further on still write theirs.
void GatherPages(const std::vector<MetricsSource>& sources, int64_t timeout_ns,
                 MetricsMerger* merger) {
  struct Page {
    UniqueFd fd;  // none: nothing more comes
    std::string text = {};
  };
  const int64_t deadline = RealClock::Now() + timeout_ns;
  std::vector<Page> pages;
  for (const MetricsSource& source : sources) pages.push_back({ConnectUnix(source.socket)});
  for (size_t merged = 0;;) {
    for (; merged < pages.size() && !pages[merged].fd.valid(); ++merged)
      merger->Add(pages[merged].text, sources[merged].labels);
    if (merged == pages.size()) return;
    std::vector<pollfd> waits;  // a descriptor of -1 is passed over
    for (const Page& page : pages) waits.push_back({page.fd.get(), POLLIN, 0});
    const bool ended = poll(waits.data(), waits.size(), MsLeft(deadline)) <= 0;
    for (size_t i = 0; i < pages.size(); ++i) {
      Page& page = pages[i];
      if (!page.fd.valid() || (!ended && waits[i].revents == 0)) continue;
      const Read read = ended ? Read::kFailed : ReadSome(page.fd.get(), kMaxPageBytes, &page.text);
      if (read == Read::kMore) continue;
      page.fd.reset();
      if (read == Read::kFailed) page.text.clear();
    }
  }
}

}  // namespace

std::optional<std::string> MergedMetrics(const std::vector<MetricsSource>& sources,
                                         const std::string& target) {
  const std::optional<Names> names = NamesOf(target);
  if (!names) return std::nullopt;
  MetricsMerger merger;
  GatherPages(sources, kSourceTimeoutNs, &merger);
  const std::string page = merger.Render();
  return *names == Names::kVllm ? RenderVllmNames(page) : page;
}

}  // namespace flotilla

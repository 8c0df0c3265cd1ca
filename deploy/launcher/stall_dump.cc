#include "deploy/launcher/stall_dump.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "shm/ring.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

// Empty if it can't be read: a thread may end meanwhile, and then a read fails where opening did
// not. (An iterator over the buffer would throw; the stream's own operator does not.)
std::string ReadAll(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::string(absl::StripTrailingAsciiWhitespace(text.str()));
}

struct ThreadStat {
  char state = '?';
  double cpu_seconds = 0;
};

// Behind the name, which may hold anything: state, then numbers; user and system time are the 12th
// and 13th.
ThreadStat ParseStat(const std::string& stat) {
  ThreadStat out;
  const size_t end = stat.rfind(')');
  if (end == std::string::npos) return out;
  std::istringstream fields(stat.substr(end + 1));
  fields >> out.state;
  uint64_t value = 0, ticks = 0;
  for (int field = 1; field <= 12 && fields >> value; ++field) {
    if (field >= 11) ticks += value;
  }
  out.cpu_seconds = static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return out;
}

}  // namespace

std::vector<std::string> DescribeThreads(pid_t pid) {
  std::vector<std::string> lines;
  std::error_code error;
  const fs::path tasks = fs::path("/proc") / std::to_string(pid) / "task";
  for (const auto& task : fs::directory_iterator(tasks, error)) {
    const fs::path& dir = task.path();
    const ThreadStat stat = ParseStat(ReadAll(dir / "stat"));
    const std::string call = ReadAll(dir / "syscall");
    lines.push_back(
        absl::StrFormat("tid=%s thread=%s state=%c wchan=%s syscall=%s cpu_seconds=%.2f",
                        dir.filename().string(), ReadAll(dir / "comm"), stat.state,
                        ReadAll(dir / "wchan"), call.substr(0, call.find(' ')), stat.cpu_seconds));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string DescribeRing(const std::string& name, const Segment& segment) {
  const StatusOr<RingPositions> ring = LookAtRing(segment);
  if (!ring.ok()) return StrCat("name=", name, " ", std::string(ring.status().message()));
  std::string line =
      absl::StrFormat("name=%s bytes=%d written=%d", name, ring->bytes, ring->written);
  for (size_t r = 0; r < ring->readers.size(); ++r) {
    const RingPositions::Reader& reader = ring->readers[r];
    absl::StrAppendFormat(&line, " reader_%d=%s", r,
                          reader.active ? StrCat(ring->written - reader.read, "_behind") : "gone");
  }
  return line;
}

}  // namespace flotilla

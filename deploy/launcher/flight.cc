#include "deploy/launcher/flight.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "shm/flight_ring.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTimeFormat = "%Y%m%dT%H%M%E3SZ";
constexpr size_t kTimeBytes = std::string_view("20261128T005130.123Z").size();

// Removes the oldest but so many; false: there are no more. Names begin with the replica's id, then
// the time: sorted by name is sorted by age.
bool KeepAtMost(size_t most, const fs::path& dir, const std::string& prefix) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    // Exactly: "gpu-" is also what those of "gpu-2" begin with.
    const auto is = [&](const std::string& suffix) {
      return name.size() == prefix.size() + kTimeBytes + suffix.size() &&
             name.starts_with(prefix) && name.ends_with(suffix);
    };
    if (is(kFlightSuffix)) files.push_back(entry.path());
    // Of a launcher that ended meanwhile.
    if (is(StrCat(kFlightSuffix, kFlightPartSuffix))) fs::remove(entry.path(), error);
  }
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i + most < files.size(); ++i) fs::remove(files[i], error);
  return files.size() > most;
}

}  // namespace

uint64_t DefaultFlightBytes(uint32_t max_running_requests, bool gpu) {
  constexpr uint64_t kMib = 1 << 20;
  return std::clamp<uint64_t>(max_running_requests * kMib / 4, (gpu ? 32 : 4) * kMib, 128 * kMib);
}

std::string DefaultFlightDir() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
  };
  if (!set("XDG_STATE_HOME").empty()) return set("XDG_STATE_HOME") + "/flotilla";
  if (!set("HOME").empty()) return set("HOME") + "/.local/state/flotilla";
  std::error_code error;
  return (fs::temp_directory_path(error) / "flotilla-flight").string();
}

StatusOr<std::string> SaveFlightRecording(const Segment& segment, const std::string& dir,
                                          const std::string& replica) {
  const auto records = ReadFlightRing(segment);
  if (!records.ok() || records->empty()) return absl::NotFoundError("nothing was recorded");
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return absl::UnavailableError(StrCat("can't make ", dir, ": ", error.message()));
  const std::string prefix = replica + "-";
  const std::string time = absl::FormatTime(kTimeFormat, absl::Now(), absl::UTCTimeZone());
  const std::string path = (fs::path(dir) / (prefix + time + kFlightSuffix)).string();
  Status written = WriteFlightFile(path, *records);
  if (!written.ok()) {  // the folder may be a small volume
    if (!absl::IsResourceExhausted(written) || !KeepAtMost(kKeptFlightRecordings - 1, dir, prefix))
      return written;
    RETURN_IF_ERROR(WriteFlightFile(path, *records));
  }
  KeepAtMost(kKeptFlightRecordings, dir, prefix);
  return path;
}

}  // namespace flotilla

#include "deploy/launcher/flight_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "deploy/launcher/flight.h"
#include "shm/flight_ring.h"
#include "shm/segment.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

constexpr char kLast[] = "last";

std::string DirOf(const FlightOptions& options) {
  return options.dir.empty() ? DefaultFlightDir() : options.dir;
}

// The flag's value in a command line as the launcher makes it; empty if it has none.
std::string ValueOf(const std::vector<std::string>& argv, std::string_view flag) {
  const auto found = std::find(argv.begin(), argv.end(), flag);
  return found == argv.end() || found + 1 == argv.end() ? "" : *(found + 1);
}

std::vector<std::string> CommandLine(const fs::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  return absl::StrSplit(bytes, '\0');
}

struct SavedFlight {
  std::string name;
  uint64_t bytes = 0;
  fs::file_time_type time;
};

// Oldest first.
std::vector<SavedFlight> SavedFlights(const std::string& dir) {
  std::vector<SavedFlight> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    if (entry.path().extension() != kFlightSuffix) continue;
    found.push_back(
        {entry.path().filename().string(), entry.file_size(error), entry.last_write_time(error)});
  }
  std::sort(found.begin(), found.end(), [](const SavedFlight& a, const SavedFlight& b) {
    return std::tie(a.time, a.name) < std::tie(b.time, b.name);
  });
  return found;
}

StatusOr<std::vector<std::string>> ReadSaved(const FlightOptions& options) {
  std::vector<SavedFlight> saved = SavedFlights(DirOf(options));
  std::erase_if(saved, [&](const SavedFlight& flight) {
    return options.saved != kLast && flight.name != options.saved;
  });
  if (saved.empty()) return absl::NotFoundError(StrCat("no such recording in ", DirOf(options)));
  return ReadFlightFile((fs::path(DirOf(options)) / saved.back().name).string());
}

StatusOr<std::vector<std::string>> ReadRunning(const RunningScheduler& scheduler) {
  UniqueFd fd(open(scheduler.flight_path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) {
    return absl::ErrnoToStatus(errno, StrCat("can't look into the scheduler of ", scheduler.replica,
                                             " (pid ", scheduler.pid, ")"));
  }
  ASSIGN_OR_RETURN(const Segment segment, Segment::Map(std::move(fd), kMinFlightRingBytes));
  ASSIGN_OR_RETURN(std::vector<std::string> records, ReadFlightRing(segment));
  if (records.empty()) return absl::NotFoundError("nothing was recorded yet");
  return records;
}

}  // namespace

void AddFlightCommandFlags(CLI::App* app, FlightOptions* o) {
  app->add_flag("--list", o->list, "Only says which there are");
  app->add_option("--pid", o->pid, "Of which scheduler, if several run here; --list has them");
  app->add_option("--saved", o->saved,
                  "A file that a scheduler's end left, by its name, or 'last'. Default: what a "
                  "scheduler that runs here has recorded so far; it goes on undisturbed");
  app->add_option("--flight-recorder-dir", o->dir,
                  "Where such files are: what serve or engine was given. Default: "
                  "$XDG_STATE_HOME/flotilla or ~/.local/state/flotilla");
  app->add_option("--output", o->output,
                  "A file that does not exist yet. Default: standard output");
}

std::vector<RunningScheduler> RunningSchedulers(const std::string& proc) {
  std::vector<RunningScheduler> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc, error)) {
    RunningScheduler scheduler;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &scheduler.pid)) continue;
    const std::vector<std::string> argv = CommandLine(entry.path());
    if (fs::path(argv.front()).filename() != "flotilla-scheduler") continue;
    const std::string fd = ValueOf(argv, "--flight-fd");
    int number = -1;
    if (!absl::SimpleAtoi(fd, &number) || number < 0) continue;
    scheduler.replica = ValueOf(argv, "--replica-id");
    scheduler.flight_path = (entry.path() / "fd" / fd).string();
    found.push_back(scheduler);
  }
  std::sort(found.begin(), found.end(), [](const RunningScheduler& a, const RunningScheduler& b) {
    return std::tie(a.replica, a.pid) < std::tie(b.replica, b.pid);
  });
  return found;
}

std::string FlightList(const FlightOptions& options, const std::string& proc) {
  std::string text;
  for (const RunningScheduler& scheduler : RunningSchedulers(proc))
    StrAppend(&text, "running ", scheduler.replica, " pid ", scheduler.pid, "\n");
  for (const SavedFlight& flight : SavedFlights(DirOf(options)))
    StrAppend(&text, "saved ", flight.name, " ", flight.bytes, " bytes\n");
  return text;
}

StatusOr<std::vector<std::string>> FindFlight(const FlightOptions& options,
                                              const std::string& proc) {
  if (!options.saved.empty()) return ReadSaved(options);
  std::vector<RunningScheduler> running = RunningSchedulers(proc);
  std::erase_if(running, [&](const RunningScheduler& scheduler) {
    return options.pid != 0 && scheduler.pid != options.pid;
  });
  if (running.empty()) {
    return absl::NotFoundError(
        "no such scheduler with a flight recorder runs here; --saved has those that ended");
  }
  if (running.size() > 1) {
    const std::string pids =
        absl::StrJoin(running, ", ", [](std::string* out, const RunningScheduler& scheduler) {
          StrAppend(out, scheduler.pid, " (", scheduler.replica, ")");
        });
    return absl::InvalidArgumentError(StrCat("several run here: ", pids, "; give --pid"));
  }
  return ReadRunning(running.front());
}

int Flight(const FlightOptions& options) {
  const auto fail = [](const Status& status) {
    std::fprintf(stderr, "flotilla: error: %s\n", std::string(status.message()).c_str());
    return 2;
  };
  if (options.list) {
    std::fputs(FlightList(options, "/proc").c_str(), stdout);
    return 0;
  }
  if (options.output.empty() && isatty(STDOUT_FILENO) == 1)
    return fail(
        absl::InvalidArgumentError("a recording is not for a terminal: > FILE, or --output"));
  const auto records = FindFlight(options, "/proc");
  if (!records.ok()) return fail(records.status());
  const Status written = options.output.empty() ? WriteFlight(STDOUT_FILENO, *records)
                                                : WriteFlightFile(options.output, *records);
  return written.ok() ? 0 : fail(written);
}

}  // namespace flotilla

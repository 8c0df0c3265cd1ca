// `flotilla flight`: takes a scheduler's flight recording out, also where there is nothing but our
// programs: of one that runs here, by its memory, which it shares with its launcher; of one that
// ended, from --flight-recorder-dir.
//
// Threads: any. Errors: NotFound: no such scheduler or file; PermissionDenied: it is another
// user's.
#pragma once

#include <string>
#include <vector>

#include "common/base/flags.h"
#include "common/base/status.h"

namespace flotilla {

struct FlightOptions {
  bool list = false;
  int pid = 0;         // of the scheduler; 0: the only one
  std::string saved;   // a file's name, or "last"; empty: of one that runs
  std::string dir;     // empty: DefaultFlightDir()
  std::string output;  // empty: standard output
};

struct RunningScheduler {
  int pid = 0;
  std::string replica;
  std::string flight_path;  // of the descriptor of its flight recorder
};

void AddFlightCommandFlags(CLI::App* app, FlightOptions* options);

// Those with a flight recorder, by replica. proc: where /proc is.
std::vector<RunningScheduler> RunningSchedulers(const std::string& proc);

// What --list prints.
std::string FlightList(const FlightOptions& options, const std::string& proc);

// The records that the options ask for.
StatusOr<std::vector<std::string>> FindFlight(const FlightOptions& options,
                                              const std::string& proc);

// The exit code.
int Flight(const FlightOptions& options);

}  // namespace flotilla

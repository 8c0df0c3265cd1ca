// Where the flight recordings of schedulers go that ended on their own.
//
// Threads: any. Errors: NotFound: nothing was recorded; others name the folder or file, and the
// recording is lost, nothing else.
#pragma once

#include <string>

#include "common/base/status.h"
#include "shm/segment.h"

namespace flotilla {

inline constexpr size_t kKeptFlightRecordings = 8;
inline constexpr char kFlightSuffix[] = ".flight";

// Of some minutes: a step's record grows with its rows. 256 KiB a request are 64 MiB for 256, of
// which a GPU's steps of 6.6 ms write 0.3 MB a second, prompts included; a GPU's is large enough
// for key frames of 3.8 million cached tokens (docs/observability.md).
uint64_t DefaultFlightBytes(uint32_t max_running_requests, bool gpu);

// $XDG_STATE_HOME/flotilla, else ~/.local/state/flotilla, else a folder in $TMPDIR.
std::string DefaultFlightDir();

// Writes <dir>/<replica>-<UTC time>.flight, which only its owner may read, and removes the oldest
// beyond kKeptFlightRecordings. Returns the path.
StatusOr<std::string> SaveFlightRecording(const Segment& segment, const std::string& dir,
                                          const std::string& replica);

}  // namespace flotilla

// What the parts of fuzz_make_seeds share. Threads: one. Errors: CHECK.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flotilla::fuzz {

// FOLDER/<target>/made-<name>.
void Save(const std::string& target, const std::string& name, const std::string& bytes);

template <typename T>
std::string Raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// As fuzz_input.h reads them.
inline std::string Pieces(const std::vector<std::string>& frames) {
  std::string out;
  for (const std::string& frame : frames) out += Raw(static_cast<uint16_t>(frame.size())) + frame;
  return out;
}

// Targets gguf and gguf_tokenizer.
void SaveGgufs();
// Targets step_plan, step_result and ring.
void SaveSharedMemory();
// Target flight.
void SaveFlights();
// Targets detok_frames, grpc_session, router_frames and plan_link.
void SaveFrames();

}  // namespace flotilla::fuzz

// Commands of `flotilla` that are programs of their own, beside it.
//
// Threads: any. Pure, but for ExecProgram.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace flotilla {

struct OtherProgram {
  const char* command;  // "router"; "bench roofline" has two words
  const char* program;
  const char* first;  // argument; nullptr: none
  const char* help;
};
std::span<const OtherProgram> OtherPrograms();

// By the first words of a command line; nullptr: none. The longest that fits.
const OtherProgram* FindProgram(std::span<const char* const> words);
size_t NumWords(const OtherProgram& program);

// The folder of this program and of all others.
std::string OwnBinDir();

// Becomes `program`. `args`: its arguments, behind `first`; ends with nullptr. Returns only an
// error.
Status ExecProgram(const OtherProgram& program, char** args);

}  // namespace flotilla

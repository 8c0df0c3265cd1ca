# cmake -DSOURCE=… -DHEADER=… -P commit.cmake: writes the header that names the commit a program was
# built from; "unknown" outside of a git checkout.
execute_process(COMMAND git rev-parse --short HEAD WORKING_DIRECTORY ${SOURCE}
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(WRITE ${HEADER} "// The commit that this was built from, or \"unknown\". Made by cmake/commit.cmake.
#pragma once

namespace flotilla::bench {
inline constexpr char kCommit[] = \"${commit}\";
}  // namespace flotilla::bench
")

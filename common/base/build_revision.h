// The commit that a program was built from: 12 digits, or "unknown" outside git and in tests.
//
// It is in one generated source of the programs alone (cmake/revision.cmake), so that a commit
// links them again and compiles nothing else. Threads: any. Errors: none.
#pragma once

namespace flotilla {

const char* BuildRevision();

}  // namespace flotilla

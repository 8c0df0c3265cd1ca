// Where ./flotilla puts the default model: ${XDG_CACHE_HOME:-~/.cache}/flotilla/<file>.
//
// Threads: any. Errors: NotFound if neither variable is set; the file need not be there.
#pragma once

#include <string>

#include "common/base/status.h"

namespace flotilla {

// ${XDG_CACHE_HOME:-~/.cache}/flotilla
StatusOr<std::string> UserCacheDir();
StatusOr<std::string> DefaultModelPath();

}  // namespace flotilla

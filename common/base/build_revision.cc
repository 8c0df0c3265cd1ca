#include "common/base/build_revision.h"

namespace flotilla {

// For what has no generated one, whose symbol is not weak.
[[gnu::weak]] const char* BuildRevision() { return "unknown"; }

}  // namespace flotilla

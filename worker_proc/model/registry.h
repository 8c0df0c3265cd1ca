// Which architectures we can run: one explicit table (requirement 001's EntryClass).
#pragma once

#include <memory>
#include <string>

#include "worker_proc/model/model.h"

namespace flotilla {

// NotFound, with the known ones, for an architecture without an entry.
StatusOr<std::unique_ptr<Model>> CreateModel(const ModelEnv& env);

}  // namespace flotilla

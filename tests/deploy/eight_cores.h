// A machine of eight cores and nothing that is worth a word, for tests to change.
#pragma once

#include <numeric>

#include "deploy/launcher/machine.h"

namespace flotilla {

inline Machine EightCores() {
  Machine machine;
  machine.online.resize(8);
  std::iota(machine.online.begin(), machine.online.end(), 0u);
  machine.allowed = machine.online;
  machine.numa_nodes = {machine.online};
  machine.isas = {"avx2"};
  machine.available_bytes = uint64_t{4096} << 20;
  return machine;
}

}  // namespace flotilla

// What a program's exit status says of an error to whoever would start it again: the launcher,
// systemd, Kubernetes.
//
// Threads: any (pure).
#pragma once

#include "common/base/status.h"

namespace flotilla {

// To start it again as it is would be useless: bad configuration or model.
inline constexpr int kExitBadConfiguration = 2;
// By a replica's own processes, to their launcher: what ended is the process of another host that
// this one worked for, or the connection to it.
inline constexpr int kExitPeerLost = 3;
// That one only for what stays as it is, so that a port which somebody still holds is asked for
// again; else 1.
int ExitStatusOf(const Status& status);

}  // namespace flotilla

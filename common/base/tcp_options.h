// What a TCP connection of ours wants of the kernel: no delay, and to notice a peer whose host has
// vanished, which says nothing.
//
// Threads: any. Errors: none; an option that the kernel lacks is left out.
#pragma once

namespace flotilla {

struct TcpProbes {
  int idle_s = 0;             // without a byte, before the first probe
  int interval_s = 0;         // between probes
  int count = 0;              // that are not answered, before the connection fails
  int unacknowledged_ms = 0;  // of what was sent, likewise
};
void SetTcpOptions(int fd, const TcpProbes& probes);

}  // namespace flotilla

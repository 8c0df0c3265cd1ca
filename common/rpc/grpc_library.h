// What each of our processes does to gRPC's library before it uses it. Threads: any.
#pragma once

namespace flotilla {

// Its own words are for debugging and are logged as such; what matters is in the statuses that it
// returns. And it stays up until the process ends: when its last user goes, gRPC 1.51 may join a
// thread that sleeps in a poll for up to 10 s.
void PrepareGrpc();

}  // namespace flotilla

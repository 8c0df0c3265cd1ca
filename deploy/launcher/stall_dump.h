// What can be seen of a process that hangs, from outside: a stopped process can't tell itself.
// Threads: any. Errors: what can't be read is left out.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "shm/segment.h"

namespace flotilla {

// A line for each thread: its name, state (proc(5): R, S, D, T, …), kernel function it sleeps in,
// system call, and CPU seconds.
std::vector<std::string> DescribeThreads(pid_t pid);

// How far the ring's writer and readers are.
std::string DescribeRing(const std::string& name, const Segment& segment);

}  // namespace flotilla

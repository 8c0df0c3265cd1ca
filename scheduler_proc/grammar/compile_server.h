// The compile sandbox's side (flotilla-grammar): forks a process for each grammar, which lowers its
// own limits, compiles and is gone.
//
// A process a grammar, because nothing in xgrammar's compiler can be cancelled: what runs away in
// time, memory or stack takes only itself along. The parent keeps the vocabulary, which its
// children inherit, so that a fork is all a compile costs beside its own work (about 1 ms).
//
// Limits of a child: wall time (SIGALRM ends it), CPU time, address space, no core dump; it dies
// with its parent. Threads: one, or fork would not be safe. Errors: returns when the scheduler has
// closed its side.
#pragma once

namespace flotilla {

// control_fd: the control socket (compile_frames.h). The process's exit code.
int ServeCompiles(int control_fd);

}  // namespace flotilla

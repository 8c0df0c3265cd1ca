// flotilla-grammar: the compile sandbox (compile_server.h). Started by the scheduler, one a
// replica; ends with it.
//
// Exit codes: 0 when the scheduler is gone; 2 for a wrong command line; 1 for anything else.
#include <unistd.h>

#include <cerrno>

#include "common/base/flags.h"
#include "scheduler_proc/grammar/compile_server.h"

int main(int argc, char** argv) {
  constexpr int kNice = 5;  // tokens first
  int control_fd = -1;
  CLI::App app("Flotilla's grammar sandbox: one a replica, started by the scheduler");
  app.add_option("--control-fd", control_fd, "Inherited control socket")->required();
  flotilla::ParseOrExit(&app, argc, argv);
  errno = 0;
  if (nice(kNice) == -1 && errno != 0) return 1;  // -1 may be the new value
  return flotilla::ServeCompiles(control_fd);
}

#include "common/rpc/grpc_library.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include "common/base/log.h"

namespace flotilla {
namespace {

void LogFromGrpc(gpr_log_func_args* args) { Log().debug("grpc {}", Kv("says", args->message)); }

}  // namespace

void PrepareGrpc() {
  static const bool once = [] {
    gpr_set_log_function(&LogFromGrpc);
    grpc_init();
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace flotilla

// flotilla-router's flags, and the options that follow from them.
//
// Threads: one, before any other is started. Errors: a flag's own are CLI11's; what only all of
// them together show is FinishFlags' Status, which names the flag.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "router/router_app.h"

namespace flotilla {

struct RouterFlags {
  RouterOptions router;
  LogOptions log;
  std::string ui = "on";
  std::string sampling_defaults = "model";
  std::vector<std::string> replica_services;
  std::string kubernetes_api;
  std::string kubernetes_credentials = KubeApi().credentials;
  std::string metrics_socket;
  std::string handoff_socket;
  std::optional<uint16_t> metrics_port;
  int notify_fd = -1;
  bool check = false;
  uint32_t admission_queue_timeout_s =
      static_cast<uint32_t>(DispatcherOptions().admission_queue_timeout_ms / 1000);
  uint32_t sse_keepalive_s = static_cast<uint32_t>(RouterOptions().sse_keepalive_ms / 1000);
};

void AddRouterFlags(CLI::App* app, RouterFlags* flags);

// Once the flags have been read: fills the options that others determine.
Status FinishFlags(RouterFlags* flags);

}  // namespace flotilla

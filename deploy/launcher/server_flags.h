// The flags of a person's command (`ask`, `chat`, `top`, `bench serve`) that say which server it
// calls, and as whom.
//
// Threads: the main thread. Errors: CLI11's.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "common/tls/tls_files.h"

namespace flotilla {

struct ServerFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;  // empty: none
  TlsPaths tls;
};
void AddServerFlags(CLI::App* app, const std::string& url_help, ServerFlags* flags);

}  // namespace flotilla

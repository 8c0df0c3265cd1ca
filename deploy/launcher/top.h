// `flotilla top`: the fleet behind a router, in the terminal, as /ui shows it in a browser
// (/ui/fleet.json).
//
// Threads: the main thread. Errors: a message on stderr and exit status 1.
#pragma once

#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>
#include <string>

#include "deploy/launcher/server_flags.h"

namespace flotilla {

struct TopOptions {
  ServerFlags server;
  double interval_s = 1;
  bool once = false;
};
void AddTopFlags(CLI::App* app, TopOptions* options);

struct TopSize {
  size_t rows = 24, columns = 80;
};
// Lines without colours, none longer than the screen is wide, at most as many as it has rows.
// `before`: what was there some time ago, for rates; null: there are none yet. Pure.
std::string TopScreen(const boost::json::object& now, const boost::json::object* before,
                      const TopSize& size);

int Top(const TopOptions& options);

}  // namespace flotilla

// The operator's page at /ui: its files, which are part of the program, and what it shows of the
// fleet as JSON.
//
// The page is plain HTML, CSS and JavaScript modules (router/ui/). It asks this router alone, runs
// no script but its own files, and may be in no frame. Threads: the io thread; the files are
// constant. Errors: none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "router/dispatch/dispatcher.h"
#include "router/http/http_types.h"

namespace flotilla {

struct UiFile {
  std::string_view name, etag, bytes;
};
std::span<const UiFile> UiFiles();  // made by cmake/embed.cmake

inline constexpr const char* kUiFleetPath = "/ui/fleet.json";

// "/ui", "/ui/" or "/ui/" and a file's name.
bool IsUiFile(std::string_view path);
// The file; 304 if the browser has it; for "/ui" the way to "/ui/", which the page's links need.
void ReplyUiFile(const HttpHead& head, HttpExchange* exchange);

// {"version", "draining", "now_unix_ms", "requests_active", "requests_parked", "replicas": […],
// "requests": […]}, as docs/openapi.yaml has it. `tenant`: whose requests; none: everybody's.
std::string FleetJson(const Dispatcher& dispatcher, bool draining,
                      const std::optional<std::string>& tenant);

}  // namespace flotilla

// Prints every route of the router's HTTP API, "METHOD /path", a line each: what docs/openapi.yaml
// is held to.
#include <cstdio>

#include "router/handlers/http_routes.h"

int main() {
  for (const flotilla::HttpRoutes::Route& route : flotilla::HttpRoutes::All())
    std::printf("%s %s\n", route.method, route.path);
}

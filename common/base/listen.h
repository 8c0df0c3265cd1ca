// Addresses and TCP listening sockets: for the metrics page, and to learn early whether a port can
// be had.
// Threads: any. Errors: InvalidArgument (host), AlreadyExists (port in use), PermissionDenied (a
// port of root's), Unavailable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace flotilla {

// `host` is an address or a name; port 0: any free one, which *bound_port gets.
StatusOr<UniqueFd> ListenTcp(const std::string& host, uint16_t port, uint16_t* bound_port);

// Of a TCP socket that listens.
uint16_t ListeningPort(int socket);

// Binds and lets go. For a clear message before anything is started; the later bind of the process
// that is meant to have the port stays the authority.
Status CheckPortFree(const std::string& host, uint16_t port, const std::string& flag);

// Of a thread whose blocking accept failed with `error`: false if the listener was shut down; else
// true, where descriptors or memory are short after a while.
bool OutlastAcceptError(int error);

// "127.0.0.1:80", "[::1]:80"
std::string HostPort(const std::string& host, uint16_t port);

// "unix:/path", gRPC's spelling: who connects is on this host and allowed to by the file.
bool IsUnixAddress(std::string_view address);

}  // namespace flotilla

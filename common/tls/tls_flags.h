// The flags of a process that serves TLS; the launcher hands them on as they are.
#pragma once

#include "common/base/flags.h"
#include "common/tls/tls_files.h"

namespace flotilla {

inline constexpr SharedText kTlsCertFileFlag = {
    kTlsServer.cert_flag,
    "PEM file of a certificate, then of those between it and its CA: ports for clients speak TLS "
    "(docs/security.md). Read again when it changes, as are the other two. None: plain text"};
inline constexpr SharedText kTlsKeyFileFlag = {kTlsServer.key_flag,
                                               "PEM file of the certificate's private key"};
inline constexpr SharedText kTlsClientCaFileFlag = {
    kTlsServer.ca_flag,
    "PEM file of CAs: clients must have a certificate of one of them. None: they need none"};

inline void AddServerTlsFlags(CLI::App* app, TlsPaths* paths) {
  AddFlag(app, kTlsCertFileFlag, &paths->cert_file);
  AddFlag(app, kTlsKeyFileFlag, &paths->key_file);
  AddFlag(app, kTlsClientCaFileFlag, &paths->ca_file);
}

}  // namespace flotilla

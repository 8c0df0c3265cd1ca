// gRPC over TLS with files that change (common/tls/tls_files.h): each new connection is made with
// what is current, those that are there go on.
//
// A server asks for its certificate at each handshake, by the SSL credentials' fetcher of gRPC
// core. (gRPC 1.51's FileWatcherCertificateProvider takes a key that does not fit its certificate,
// and then serves nothing.) Threads: any. Ownership: `files` outlives server and credentials, and
// the credentials outlive the server.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "common/tls/tls_files.h"

namespace flotilla {

// With a CA, clients must have a certificate of it. Null: plain text.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles* files);

// Of one channel, as the files were when `material` was current. Null: plain text.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    const std::shared_ptr<const TlsMaterial>& material);

}  // namespace flotilla

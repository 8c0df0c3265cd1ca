// When the certificates of a process end, as a metric for the alert that comes before:
// flotilla_<process>_certificate_expiry_timestamp_seconds{file}, unix seconds by flag.
#pragma once

#include <prometheus/registry.h>

#include <string>

#include "common/tls/tls_files.h"

namespace flotilla {

// What TlsFiles tells it. `registry` outlives it.
TlsFiles::OnExpiry CertificateExpiryMetric(const std::string& process,
                                           prometheus::Registry* registry);

}  // namespace flotilla

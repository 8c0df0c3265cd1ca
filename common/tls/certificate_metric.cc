#include "common/tls/certificate_metric.h"

#include "common/base/metrics.h"

namespace flotilla {

TlsFiles::OnExpiry CertificateExpiryMetric(const std::string& process,
                                           prometheus::Registry* registry) {
  auto& family =
      AddGauges(registry, StrCat("flotilla_", process, "_certificate_expiry_timestamp_seconds"),
                "When the certificates end that a flag's file has: the first of a chain, the last "
                "of several CAs. Unix time.");
  return [&family](const std::string& file, int64_t unix_s) {
    family.Add({{"file", file}}).Set(static_cast<double>(unix_s));
  };
}

}  // namespace flotilla

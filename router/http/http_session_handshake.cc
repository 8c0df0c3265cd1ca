// HttpSession before its first request, if clients speak TLS.
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/request_id.h"
#include "router/http/http_server.h"
#include "router/http/http_session.h"

namespace flotilla {

void HttpSession::Start() {
  if (!stream_.needs_handshake()) {
    NextRequest();
    return;
  }
  Enter(Phase::kHandshake);
  SetDeadline(server_->options().header_timeout_ms);
  stream_.AsyncHandshake([self = shared_from_this()](ErrorCode error) {
    if (self->phase_ == Phase::kHandshake) self->OnHandshake(error);
  });
}

void HttpSession::OnHandshake(ErrorCode error) {
  if (!error) {
    NextRequest();
    return;
  }
  if (stream_.TurnsOutPlain(error)) {
    Enter(Phase::kHandling);
    request_id_ = NewRequestId();
    received_ns_ = RealClock::Now();
    server_->service()->OnRefused("plain_http");
    const ApiError refusal = HttpError(400, "This port speaks HTTPS, not HTTP.");
    SendFinal(FormatError(refusal, MakeHead()), 400);
    return;
  }
  Log().debug("TLS handshake failed {}", Kv("error", error.message()));
  // Else the client just left, as probes of a port do.
  if (MaybeTlsStream::IsTlsError(error)) server_->service()->OnRefused("tls_handshake");
  Close();
}

}  // namespace flotilla

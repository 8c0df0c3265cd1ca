#include "router/fleet/grpc_session.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/numbers.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace flotilla {
namespace {

constexpr size_t kPrefixBytes = 5;  // whether it is compressed, and its size, big endian
constexpr size_t kKeptMessageBytes = 64 << 10;  // of a buffer that has become empty
constexpr int32_t kWindowBytes = 1 << 20;    // that may come before we say that there is room again
constexpr uint32_t kMaxHeaderBytes = 16384;  // more is never used

void StartMessage(std::string* out) { out->append(kPrefixBytes, '\0'); }

void FinishMessage(std::string* out, size_t begin) {
  const auto size = static_cast<uint32_t>(out->size() - begin - kPrefixBytes);
  for (size_t i = 0; i < 4; ++i)
    (*out)[begin + 1 + i] = static_cast<char>(size >> (8 * (3 - i)) & 0xff);
}

uint32_t MessageSize(std::string_view prefix) {
  uint32_t size = 0;
  for (size_t i = 1; i < kPrefixBytes; ++i) size = size << 8 | static_cast<uint8_t>(prefix[i]);
  return size;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// What is not valid stays as it is, as the protocol wants it.
std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high < 0 ? -1 : HexDigit(text[i + 2]);
    decoded.push_back(low < 0 ? text[i] : static_cast<char>(high << 4 | low));
    if (low >= 0) i += 2;
  }
  return decoded;
}

// Of an answer that is none of gRPC's.
grpc::StatusCode CodeOfHttp(int status) {
  switch (status) {
    case 400:
      return grpc::StatusCode::INTERNAL;
    case 401:
      return grpc::StatusCode::UNAUTHENTICATED;
    case 403:
      return grpc::StatusCode::PERMISSION_DENIED;
    case 404:
      return grpc::StatusCode::UNIMPLEMENTED;
    case 429:
    case 502:
    case 503:
    case 504:
      return grpc::StatusCode::UNAVAILABLE;
    default:
      return grpc::StatusCode::UNKNOWN;
  }
}

grpc::StatusCode CodeOfReset(uint32_t error) {
  switch (error) {
    case NGHTTP2_NO_ERROR:
    case NGHTTP2_REFUSED_STREAM:
      return grpc::StatusCode::UNAVAILABLE;
    case NGHTTP2_CANCEL:
      return grpc::StatusCode::CANCELLED;
    case NGHTTP2_ENHANCE_YOUR_CALM:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case NGHTTP2_INADEQUATE_SECURITY:
      return grpc::StatusCode::PERMISSION_DENIED;
    default:
      return grpc::StatusCode::INTERNAL;
  }
}

nghttp2_nv Header(std::string_view name, std::string_view value) {
  // nghttp2 copies both.
  return {reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NONE};
}

std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace

struct GrpcSession::Callbacks {
  static GrpcSession* Self(void* user) { return static_cast<GrpcSession*>(user); }

  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                      void* user) {
    if (frame->hd.stream_id == Self(user)->stream_)
      Self(user)->TakeHeader(Text(name, name_size), Text(value, value_size));
    return 0;
  }
  static int OnData(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data, size_t size,
                    void* user) {
    if (stream == Self(user)->stream_) Self(user)->TakeData(Text(data, size));
    return 0;
  }
  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    const bool last = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 &&
                      (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA);
    if (last && frame->hd.stream_id == Self(user)->stream_) Self(user)->EndOfCall();
    return 0;
  }
  static int OnClose(nghttp2_session*, int32_t stream, uint32_t error, void* user) {
    GrpcSession* const self = Self(user);
    if (stream != self->stream_) return 0;
    self->End(CodeOfReset(error),
              StrCat("the other side broke the call off: ", nghttp2_http2_strerror(error)));
    return 0;
  }
  static ssize_t Read(nghttp2_session*, int32_t, uint8_t* data, size_t size, uint32_t*,
                      nghttp2_data_source*, void* user) {
    GrpcSession* const self = Self(user);
    size = std::min(size, self->unsent_bytes());
    if (size == 0) return NGHTTP2_ERR_DEFERRED;
    std::memcpy(data, self->outgoing_.data() + self->sent_, size);
    self->sent_ += size;
    return static_cast<ssize_t>(size);
  }

  static nghttp2_session* NewSession(GrpcSession* self) {
    nghttp2_session_callbacks* callbacks = nullptr;
    CHECK(nghttp2_session_callbacks_new(&callbacks) == 0);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, OnHeader);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, OnData);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, OnFrame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, OnClose);
    nghttp2_session* session = nullptr;
    CHECK(nghttp2_session_client_new(&session, callbacks, self) == 0);
    nghttp2_session_callbacks_del(callbacks);
    return session;
  }
};

GrpcSession::GrpcSession(const Call& call, OnMessage on_message)
    : max_message_bytes_(call.max_message_bytes),
      on_message_(std::move(on_message)),
      session_(Callbacks::NewSession(this), nghttp2_session_del) {
  const std::array<nghttp2_settings_entry, 3> settings = {{
      {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindowBytes},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMaxHeaderBytes},
  }};
  CHECK(nghttp2_submit_settings(session_.get(), NGHTTP2_FLAG_NONE, settings.data(),
                                settings.size()) == 0);
  CHECK(nghttp2_session_set_local_window_size(session_.get(), NGHTTP2_FLAG_NONE, 0, kWindowBytes) ==
        0);
  const std::array<nghttp2_nv, 7> headers = {
      Header(":method", "POST"),
      Header(":scheme", call.tls ? "https" : "http"),
      Header(":path", call.path),
      Header(":authority", call.authority),
      Header("te", "trailers"),
      Header("content-type", "application/grpc"),
      Header("user-agent", "flotilla-router/" FLOTILLA_VERSION),
  };
  nghttp2_data_provider provider = {};
  provider.read_callback = Callbacks::Read;
  stream_ = nghttp2_submit_request(session_.get(), nullptr, headers.data(), headers.size(),
                                   &provider, nullptr);
  CHECK(stream_ > 0);
}

GrpcSession::~GrpcSession() = default;

void GrpcSession::Send(const google::protobuf::MessageLite& message) {
  if (ended_.has_value()) return;
  if (sent_ == outgoing_.size()) {
    outgoing_.clear();
    if (outgoing_.capacity() > kKeptMessageBytes) outgoing_.shrink_to_fit();
    sent_ = 0;
  } else if (sent_ > kKeptMessageBytes && sent_ > outgoing_.size() / 2) {
    outgoing_.erase(0, sent_);
    sent_ = 0;
  }
  const size_t begin = outgoing_.size();
  StartMessage(&outgoing_);
  CHECK(message.AppendToString(&outgoing_));
  FinishMessage(&outgoing_, begin);
  (void)nghttp2_session_resume_data(session_.get(), stream_);  // if it has asked in vain before
}

void GrpcSession::Receive(std::string_view bytes) {
  if (ended_.has_value()) return;
  const ssize_t taken = nghttp2_session_mem_recv(
      session_.get(), reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (taken < 0) End(grpc::StatusCode::UNAVAILABLE, nghttp2_strerror(static_cast<int>(taken)));
}

void GrpcSession::TakeOutput(std::string* out) {
  const uint8_t* data = nullptr;
  while (!ended_.has_value()) {
    const ssize_t size = nghttp2_session_mem_send(session_.get(), &data);
    if (size == 0) break;
    if (size < 0) return End(grpc::StatusCode::INTERNAL, nghttp2_strerror(static_cast<int>(size)));
    out->append(reinterpret_cast<const char*>(data), static_cast<size_t>(size));
  }
  // It has said goodbye, or what came was wrong and nghttp2 has.
  if (nghttp2_session_want_read(session_.get()) == 0)
    End(grpc::StatusCode::UNAVAILABLE,
        "the other side ended the connection, or does not speak HTTP/2");
}

void GrpcSession::End(grpc::StatusCode code, const std::string& message) {
  if (!ended_.has_value()) ended_.emplace(code, message);
}

void GrpcSession::TakeHeader(std::string_view name, std::string_view value) {
  const absl::string_view text(value.data(), value.size());
  int number = 0;
  if (name == ":status" && absl::SimpleAtoi(text, &number)) {
    http_status_ = number;
  } else if (name == "grpc-status") {
    const bool known = absl::SimpleAtoi(text, &number) && number >= 0 && number <= 16;
    grpc_status_ = known ? number : static_cast<int>(grpc::StatusCode::UNKNOWN);
  } else if (name == "grpc-message") {
    grpc_message_ = value;
  }
}

void GrpcSession::TakeData(std::string_view bytes) {
  if (http_status_ != 200) return;  // a page that says why
  const bool joined = !incoming_.empty();
  if (joined) bytes = incoming_.append(bytes);
  while (!ended_.has_value() && bytes.size() >= kPrefixBytes) {
    const uint32_t size = MessageSize(bytes);
    if (bytes[0] != 0) return End(grpc::StatusCode::INTERNAL, "a message is compressed");
    if (size > max_message_bytes_)
      return End(grpc::StatusCode::RESOURCE_EXHAUSTED,
                 StrCat("a message has ", size, " bytes; ", max_message_bytes_, " may be"));
    if (bytes.size() - kPrefixBytes < size) break;
    on_message_(bytes.substr(kPrefixBytes, size));
    bytes.remove_prefix(kPrefixBytes + size);
  }
  if (!joined) {
    incoming_ = bytes;
    return;
  }
  incoming_.erase(0, incoming_.size() - bytes.size());
  if (incoming_.empty() && incoming_.capacity() > kKeptMessageBytes) incoming_.shrink_to_fit();
}

void GrpcSession::EndOfCall() {
  if (http_status_ != 200)
    return End(CodeOfHttp(http_status_), StrCat("the answer is HTTP's ", http_status_));
  if (!grpc_status_.has_value())
    return End(grpc::StatusCode::UNKNOWN, "the call ended without a status");
  End(static_cast<grpc::StatusCode>(*grpc_status_), PercentDecoded(grpc_message_));
}

}  // namespace flotilla

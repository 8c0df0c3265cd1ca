#include "common/text/detok_frames.h"

#include "common/base/utf8.h"
#include "common/base/wire.h"

namespace flotilla {
namespace {

constexpr uint32_t kRequestMagic = 0x51544446;  // "FDTQ"
constexpr uint32_t kReplyMagic = 0x52544446;    // "FDTR"

Status Malformed(const char* what, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("detokenizer ", what, " frame: ", why));
}

Status ReadHeader(WireReader* in, uint32_t magic, const char* what) {
  if (in->Get<uint32_t>() != magic || !in->ok()) return Malformed(what, "wrong magic");
  const uint32_t version = in->Get<uint32_t>();
  if (!in->ok() || version != kDetokVersion) return Malformed(what, "unknown version");
  return OkStatus();
}

// Flags are written as 0 or 1 and nothing else is taken, so that each frame has one meaning.
bool ReadFlag(WireReader* in, bool* flag) {
  const uint8_t value = in->Get<uint8_t>();
  *flag = value == 1;
  return in->ok() && value <= 1;
}

void PutEvent(const DetokStreamEvent& event, WireWriter* out) {
  out->Put<uint32_t>(static_cast<uint32_t>(event.kind));
  out->Put<uint64_t>(event.stream);
  if (event.kind == DetokStreamEvent::Kind::kClose) return;
  if (event.kind == DetokStreamEvent::Kind::kOpen) {
    out->PutBytes(event.request_id);
    out->Put<uint8_t>(event.skip_special);
    out->Put<uint32_t>(event.emitted_tokens);
    out->Put<uint32_t>(static_cast<uint32_t>(event.stop.size()));
    for (const std::string& stop : event.stop) out->PutBytes(stop);
    out->Put<uint8_t>(event.include_stop);
    out->Put<uint32_t>(event.min_tokens);
  }
  out->Put<uint32_t>(event.offset);
  out->PutSpan<TokenId>(event.tokens);
  out->Put<uint8_t>(event.last);
}

Status ReadEvent(WireReader* in, DetokStreamEvent* event) {
  constexpr const char* kWhat = "request";
  const uint32_t kind = in->Get<uint32_t>();
  event->stream = in->Get<uint64_t>();
  if (!in->ok()) return Malformed(kWhat, "truncated");
  event->kind = static_cast<DetokStreamEvent::Kind>(kind);
  switch (event->kind) {
    case DetokStreamEvent::Kind::kClose:
      return OkStatus();
    case DetokStreamEvent::Kind::kOpen: {
      event->request_id = std::string(in->GetBytes());
      if (!ReadFlag(in, &event->skip_special)) return Malformed(kWhat, "skip_special");
      event->emitted_tokens = in->Get<uint32_t>();
      const uint32_t num_stop = in->Get<uint32_t>();
      // No reserve: a count is believed only as far as there are bytes for it.
      for (uint32_t i = 0; in->ok() && i < num_stop; ++i) event->stop.emplace_back(in->GetBytes());
      if (!ReadFlag(in, &event->include_stop)) return Malformed(kWhat, "include_stop");
      event->min_tokens = in->Get<uint32_t>();
      break;
    }
    case DetokStreamEvent::Kind::kTokens:
      break;
    default:
      return Malformed(kWhat, "unknown kind of event");
  }
  event->offset = in->Get<uint32_t>();
  event->tokens = in->GetSpan<TokenId>();
  if (!ReadFlag(in, &event->last)) return Malformed(kWhat, "truncated");
  return OkStatus();
}

}  // namespace

void BuildDetokRequest(const DetokRequest& request, std::string* frame) {
  frame->clear();
  WireWriter out(frame);
  out.Put<uint32_t>(kRequestMagic);
  out.Put<uint32_t>(kDetokVersion);
  out.Put<uint64_t>(request.generation);
  out.Put<uint32_t>(static_cast<uint32_t>(request.events.size()));
  for (const DetokStreamEvent& event : request.events) PutEvent(event, &out);
}

Status ParseDetokRequest(std::string_view frame, DetokRequest* request) {
  *request = DetokRequest{};
  WireReader in(frame);
  RETURN_IF_ERROR(ReadHeader(&in, kRequestMagic, "request"));
  request->generation = in.Get<uint64_t>();
  const uint32_t num_events = in.Get<uint32_t>();
  if (!in.ok()) return Malformed("request", "truncated");
  for (uint32_t i = 0; i < num_events; ++i) {
    DetokStreamEvent event;
    RETURN_IF_ERROR(ReadEvent(&in, &event));
    request->events.push_back(std::move(event));
  }
  return in.AtEnd() ? OkStatus() : Malformed("request", "bytes after the end");
}

void BuildDetokReply(const DetokReply& reply, std::string* frame) {
  frame->clear();
  WireWriter out(frame);
  out.Put<uint32_t>(kReplyMagic);
  out.Put<uint32_t>(kDetokVersion);
  out.Put<uint32_t>(static_cast<uint32_t>(reply.kind));
  out.Put<uint32_t>(reply.incarnation);
  out.Put<uint64_t>(reply.generation);
  out.Put<uint32_t>(static_cast<uint32_t>(reply.texts.size()));
  for (const DetokText& text : reply.texts) {
    out.Put<uint64_t>(text.stream);
    out.Put<uint32_t>(text.num_tokens);
    out.PutBytes(text.text);
    out.PutBytes(text.held_back);
    out.Put<int32_t>(text.stop_index);
    out.Put<uint8_t>(text.last);
  }
}

Status ParseDetokReply(std::string_view frame, DetokReply* reply) {
  *reply = DetokReply{};
  WireReader in(frame);
  RETURN_IF_ERROR(ReadHeader(&in, kReplyMagic, "reply"));
  const uint32_t kind = in.Get<uint32_t>();
  if (kind != static_cast<uint32_t>(DetokReply::Kind::kHello) &&
      kind != static_cast<uint32_t>(DetokReply::Kind::kText)) {
    return Malformed("reply", "unknown kind");
  }
  reply->kind = static_cast<DetokReply::Kind>(kind);
  reply->incarnation = in.Get<uint32_t>();
  reply->generation = in.Get<uint64_t>();
  const uint32_t num_texts = in.Get<uint32_t>();
  for (uint32_t i = 0; in.ok() && i < num_texts; ++i) {
    DetokText text;
    text.stream = in.Get<uint64_t>();
    text.num_tokens = in.Get<uint32_t>();
    text.text = std::string(in.GetBytes());
    text.held_back = std::string(in.GetBytes());
    text.stop_index = in.Get<int32_t>();
    if (!ReadFlag(&in, &text.last)) return Malformed("reply", "truncated");
    // It goes into a protobuf string: one byte that is none would break the stream to the router.
    if (FindInvalidUtf8(text.text).has_value()) return Malformed("reply", "text is not UTF-8");
    if (text.stop_index < -1) return Malformed("reply", "stop_index");
    reply->texts.push_back(std::move(text));
  }
  if (!in.ok()) return Malformed("reply", "truncated");
  return in.AtEnd() ? OkStatus() : Malformed("reply", "bytes after the end");
}

}  // namespace flotilla

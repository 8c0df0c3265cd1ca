// Seeds of the targets detok_frames, grpc_session, router_frames and plan_link.
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/text/detok_frames.h"
#include "flotilla/v1/engine.pb.h"
#include "tests/fuzz/make_seeds.h"
#include "tests/support/http2_frames.h"
#include "worker_proc/comm/plan_link.h"

namespace flotilla::fuzz {
namespace {

void MakeGrpcSessions() {
  using testing::Frame;
  using testing::HeadersFrame;
  const std::string settings = Frame(testing::kSettings, 0, 0, "");
  const std::string head = settings + HeadersFrame({{":status", "200"}});
  const auto data = [](std::string_view bytes) { return Frame(testing::kData, 0, 1, bytes); };
  const auto save = [](const std::string& name, const std::string& bytes) {
    Save("grpc_session", name, "\x06" + bytes);
  };
  const auto end = [](const testing::HeaderList& headers) {
    return HeadersFrame(headers, testing::kEndStream);
  };
  const std::string messages = testing::GrpcMessage("one") + testing::GrpcMessage("") +
                               testing::GrpcMessage(std::string(300, 'x'));
  save("messages", head + data(messages.substr(0, 7)) + data(messages.substr(7)) +
                       end({{"grpc-status", "3"}, {"grpc-message", "a%20b%C3%a4%zz%4"}}));
  save("no-status", head + data(testing::GrpcMessage("m")) + end({{"other", "1"}}));
  save("odd-status", head + end({{"grpc-status", "99"}}));
  save("compressed", head + data(testing::GrpcMessage("m", 1)));
  save("large", head + data(std::string("\0\0\0\xff\xff", 5)));
  save("no-http2", "HTTP/1.1 400 Bad Request\r\n\r\n");
  save("goaway", settings + Frame(testing::kGoaway, 0, 0, std::string(8, '\0')));
  for (const char* status : {"400", "401", "403", "404", "503", "500"})
    save(std::string("http-") + status, settings + HeadersFrame({{":status", status}}) +
                                            Frame(testing::kData, testing::kEndStream, 1, "page"));
  for (const uint32_t error : {0u, 2u, 8u, 11u, 12u})
    save("reset-" + std::to_string(error),
         head + Frame(testing::kReset, 0, 1, testing::BigEndian(error, 4)));
}

DetokStreamEvent Event(DetokStreamEvent::Kind kind, uint64_t stream, std::vector<TokenId> tokens) {
  DetokStreamEvent event;
  event.kind = kind;
  event.stream = stream;
  event.tokens = std::move(tokens);
  return event;
}

void MakeDetokFrames() {
  using Kind = DetokStreamEvent::Kind;
  DetokRequest open;
  open.generation = 1;
  open.events.push_back(Event(Kind::kOpen, 1, {'a', 'b'}));
  open.events.back().stop = {"cd", "d", ""};
  open.events.back().emitted_tokens = 1;
  open.events.push_back(Event(Kind::kOpen, 2, {}));
  open.events.back().stop = {"b"};
  open.events.back().include_stop = true;
  open.events.back().min_tokens = 2;
  open.events.push_back(Event(Kind::kOpen, 3, {0xc3, 257}));
  open.events.back().last = true;
  DetokRequest tokens;
  tokens.generation = 1;
  tokens.events.push_back(Event(Kind::kTokens, 1, {'b', 'c', 'd', 'e'}));
  tokens.events.back().offset = 1;
  tokens.events.push_back(Event(Kind::kTokens, 2, {257, 258, 'b', 'b'}));
  tokens.events.push_back(Event(Kind::kTokens, 9, {'x'}));
  tokens.events.push_back(Event(Kind::kClose, 2, {}));
  DetokRequest wrong;  // rejected, or with a gap; and more ended streams than are remembered
  wrong.generation = 2;
  wrong.events.push_back(Event(Kind::kOpen, 1, {'a'}));
  wrong.events.back().emitted_tokens = 2;
  wrong.events.push_back(Event(Kind::kOpen, 2, {'a'}));
  wrong.events.back().stop = {std::string(33, 'x')};
  wrong.events.push_back(Event(Kind::kOpen, 3, {'a'}));
  wrong.events.push_back(Event(Kind::kTokens, 3, {'b'}));
  wrong.events.back().offset = 2;
  for (uint64_t stream = 10; stream < 16; ++stream) {
    wrong.events.push_back(Event(Kind::kOpen, stream, {'a'}));
    wrong.events.back().last = true;
  }
  std::string rejected;
  BuildDetokRequest(wrong, &rejected);
  std::string opening, going_on, hello, text;
  BuildDetokRequest(open, &opening);
  BuildDetokRequest(tokens, &going_on);
  DetokReply reply;
  reply.kind = DetokReply::Kind::kHello;
  reply.incarnation = 3;
  BuildDetokReply(reply, &hello);
  reply.kind = DetokReply::Kind::kText;
  reply.texts.push_back({.stream = 1, .num_tokens = 2, .text = "ab", .held_back = "c"});
  BuildDetokReply(reply, &text);
  Save("detok_frames", "requests", Pieces({opening, going_on, opening}));
  Save("detok_frames", "wrong", Pieces({rejected, opening}));
  Save("detok_frames", "replies", Pieces({hello, text}));
}

v1::RouterFrame SubmitFrame(uint64_t stream) {
  v1::RouterFrame frame;
  frame.mutable_submit()->set_stream_id(stream);
  v1::GenerateRequest* request = frame.mutable_submit()->mutable_request();
  for (int32_t id : {1, 2, 3}) request->mutable_token_ids()->add_ids(id);
  request->mutable_sampling()->set_temperature(0);
  return frame;
}

// Every field that validate.cc looks at, within its range.
v1::RouterFrame FullSubmitFrame() {
  v1::RouterFrame frame = SubmitFrame(2);
  v1::GenerateRequest* request = frame.mutable_submit()->mutable_request();
  request->set_model("m");
  request->set_request_id("r");
  request->set_idempotency_key("k");
  request->set_priority(3);
  request->set_deadline_ms(1000);
  v1::SamplingParams* sampling = request->mutable_sampling();
  sampling->set_temperature(1);
  sampling->set_top_p(0.5f);
  sampling->set_top_k(5);
  sampling->set_min_p(0.1f);
  sampling->set_presence_penalty(1);
  sampling->set_frequency_penalty(1);
  sampling->set_repetition_penalty(1.5f);
  (*sampling->mutable_logit_bias())[3] = 5;
  (*sampling->mutable_logit_bias())[1] = -5;
  sampling->set_n(1);
  sampling->set_best_of(1);
  v1::StopParams* stopping = request->mutable_stopping();
  stopping->set_max_tokens(9);
  stopping->set_min_tokens(2);
  stopping->add_stop("x");
  stopping->add_stop_token_ids(4);
  request->mutable_output()->set_logprobs(2);
  request->mutable_output()->set_prompt_logprobs(1);
  request->mutable_output()->set_skip_special_tokens(false);
  request->mutable_output()->set_return_token_ids(true);
  frame.mutable_submit()->add_resume()->add_output_ids(5);
  return frame;
}

v1::RouterFrame EmbedFrame(uint64_t stream) {
  v1::RouterFrame frame = SubmitFrame(stream);
  frame.mutable_submit()->mutable_request()->clear_sampling();
  frame.mutable_submit()->mutable_embed()->set_pooling(v1::EmbedRequest::POOLING_MEAN);
  return frame;
}

void MakeWrongEmbeds(const std::string& hello) {
  const std::pair<const char*, std::function<void(v1::Submit*)>> changes[] = {
      {"sampling", [](v1::Submit* s) { s->mutable_request()->mutable_sampling(); }},
      {"stopping", [](v1::Submit* s) { s->mutable_request()->mutable_stopping(); }},
      {"output", [](v1::Submit* s) { s->mutable_request()->mutable_output(); }},
      {"structured", [](v1::Submit* s) { s->mutable_request()->mutable_structured(); }},
      {"model", [](v1::Submit* s) { s->mutable_request()->set_model("other"); }},
      {"prompt", [](v1::Submit* s) { s->mutable_request()->clear_prompt(); }},
      {"length",
       [](v1::Submit* s) {
         s->mutable_request()->mutable_token_ids()->mutable_ids()->Resize(65, 1);
       }},
      {"pooling", [](v1::Submit* s) {
         s->mutable_embed()->set_pooling(static_cast<v1::EmbedRequest::Pooling>(9));
       }}};
  for (const auto& [name, change] : changes) {
    v1::RouterFrame frame = EmbedFrame(1);
    change(frame.mutable_submit());
    Save("router_frames", StrCat("embed-", name), Pieces({hello, frame.SerializeAsString()}));
  }
}

// One field out of its range each.
void MakeWrongSubmits(const std::string& hello) {
  using Request = v1::GenerateRequest;
  const std::pair<const char*, std::function<void(Request*)>> changes[] = {
      {"model", [](Request* r) { r->set_model("other"); }},
      {"id", [](Request* r) { r->set_request_id(std::string(129, 'x')); }},
      {"priority", [](Request* r) { r->set_priority(101); }},
      {"deadline", [](Request* r) { r->set_deadline_ms(0); }},
      {"structured", [](Request* r) { r->mutable_structured()->set_regex("x"); }},
      {"top_p", [](Request* r) { r->mutable_sampling()->set_top_p(0); }},
      {"n", [](Request* r) { r->mutable_sampling()->set_n(2); }},
      {"best_of", [](Request* r) { r->mutable_sampling()->set_best_of(2); }},
      {"bias", [](Request* r) { (*r->mutable_sampling()->mutable_logit_bias())[999] = 1; }},
      {"prompt", [](Request* r) { r->mutable_token_ids()->mutable_ids()->Resize(64, 1); }},
      {"no_prompt", [](Request* r) { r->clear_prompt(); }},
      {"empty", [](Request* r) { r->mutable_token_ids()->clear_ids(); }},
      {"max_tokens", [](Request* r) { r->mutable_stopping()->set_max_tokens(62); }},
      {"stop_id", [](Request* r) { r->mutable_stopping()->add_stop_token_ids(-1); }},
      {"stop_empty", [](Request* r) { r->mutable_stopping()->add_stop(""); }},
      {"stops",
       [](Request* r) {
         for (int i = 0; i < 17; ++i) r->mutable_stopping()->add_stop("x");
       }},
      {"stop_ids",
       [](Request* r) { r->mutable_stopping()->mutable_stop_token_ids()->Resize(65, 1); }},
      {"logprobs", [](Request* r) { r->mutable_output()->set_logprobs(21); }}};
  for (const auto& [name, change] : changes) {
    v1::RouterFrame frame = SubmitFrame(1);
    change(frame.mutable_submit()->mutable_request());
    Save("router_frames", StrCat("wrong-", name), Pieces({hello, frame.SerializeAsString()}));
  }
  v1::RouterFrame finished = FullSubmitFrame(), nan = FullSubmitFrame(), many = FullSubmitFrame();
  finished.mutable_submit()->mutable_resume(0)->set_finish_reason(v1::FINISH_REASON_STOP);
  nan.mutable_submit()->mutable_resume(0)->set_cumulative_logprob(
      std::numeric_limits<double>::quiet_NaN());
  many.mutable_submit()->mutable_resume(0)->mutable_output_ids()->Resize(9, 1);
  Save("router_frames", "wrong-resume",
       Pieces({hello, finished.SerializeAsString(), hello, nan.SerializeAsString(), hello,
               many.SerializeAsString()}));
}

void MakeRouterFrames() {
  v1::RouterFrame hello, again, abort, ping, text = SubmitFrame(3);
  hello.mutable_hello()->set_router_id("r");
  again = hello;
  v1::Reattach* reattach = again.mutable_hello()->add_reattach();
  reattach->set_stream_id(1);
  reattach->add_token_offset(1);
  again.mutable_hello()->add_reattach()->set_stream_id(9);
  abort.mutable_abort()->set_stream_id(1);
  ping.mutable_ping()->set_sent_ns(5);
  v1::RouterFrame keyed = SubmitFrame(1), detach = abort, other = hello, third = hello;
  keyed.mutable_submit()->mutable_keyed()->set_key(std::string(64, 'a'));
  detach.mutable_abort()->set_detach(true);
  other.mutable_hello()->set_router_id("s");
  third.mutable_hello()->set_router_id("t");
  Save("router_frames", "keyed",
       Pieces({hello.SerializeAsString(), keyed.SerializeAsString(), detach.SerializeAsString(),
               hello.SerializeAsString(), SubmitFrame(2).SerializeAsString(),
               detach.SerializeAsString()}));
  v1::RouterFrame batch;
  for (const v1::RouterFrame& frame : {keyed, SubmitFrame(2), abort, ping})
    *batch.mutable_batch()->add_frames() = frame;
  Save("router_frames", "batch", Pieces({hello.SerializeAsString(), batch.SerializeAsString()}));
  Save("router_frames", "three-routers",
       Pieces({hello.SerializeAsString(), SubmitFrame(1).SerializeAsString(),
               other.SerializeAsString(), SubmitFrame(1).SerializeAsString(),
               third.SerializeAsString()}));
  text.mutable_submit()->mutable_request()->set_text("hi");
  MakeWrongSubmits(hello.SerializeAsString());
  MakeWrongEmbeds(hello.SerializeAsString());
  const auto pieces = [](const std::vector<v1::RouterFrame>& frames) {
    std::vector<std::string> bytes;
    for (const v1::RouterFrame& frame : frames) bytes.push_back(frame.SerializeAsString());
    return Pieces(bytes);
  };
  Save("router_frames", "submits",
       pieces({hello, SubmitFrame(1), FullSubmitFrame(), ping, text, abort}));
  Save("router_frames", "embeds", pieces({hello, EmbedFrame(1), SubmitFrame(2), ping}));
  Save("router_frames", "reattaches",
       pieces({hello, SubmitFrame(1), SubmitFrame(2), {}, again, ping, {}, again, {}, {}, hello}));
}

std::string Framed(PlanFrame kind, const std::string& body) {
  return Raw(static_cast<uint32_t>(kind)) + Raw(static_cast<uint32_t>(body.size())) + body;
}

void MakePlanLink() {
  const RankConfig alike = {{"--tp", "2"}, {"--isa", "avx2"}}, other = {{"--tp", "3"}};
  std::string body;
  for (const RankConfig& config : {alike, other, RankConfig{{"--tp", "2"}, {"--isa", "avx512"}},
                                   RankConfig{{"--tp", "2"}, {"--pin", "1"}}, RankConfig(65)}) {
    BuildRankConfig(config, &body);
    Save("plan_link", StrCat("config-", config.size(), config[0].second, config.back().second),
         Framed(PlanFrame::kConfig, body));
  }
  std::string talk;
  BuildHeadControl({7, true, false}, &body);
  talk += Framed(PlanFrame::kWelcome, body);
  BuildHeadControl({8, false, true}, &body);
  talk += Framed(PlanFrame::kControl, body) + Framed(PlanFrame::kPlan, "plan");
  RankReport report{.state = 3, .ready_epoch = 7, .heartbeat_age_ns = 5, .backend = "cpu-avx2"};
  BuildRankReport(report, &body);
  talk += Framed(PlanFrame::kReport, body);
  report.backend = std::string(100, 'x');
  BuildRankReport(report, &body);
  Save("plan_link", "talk", talk + Framed(PlanFrame::kReport, body));
  Save("plan_link", "kind", Raw(uint32_t{9}) + Raw(uint32_t{0}));
  Save("plan_link", "long", Raw(uint32_t{5}) + Raw(uint32_t{513}));
  Save("plan_link", "control", Framed(PlanFrame::kControl, std::string(6, '\2')));
}

}  // namespace

void SaveFrames() {
  MakeDetokFrames();
  MakeGrpcSessions();
  MakeRouterFrames();
  MakePlanLink();
}

}  // namespace flotilla::fuzz

// HTTP itself: routes, limits, time-outs, keep-alive, pipelining, disconnects, slow readers.
#include "router/http/http_server.h"

#include <gtest/gtest.h>

#include <future>

#include "router/http/http_message.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":2,"seed":1})";
constexpr const char* kStream =
    R"({"model":"smol","prompt":"Hi","max_tokens":50,"seed":1,"stream":true})";

TEST(HttpRoutesTest, AnswersItsPaths) {
  RouterHarness harness;
  EXPECT_EQ(Get(harness.port(), "/health/live").body, R"({"status":"SERVING"})");
  EXPECT_EQ(Get(harness.port(), "/health/ready").status, 200);
  EXPECT_EQ(Get(harness.port(), "/health").status, 200);
  EXPECT_NE(Get(harness.port(), "/version").body.find("\"version\":\""), std::string::npos);
  const HttpAnswer models = Get(harness.port(), "/v1/models?limit=5");
  EXPECT_EQ(models.status, 200);
  EXPECT_EQ(models.headers.at("content-type"), "application/json");
  const boost::json::value root = ParseOrFail(models.body);
  EXPECT_EQ(root.at("data").at(0).at("id"), "smol");
  EXPECT_EQ(root.at("data").at(0).at("max_model_len").as_int64(), 2048);
  EXPECT_EQ(Get(harness.port(), "/v1/models/smol").status, 200);
  EXPECT_EQ(Get(harness.port(), "/v1/models/sm%6Fl").status, 200);
  EXPECT_EQ(ErrorField(Get(harness.port(), "/v1/models/other"), "code"), "model_not_found");
}

TEST(HttpRoutesTest, TakesATargetAsProxiesAreAsked) {
  RouterHarness harness;
  for (const char* target : {"http://any.host/health/live", "https://any:1/health/live?a=/b"}) {
    HttpConnection connection(harness.port());
    connection.Send(StrCat("GET ", target, " HTTP/1.1\r\nHost: any\r\n\r\n"));
    EXPECT_EQ(connection.Read().status, 200) << target;
  }
  HttpConnection connection(harness.port());
  connection.Send("GET http://any.host HTTP/1.1\r\nHost: any\r\n\r\n");
  EXPECT_EQ(connection.Read().status, 404);
}

TEST(HttpRoutesTest, WrongPathsAndMethods) {
  RouterHarness harness;
  for (const char* path : {"/", "/v1", "/v1/completion", "/v1/models/", "//v1/models", "*"})
    EXPECT_EQ(Get(harness.port(), path).status, 404) << path;
  const HttpAnswer get = Get(harness.port(), "/v1/completions");
  EXPECT_EQ(get.status, 405);
  EXPECT_EQ(get.headers.at("allow"), "POST");
  EXPECT_EQ(Post(harness.port(), "/v1/models", "{}").status, 405);
  EXPECT_EQ(Get(harness.port(), "/v1/chat/completions").status, 405);
}

TEST(HttpRoutesTest, ErrorsHaveTheFormOfTheirApi) {
  RouterHarness harness;
  EXPECT_EQ(ErrorField(Get(harness.port(), "/v1/completions"), "type"), "invalid_request_error");
  const HttpAnswer get = Get(harness.port(), "/v1/messages");
  EXPECT_EQ(get.status, 405);
  EXPECT_EQ(ParseOrFail(get.body).at("type"), "error");
}

TEST(HttpRoutesTest, HeadHasTheLengthButNoBody) {
  RouterHarness harness;
  HttpConnection connection(harness.port());
  connection.Send("HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" + GetText("/version"));
  EXPECT_NE(connection.Read(/*to_head=*/true).headers.at("content-length"), "0");
  EXPECT_NE(connection.Read().body.find("version"), std::string::npos);
}

TEST(HttpRoutesTest, BodiesNeedALengthAndAType) {
  RouterHarness harness;
  HttpConnection no_length(harness.port());
  no_length.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
      "Content-Type: application/json\r\n\r\n");
  EXPECT_EQ(no_length.Read().status, 411);
  for (const char* type :
       {"", "Content-Type: text/plain\r\n", "Content-Type: application/jsonx\r\n"}) {
    HttpConnection connection(harness.port());
    connection.Send(StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\n", type,
                           "Content-Length: 2\r\n\r\n{}"));
    EXPECT_EQ(connection.Read().status, 415) << type;
  }
  HttpConnection charset(harness.port());
  charset.Send(
      StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
             "content-type: Application/JSON; charset=utf-8\r\nContent-Length: ",
             std::string(kBody).size(), "\r\n\r\n", kBody));
  EXPECT_EQ(charset.Read().status, 200);
}

TEST(HttpRoutesTest, BodiesAreNotCompressed) {
  RouterHarness harness;
  const auto post = [&](const std::string& encodings) {
    HttpConnection connection(harness.port());
    connection.Send(PostText("/v1/completions", kBody, encodings));
    return connection.Read();
  };
  for (const char* encoding : {"gzip", "br", "identity, gzip"}) {
    const HttpAnswer answer = post(StrCat("Content-Encoding: ", encoding, "\r\n"));
    EXPECT_EQ(answer.status, 415) << encoding;
    EXPECT_EQ(ErrorField(answer, "message"), StrCat("The Content-Encoding '", encoding,
                                                    "' is not taken: send the body as it is."));
  }
  EXPECT_EQ(post("Content-Encoding: gzip\r\nContent-Encoding: identity\r\n").status, 415);
  EXPECT_EQ(post("Content-Encoding: Identity\r\n").status, 200);
}

TEST(HttpServerTest, NotReadyIs503WithRetryAfter) {
  HarnessOptions options;
  options.start_engines = false;
  RouterHarness harness(options);
  EXPECT_EQ(Get(harness.port(), "/health/live").status, 200);
  const HttpAnswer ready = Get(harness.port(), "/health/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.body, R"({"status":"NOT_SERVING"})");
  EXPECT_EQ(Get(harness.port(), "/health").body, ready.body);
  const HttpAnswer answer = harness.Complete(kBody);
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  EXPECT_EQ(ErrorField(answer, "type"), "service_unavailable_error");
  harness.AddEngine();
  harness.WaitAllReady();
  EXPECT_EQ(harness.Complete(kBody).status, 200);
}

TEST(HttpServerTest, KeepsConnectionsAndAnswersPipelinedRequestsInOrder) {
  RouterHarness harness;
  HttpConnection connection(harness.port());
  std::string requests;
  for (int i = 0; i < 20; ++i) {
    requests += i % 3 == 0 ? GetText("/version") : PostText("/v1/completions", kBody);
    if (i % 7 == 6) requests += GetText("/nowhere");
  }
  connection.Send(requests);
  for (int i = 0; i < 20; ++i) {
    const HttpAnswer answer = connection.Read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body.find("version") != std::string::npos, i % 3 == 0) << i;
    if (i % 7 == 6) {
      EXPECT_EQ(connection.Read().status, 404);
    }
  }
}

TEST(HttpServerTest, PipelinedBehindAStream) {
  RouterHarness harness;
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions", kStream) + GetText("/version"));
  EXPECT_EQ(Events(connection.Read().body).back(), "[DONE]");
  EXPECT_NE(connection.Read().body.find("version"), std::string::npos);
}

TEST(HttpServerTest, BytesOneByOne) {
  RouterHarness harness;
  HttpConnection connection(harness.port());
  for (char c : PostText("/v1/completions", kBody)) connection.Send({&c, 1});
  EXPECT_EQ(connection.Read().status, 200);
}

TEST(HttpServerTest, Http10ClosesAndIsNotChunked) {
  RouterHarness harness;
  HttpConnection plain(harness.port());
  plain.Send("GET /version HTTP/1.0\r\n\r\n");
  EXPECT_EQ(plain.Read().headers.at("connection"), "close");
  EXPECT_TRUE(plain.ReadsEof());

  HttpConnection stream(harness.port());
  stream.Send(
      StrCat("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
             "Content-Length: ",
             std::string(kStream).size(), "\r\n\r\n", kStream));
  const HttpAnswer answer = stream.Read();
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(Events(answer.body).back(), "[DONE]");

  HttpConnection kept(harness.port());
  kept.Send("GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(kept.Read().headers.at("connection"), "keep-alive");
  kept.Send("GET /version HTTP/1.0\r\n\r\n");
  EXPECT_EQ(kept.Read().status, 200);
}

TEST(HttpServerTest, Expect100ContinueAndChunkedBodies) {
  RouterHarness harness;
  HttpConnection connection(harness.port());
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
      "Content-Type: application/json\r\n";
  connection.Send(StrCat(
      head, "Expect: 100-continue\r\nContent-Length: ", std::string(kBody).size(), "\r\n\r\n"));
  EXPECT_EQ(connection.Read().status, 100);
  connection.Send(kBody);
  EXPECT_EQ(connection.Read().status, 200);

  const std::string body(kBody);
  connection.Send(
      StrCat(head, "Transfer-Encoding: chunked\r\n\r\n5\r\n", body.substr(0, 5), "\r\n"));
  char size[16];
  std::snprintf(size, sizeof(size), "%zx", body.size() - 5);
  connection.Send(StrCat(size, ";ext=1\r\n", body.substr(5), "\r\n0\r\n\r\n"));
  EXPECT_EQ(connection.Read().status, 200);

  // Refused before the body is sent.
  connection.Send(
      "POST /v1/nothing HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
      "Content-Length: 5\r\n\r\n");
  EXPECT_EQ(connection.Read().status, 404);
  HttpConnection other(harness.port());
  other.Send(StrCat(head, "Expect: 200-maybe\r\nContent-Length: 5\r\n\r\n"));
  EXPECT_EQ(other.Read().status, 417);
}

TEST(HttpServerTest, WhatIsNoHttpGets400) {
  RouterHarness harness;
  for (const char* text :
       {"hello\r\n\r\n", "GET\r\n\r\n", "GET /version\r\n\r\n",
        "GET /version HTTP/1.1\r\nHo st: x\r\n\r\n", "GET /version HTTP/1.1\r\n\r\n",
        "GET /version HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /version HTTP/1.1\r\nHost: x\r\nA: \x01\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: abc\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        // What proxies and servers may take for different ends of the body.
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked, identity\r\nContent-Length: 5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: gzip\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/completions HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://a\r\n"
        "Access-Control-Request-Method: POST\r\nTransfer-Encoding: gzip\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\nZZ\r\n"}) {
    HttpConnection connection(harness.port());
    connection.Send(text);
    const HttpAnswer answer = connection.Read();
    EXPECT_EQ(answer.status, 400) << text;
    EXPECT_EQ(ErrorField(answer, "type"), "invalid_request_error");
    EXPECT_TRUE(connection.ReadsEof());
  }
  HttpConnection version(harness.port());
  version.Send("GET /version HTTP/3.7\r\nHost: x\r\n\r\n");
  EXPECT_GE(version.Read().status, 400);
}

TEST(HttpServerTest, LimitsOfHeaderAndBody) {
  HarnessOptions options;
  options.http.max_header_bytes = 1000;
  options.http.max_body_bytes = 300;
  RouterHarness harness(options);
  HttpConnection header(harness.port());
  header.Send(GetText("/version", StrCat("X: ", std::string(2000, 'x'), "\r\n")));
  EXPECT_EQ(header.Read().status, 431);
  HttpConnection target(harness.port());
  target.Send(GetText("/" + std::string(5000, 'a')));
  EXPECT_EQ(target.Read().status, 431);

  const std::string big = StrCat(R"({"model":"smol","user":")", std::string(400, 'u'), "\"}");
  const HttpAnswer known = harness.Complete(big);
  EXPECT_EQ(known.status, 413);
  EXPECT_NE(ErrorField(known, "message").find("300"), std::string::npos);
  HttpConnection chunked(harness.port());
  chunked.Send(
      StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
             "\r\nTransfer-Encoding: chunked\r\n\r\n190\r\n",
             std::string(400, 'u')));
  EXPECT_EQ(chunked.Read().status, 413);
  EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"body_limit\"}"), 2);
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"header_limit\"}"), 2);
}

TEST(HttpServerTest, A413IsReadableByAClientThatSendsItAll) {
  HarnessOptions options;
  options.http.max_body_bytes = 1000;
  RouterHarness harness(options);
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions", std::string(20 << 20, 'x')));
  EXPECT_EQ(connection.Read().status, 413);
}

TEST(HttpServerTest, TimeOuts) {
  HarnessOptions options;
  options.http.header_timeout_ms = 500;
  options.http.body_timeout_ms = 500;
  options.http.idle_timeout_ms = 500;
  RouterHarness harness(options);
  HttpConnection header(harness.port());
  header.Send("GET /version HTT");
  EXPECT_EQ(header.Read().status, 408);
  EXPECT_TRUE(header.ReadsEof());
  HttpConnection body(harness.port());
  body.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 50\r\n\r\n{");
  EXPECT_EQ(body.Read().status, 408);
  HttpConnection silent(harness.port());
  EXPECT_TRUE(silent.ReadsEof()) << "nothing was asked, so nothing is answered";
  HttpConnection idle(harness.port());
  idle.Send(GetText("/version"));
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_TRUE(idle.ReadsEof());
}

TEST(HttpServerTest, AnswersMayTakeLongerThanTheTimeOuts) {
  HarnessOptions options;
  options.http.header_timeout_ms = options.http.body_timeout_ms = options.http.idle_timeout_ms =
      300;
  options.engine.heartbeat_ms = 100;
  RouterHarness harness(options);
  harness.engine().Hold();
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions", kBody));
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  // A heartbeat has come and gone, so more than the limits have passed.
  HttpConnection other(harness.port());
  EXPECT_TRUE(other.ReadsEof());
  harness.engine().RunFreely();
  EXPECT_EQ(connection.Read().status, 200);
}

TEST(HttpServerTest, AClientThatLeavesWhileWaitingAbortsItsRequest) {
  RouterHarness harness;
  harness.engine().Hold();
  HttpConnection closed(harness.port()), reset(harness.port());
  closed.Send(PostText("/v1/completions", kBody));
  reset.Send(PostText("/v1/completions", kStream));
  ASSERT_TRUE(harness.engine().WaitForSubmits(2));
  closed.Close();
  EXPECT_TRUE(harness.engine().WaitForAborts(1));
  reset.Reset();
  EXPECT_TRUE(harness.engine().WaitForAborts(2));
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_client_disconnects_total", 2));
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_requests_in_flight", 0));
}

TEST(HttpServerTest, AClientThatLeavesAStreamAbortsIt) {
  RouterHarness harness;
  harness.engine().Hold();
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions", kStream));
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().Release(2);
  ASSERT_NE(connection.ReadUntil("\n\n"), "");
  connection.Close();
  EXPECT_TRUE(harness.engine().WaitForAborts(1));
  EXPECT_EQ(harness.engine().active(), 0u);
}

TEST(HttpServerTest, ASlowReaderIsDroppedAndOthersGoOn) {
  HarnessOptions options;
  options.http.max_stream_buffer_bytes = 16 << 10;
  options.engine.max_model_len = 1'000'000;
  RouterHarness harness(options);
  HttpConnection slow(harness.port(), /*receive_buffer_bytes=*/4096);
  slow.Send(PostText("/v1/completions",
                     R"({"model":"smol","prompt":"Hi","max_tokens":60000,"stream":true})"));
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  EXPECT_EQ(TextOf(harness.Complete(kBody)).empty(), false);
  EXPECT_TRUE(harness.engine().WaitForAborts(1));
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_rejections_total{reason=\"slow_client\"}", 1));
}

// The echo of a long prompt with its logprobs is one piece.
TEST(HttpServerTest, APieceMayBeLargerThanTheBuffer) {
  HarnessOptions options;
  options.http.max_stream_buffer_bytes = 1 << 10;
  RouterHarness harness(options);
  const HttpAnswer answer = harness.Complete(
      StrCat(R"({"model":"smol","max_tokens":2,"stream":true,"echo":true,"prompt":")",
             std::string(1500, 'a'), "\"}"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.body.ends_with("[DONE]\n\n")) << answer.body;
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"slow_client\"}"), 0);
}

TEST(HttpServerTest, ManyStreamsAtOnceEachGetTheirOwn) {
  RouterHarness harness;
  std::vector<std::future<std::string>> streams;
  for (int i = 0; i < 50; ++i) {
    streams.push_back(std::async(std::launch::async, [&harness, i] {
      return StreamText(Events(harness
                                   .Complete(StrCat(R"({"model":"smol","prompt":[)", 100 + i,
                                                    R"(],"max_tokens":30,"seed":0,"stream":true})"))
                                   .body));
    }));
  }
  for (int i = 0; i < 50; ++i) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->add_ids(100 + i);
    request.mutable_stopping()->set_max_tokens(30);
    EXPECT_EQ(streams[static_cast<size_t>(i)].get(),
              GetTestModel().tokenizer->Decode(harness.engine().AnswerIds(request), true));
  }
  EXPECT_EQ(
      harness.Metric("flotilla_router_requests_total{code=\"200\",route=\"/v1/completions\"}"), 50);
}

TEST(HttpServerTest, APortInUseIsSaid) {
  RouterHarness harness;
  RouterOptions options;
  options.http.port = harness.port();
  options.dispatcher.replicas = {"unix:/nowhere"};
  RouterApp second(options);
  const Status status = second.Start();
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(std::string(status.message()).starts_with("--port: can't listen on 127.0.0.1:"));
  options.http.port = 0;
  options.grpc.grpc_port = harness.app().grpc_port();
  RouterApp third(options);
  const Status grpc_status = third.Start();
  ASSERT_FALSE(grpc_status.ok());
  EXPECT_TRUE(std::string(grpc_status.message()).starts_with("--grpc-port: can't listen on"));
}

}  // namespace
}  // namespace flotilla

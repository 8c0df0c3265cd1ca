// API keys end to end: who may call what, and what a tenant has of another. A test a rule of
// docs/api_keys.md.
#include <gtest/gtest.h>

#include "flotilla/v1/inference.grpc.pb.h"
#include "tests/router/keys_file.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

class AccessTest : public ::testing::Test {
 protected:
  void Start(const std::string& keys) {
    file_.Write(keys);
    HarnessOptions options;
    options.api_keys_file = file_.path();
    harness_ = std::make_unique<RouterHarness>(options);
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(
        StrCat("127.0.0.1:", harness_->app().grpc_port()), grpc::InsecureChannelCredentials()));
  }
  HttpAnswer Send(std::string_view request) {
    HttpConnection connection(harness_->port());
    connection.Send(request);
    return connection.Read();
  }
  HttpAnswer Complete(std::string_view key, std::string_view more = "") {
    return Send(PostText("/v1/completions",
                         StrCat(R"({"model":"smol","prompt":"Hi","max_tokens":2)", more, "}"),
                         StrCat("Authorization: Bearer ", key, "\r\n")));
  }
  grpc::Status Generate(const std::string& key) {
    grpc::ClientContext context;
    if (!key.empty()) context.AddMetadata("authorization", StrCat("Bearer ", key));
    v1::GenerateRequest request;
    request.set_text("Hi");
    request.mutable_stopping()->set_max_tokens(1);
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  }
  bool Abort(const std::string& key, const std::string& id) {
    grpc::ClientContext context;
    context.AddMetadata("x-api-key", key);
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortResponse response;
    EXPECT_TRUE(stub_->Abort(&context, request, &response).ok());
    return response.found();
  }
  // A prompt of so many tokens.
  static std::string LongBody(int tokens, int max_tokens) {
    std::string ids = "7";
    for (int i = 1; i < tokens; ++i) ids += ",7";
    return StrCat(R"({"model":"smol","prompt":[)", ids, R"(],"max_tokens":)", max_tokens, "}");
  }
  std::string LastTenant() { return harness_->engine().submits().back().tenant(); }

  const KeysFile file_;
  std::unique_ptr<RouterHarness> harness_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(AccessTest, EveryRouteButHealthAndThePagesFilesNeedsAKey) {
  Start(KeyLine("a", "one"));
  for (const HttpRoutes::Route& route : HttpRoutes::All()) {
    if (std::string_view(route.path) == "/ui/{file}") continue;  // of those below
    const bool open = std::string_view(route.path).starts_with("/health") ||
                      std::string_view(route.path) == "/ping";
    const bool get = std::string_view(route.method) == "GET";
    const HttpAnswer answer =
        get ? Get(harness_->port(), route.path) : Post(harness_->port(), route.path, "{}");
    EXPECT_EQ(answer.status, open ? 200 : 401) << route.path;
  }
  EXPECT_EQ(Get(harness_->port(), "/nothing").status, 401) << "not even what there is not";
  EXPECT_EQ(Get(harness_->port(), "/ui/nothing").status, 401);
  EXPECT_EQ(Get(harness_->port(), "/ui/").status, 200) << "a browser has no key yet";
  const HttpAnswer answer = Complete("two");
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(ErrorField(answer, "code"), "invalid_api_key");
  EXPECT_EQ(ErrorField(answer, "type"), "authentication_error");
  EXPECT_TRUE(harness_->engine().submits().empty());
  EXPECT_GT(harness_->Metric("flotilla_router_rejections_total{reason=\"api_key\"}"), 0);
}

TEST_F(AccessTest, EveryGrpcMethodNeedsAKey) {
  Start(KeyLine("a", "one"));
  const auto refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  };
  refused(Generate(""));
  refused(Generate("two"));
  grpc::ClientContext contexts[7];
  v1::GenerateResponse piece;
  auto chat = stub_->Chat(&contexts[0], {});
  EXPECT_FALSE(chat->Read(&piece));
  refused(chat->Finish());
  v1::EmbedResponse embed;
  refused(stub_->Embed(&contexts[1], {}, &embed));
  v1::TokenizeResponse tokenize;
  refused(stub_->Tokenize(&contexts[2], {}, &tokenize));
  v1::DetokenizeResponse detokenize;
  refused(stub_->Detokenize(&contexts[3], {}, &detokenize));
  v1::ApplyTemplateResponse rendered;
  refused(stub_->ApplyTemplate(&contexts[4], {}, &rendered));
  v1::ListModelsResponse models;
  refused(stub_->ListModels(&contexts[5], {}, &models));
  v1::AbortResponse aborted;
  refused(stub_->Abort(&contexts[6], {}, &aborted));
  // As many as the service has: a new one belongs into this test.
  EXPECT_EQ(
      v1::GenerateRequest::descriptor()->file()->FindServiceByName("Inference")->method_count(), 8);
}

TEST_F(AccessTest, AKeyIsABearerTokenOrXApiKey) {
  Start(KeyLine("a", "one"));
  EXPECT_EQ(Complete("one").status, 200);
  EXPECT_EQ(
      Send(PostText("/v1/completions", R"({"model":"smol","prompt":"Hi"})", "X-Api-Key: one\r\n"))
          .status,
      200);
  EXPECT_TRUE(Generate("one").ok());
}

TEST_F(AccessTest, ADisabledKeyIsForbidden) {
  Start(KeyLine("a", "one", "disabled"));
  EXPECT_EQ(Complete("one").status, 403);
  EXPECT_EQ(Generate("one").error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AccessTest, TheTenantIsTheSaltOfThePrefixCache) {
  Start(KeyLine("a", "one") + KeyLine("b", "two"));
  Complete("one");
  EXPECT_EQ(LastTenant(), "a");
  Complete("two", R"(,"stream":true)");
  EXPECT_EQ(LastTenant(), "b");
  Send(PostText("/v1/chat/completions",
                R"({"model":"smol","max_tokens":1,"messages":[{"role":"user","content":"Hi"}]})",
                "X-Api-Key: one\r\n"));
  EXPECT_EQ(LastTenant(), "a");
  Send(PostText("/v1/embeddings", R"({"model":"smol","input":"Hi"})", "X-Api-Key: two\r\n"));
  EXPECT_EQ(LastTenant(), "b");
  Generate("one");
  EXPECT_EQ(LastTenant(), "a");
  grpc::ClientContext context;
  context.AddMetadata("x-api-key", "two");
  v1::EmbedRequest request;
  request.set_text("Hi");
  v1::EmbedResponse response;
  EXPECT_TRUE(stub_->Embed(&context, request, &response).ok());
  EXPECT_EQ(LastTenant(), "b");
  EXPECT_EQ(harness_->engine().submits().size(), 6u);
}

TEST_F(AccessTest, AnotherTenantsRequestCantBeAborted) {
  Start(KeyLine("a", "one") + KeyLine("b", "two"));
  harness_->engine().Hold();
  HttpConnection connection(harness_->port());
  connection.Send(PostText("/v1/completions", R"({"model":"smol","prompt":"Hi"})",
                           "X-Request-Id: mine\r\nX-Api-Key: one\r\n"));
  ASSERT_TRUE(harness_->engine().WaitForSubmits(1));
  EXPECT_FALSE(Abort("two", "mine"));
  EXPECT_TRUE(Abort("one", "mine"));
  EXPECT_EQ(connection.Read().status, 200);
}

TEST_F(AccessTest, RequestsAMinuteAreLimited) {
  Start(KeyLine("a", "one", "requests-per-minute=1") + KeyLine("b", "two"));
  EXPECT_EQ(Complete("one").status, 200);
  const HttpAnswer refused = Complete("one");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(ErrorField(refused, "code"), "rate_limit_exceeded");
  EXPECT_GE(std::stoi(refused.headers.at("retry-after")), 1);
  EXPECT_EQ(Generate("one").error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Complete("two").status, 200) << "another tenant's business";
  EXPECT_EQ(harness_->Metric("flotilla_router_rejections_total{reason=\"tenant_limit\"}"), 2);
}

// What is about texts alone is a request, too; no token of it is computed, and it waits for nobody.
TEST_F(AccessTest, RequestsAboutTextsAreCounted) {
  const std::pair<const char*, const char*> forms[] = {
      {"/tokenize", R"({"model":"smol","prompt":"Hi"})"},
      {"/detokenize", R"({"model":"smol","tokens":[7]})"},
      {"/apply-template", R"({"model":"smol","messages":[{"role":"user","content":"Hi"}]})"},
      {"/v1/messages/count_tokens",
       R"({"model":"smol","messages":[{"role":"user","content":"Hi"}]})"}};
  for (const auto& [path, body] : forms) {
    Start(KeyLine("a", "one", "requests-per-minute=2 tokens-per-minute=1 concurrency=1"));
    const std::string request = PostText(path, body, "X-Api-Key: one\r\n");
    EXPECT_EQ(Send(request).status, 200) << path;
    EXPECT_EQ(Complete("one").status, 200) << path << " takes no token";
    const HttpAnswer refused = Send(request);
    EXPECT_EQ(refused.status, 429) << path;
    EXPECT_NE(refused.body.find("2 requests a minute"), std::string::npos) << refused.body;
    EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  }
}

TEST_F(AccessTest, GrpcsCallsAboutTextsAreCounted) {
  const auto code = [&](auto method, auto request, auto response) {
    grpc::ClientContext context;
    context.AddMetadata("x-api-key", "one");
    return (stub_.get()->*method)(&context, request, &response).error_code();
  };
  using Stub = v1::Inference::Stub;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("Hi");
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(7);
  v1::ChatRequest chat;
  chat.add_messages()->set_role("user");
  const auto all = [&](auto check) {
    check(code(&Stub::Tokenize, tokenize, v1::TokenizeResponse()));
    check(code(&Stub::Detokenize, detokenize, v1::DetokenizeResponse()));
    check(code(&Stub::ApplyTemplate, chat, v1::ApplyTemplateResponse()));
  };
  Start(KeyLine("a", "one", "requests-per-minute=3"));
  all([](grpc::StatusCode got) { EXPECT_EQ(got, grpc::StatusCode::OK); });
  all([](grpc::StatusCode got) { EXPECT_EQ(got, grpc::StatusCode::RESOURCE_EXHAUSTED); });
}

TEST_F(AccessTest, TokensAMinuteAreLimited) {
  Start(KeyLine("a", "one", "tokens-per-minute=2"));
  EXPECT_EQ(Complete("one").status, 200) << "what it takes is known afterwards";
  EXPECT_EQ(Complete("one").status, 429);
}

TEST_F(AccessTest, EveryChoiceIsCharged) {
  for (const int n : {1, 10}) {
    Start(KeyLine("a", "one", "tokens-per-minute=500"));
    EXPECT_EQ(Complete("one", StrCat(R"(,"seed":1,"n":)", n)).status, 200);
    EXPECT_EQ(
        Send(PostText("/v1/completions",
                      StrCat(R"({"model":"smol","prompt":"Hi","max_tokens":100,"n":)", n, "}"),
                      "Authorization: Bearer one\r\n"))
            .status,
        200);
    EXPECT_EQ(Complete("one").status, n == 1 ? 200 : 429) << n;
  }
}

// A second for each token that was taken too many.
TEST_F(AccessTest, WhoLeavesEarlyPaysForWhatWasComputed) {
  for (const int steps : {0, 5}) {
    Start(KeyLine("a", "one", "tokens-per-minute=60"));
    harness_->engine().Hold();
    HttpConnection connection(harness_->port());
    connection.Send(
        PostText("/v1/completions", LongBody(1000, 20), "Authorization: Bearer one\r\n"));
    ASSERT_TRUE(harness_->engine().WaitForSubmits(1));
    harness_->engine().Release(steps);
    ASSERT_TRUE(harness_->engine().WaitFor([&] { return harness_->engine().permits() == 0; }));
    connection.Close();
    ASSERT_TRUE(harness_->engine().WaitForAborts(1));
    harness_->engine().RunFreely();
    HttpAnswer next = Complete("one");  // the replica's word may still be on its way
    for (int i = 0; i < 10 && next.status == 200; ++i) next = Complete("one");
    ASSERT_EQ(next.status, 429);
    const int left = 1 + 1000 + steps - 60;
    EXPECT_LE(std::stoi(next.headers.at("retry-after")), left + 3 * 10);
    EXPECT_GE(std::stoi(next.headers.at("retry-after")), left - 20) << "of " << steps << " steps";
  }
}

TEST_F(AccessTest, ARepeatOfAKeyedRequestIsNotPaidForTwice) {
  Start(KeyLine("a", "one", "tokens-per-minute=2000"));
  const auto ask = [&](const std::string& key) {
    return Send(PostText("/v1/completions", LongBody(900, 4),
                         StrCat("Authorization: Bearer one\r\nIdempotency-Key: ", key, "\r\n")));
  };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ask("k").status, 200) << i;
  EXPECT_EQ(ask("l").status, 200);
  EXPECT_EQ(ask("l").status, 200);
  EXPECT_EQ(ask("m").status, 200) << "the bucket was not empty yet";
  EXPECT_EQ(ask("m").status, 429);
}

TEST_F(AccessTest, RequestsAtOnceAreLimited) {
  Start(KeyLine("a", "one", "concurrency=1"));
  harness_->engine().Hold();
  HttpConnection connection(harness_->port());
  connection.Send(
      PostText("/v1/completions", R"({"model":"smol","prompt":"Hi"})", "X-Api-Key: one\r\n"));
  ASSERT_TRUE(harness_->engine().WaitForSubmits(1));
  EXPECT_EQ(Complete("one").status, 429);
  connection.Close();
  ASSERT_TRUE(harness_->engine().WaitForAborts(1));
  ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_requests_in_flight", 0));
  harness_->engine().RunFreely();
  EXPECT_EQ(Complete("one").status, 200) << "one that was cancelled has left its place";
}

TEST_F(AccessTest, TheFileIsReadAgainWhenItChanges) {
  Start(KeyLine("a", "one"));
  EXPECT_EQ(Complete("two").status, 401);
  file_.Write(KeyLine("a", "two"));
  while (Complete("two").status != 200) {
  }
  EXPECT_EQ(Complete("one").status, 401);
}

TEST(OpenRouterTest, WithoutAFileEverybodyIsTheSameTenant) {
  RouterHarness harness;
  EXPECT_EQ(harness.Complete(R"({"model":"smol","prompt":"Hi"})").status, 200);
  EXPECT_EQ(harness.engine().submits()[0].tenant(), "");
}

}  // namespace
}  // namespace flotilla

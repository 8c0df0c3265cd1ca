#include "router/discovery/endpoint_slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/fake_kube_api.h"

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const ServiceName kEngine = {.service = "engine", .port = 50051};

TEST(ServiceNameTest, IsAServiceAndAPortOfItsNamespace) {
  const StatusOr<ServiceName> name = ParseServiceName("flotilla/engine:50051");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->kube_namespace, "flotilla");
  EXPECT_EQ(name->service, "engine");
  EXPECT_EQ(name->port, 50051);
  EXPECT_EQ(name->port_name, "");
  const StatusOr<ServiceName> own = ParseServiceName("engine:grpc");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->kube_namespace, "");
  EXPECT_EQ(own->port_name, "grpc");
  for (const char* wrong : {"", "engine", "engine:", ":1", "engine:0", "engine:65536", "/engine:1",
                            "a/b/c:1", "Engine:1", "engine:a b", "en&gine:1", "engine:-1"}) {
    const StatusOr<ServiceName> parsed = ParseServiceName(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_NE(std::string(parsed.status().message()).find("SERVICE:PORT"), std::string::npos);
  }
}

TEST(EndpointSlicesTest, AListIsAllThatThereIs) {
  EndpointSlices slices(kEngine);
  ASSERT_TRUE(slices
                  .TakeList(SliceListJson({{.name = "a", .ready = {"10.0.0.2", "10.0.0.1"}},
                                           {.name = "b", .ready = {"10.0.0.3", "10.0.0.1"}}},
                                          7))
                  .ok());
  EXPECT_THAT(slices.Addresses(),
              ElementsAre("10.0.0.1:50051", "10.0.0.2:50051", "10.0.0.3:50051"));
  EXPECT_EQ(slices.resource_version(), "7");
  ASSERT_TRUE(slices.TakeList(SliceListJson({{.name = "b", .ready = {"10.0.0.9"}}}, 9)).ok());
  EXPECT_THAT(slices.Addresses(), ElementsAre("10.0.0.9:50051"));
  ASSERT_TRUE(slices.TakeList(SliceListJson({}, 10)).ok());
  EXPECT_THAT(slices.Addresses(), IsEmpty());
}

TEST(EndpointSlicesTest, EventsChangeOneSlice) {
  EndpointSlices slices(kEngine);
  ASSERT_TRUE(slices.TakeList(SliceListJson({{.name = "a", .ready = {"10.0.0.1"}}}, 1)).ok());
  ASSERT_TRUE(
      slices.TakeEvent(SliceEventJson("ADDED", {.name = "b", .ready = {"10.0.0.2"}}, 2)).ok());
  EXPECT_THAT(slices.Addresses(), ElementsAre("10.0.0.1:50051", "10.0.0.2:50051"));
  ASSERT_TRUE(
      slices.TakeEvent(SliceEventJson("MODIFIED", {.name = "a", .ready = {"10.0.0.7"}}, 3)).ok());
  EXPECT_THAT(slices.Addresses(), ElementsAre("10.0.0.2:50051", "10.0.0.7:50051"));
  ASSERT_TRUE(slices.TakeEvent(SliceEventJson("DELETED", {.name = "b"}, 4)).ok());
  ASSERT_TRUE(slices.TakeEvent(SliceEventJson("DELETED", {.name = "unknown"}, 5)).ok());
  EXPECT_THAT(slices.Addresses(), ElementsAre("10.0.0.7:50051"));
  EXPECT_EQ(slices.resource_version(), "5");
  ASSERT_TRUE(slices
                  .TakeEvent(R"({"type":"BOOKMARK","object":{"kind":"EndpointSlice",)"
                             R"("metadata":{"resourceVersion":"12"}}})")
                  .ok());
  EXPECT_THAT(slices.Addresses(), ElementsAre("10.0.0.7:50051"));
  EXPECT_EQ(slices.resource_version(), "12");
}

TEST(EndpointSlicesTest, APodThatIsBeingDeletedIsGone) {
  EndpointSlices slices(kEngine);
  const FakeSlice slice = {.ready = {"10.0.0.1"}, .leaving = {"10.0.0.2"}};
  ASSERT_TRUE(slices.TakeList(SliceListJson({slice}, 1)).ok());
  EXPECT_THAT(slices.Addresses(), ElementsAre("10.0.0.1:50051"));
}

TEST(EndpointSlicesTest, APodNeedNotBeReady) {
  EndpointSlices slices(kEngine);
  ASSERT_TRUE(slices
                  .TakeList(R"({"metadata":{"resourceVersion":"1"},"items":[{"metadata":)"
                            R"({"name":"a"},"addressType":"IPv4","endpoints":[)"
                            R"({"addresses":["10.0.0.1"],"conditions":{"ready":false}},)"
                            R"({"addresses":["10.0.0.2"]}]}]})")
                  .ok());
  EXPECT_THAT(slices.Addresses(), ElementsAre("10.0.0.1:50051", "10.0.0.2:50051"));
}

TEST(EndpointSlicesTest, APortsNameIsLookedUpInEachSlice) {
  EndpointSlices named({.service = "engine", .port_name = "grpc"});
  const std::vector<FakeSlice> list = {{.name = "a", .ready = {"10.0.0.1"}, .port = 50051},
                                       {.name = "b", .ready = {"10.0.0.2"}, .port = 50052}};
  ASSERT_TRUE(named.TakeList(SliceListJson(list, 1)).ok());
  EXPECT_THAT(named.Addresses(), ElementsAre("10.0.0.1:50051", "10.0.0.2:50052"));
  EndpointSlices unknown({.service = "engine", .port_name = "http"});
  ASSERT_TRUE(unknown.TakeList(SliceListJson(list, 1)).ok());
  EXPECT_THAT(unknown.Addresses(), IsEmpty());
}

TEST(EndpointSlicesTest, PodsOfTwoFamiliesCountOnce) {
  EndpointSlices slices(kEngine);
  const FakeSlice v6 = {.name = "v6", .ready = {"fd00::1"}, .type = "IPv6"};
  const FakeSlice v4 = {.name = "v4", .ready = {"10.0.0.1"}};
  ASSERT_TRUE(slices.TakeList(SliceListJson({v6, v4}, 1)).ok());
  EXPECT_THAT(slices.Addresses(), ElementsAre("10.0.0.1:50051"));
  ASSERT_TRUE(slices.TakeEvent(SliceEventJson("DELETED", v4, 2)).ok());
  EXPECT_THAT(slices.Addresses(), ElementsAre("[fd00::1]:50051"));
}

TEST(EndpointSlicesTest, AnErrorAsksForTheListAgain) {
  EndpointSlices slices(kEngine);
  const Status status = slices.TakeEvent(
      R"({"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}})");
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_NE(std::string(status.message()).find("too old"), std::string::npos);
}

TEST(EndpointSlicesTest, WhatIsWrongChangesNothing) {
  EndpointSlices slices(kEngine);
  ASSERT_TRUE(slices.TakeList(SliceListJson({{.name = "a", .ready = {"10.0.0.1"}}}, 1)).ok());
  for (const char* wrong :
       {"", "{", "[]", "{}", R"({"items":[]})", R"({"metadata":{"resourceVersion":"2"}})",
        R"({"metadata":{"resourceVersion":"2"},"items":[1]})",
        R"({"metadata":{"resourceVersion":"2"},"items":[{"metadata":{}}]})"}) {
    EXPECT_EQ(slices.TakeList(wrong).code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  for (const char* wrong :
       {"", "null", R"({"type":"ADDED"})", R"({"type":"ADDED","object":{}})",
        R"({"type":"ADDED","object":{"metadata":{"resourceVersion":"3"}}})",
        R"({"type":"MOVED","object":{"metadata":{"name":"a","resourceVersion":"3"}}})"}) {
    EXPECT_EQ(slices.TakeEvent(wrong).code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  EXPECT_THAT(slices.Addresses(), ElementsAre("10.0.0.1:50051"));
  EXPECT_EQ(slices.resource_version(), "1");
}

}  // namespace
}  // namespace flotilla

#include "common/cli/figures_table.h"

#include "boost/json.hpp"
#include "gtest/gtest.h"

namespace flotilla {
namespace {

TEST(FiguresTableTest, ALineForEachInOrder) {
  EXPECT_EQ(FiguresTable({{"requests", 2},
                          {"max_kv_usage", 0.125},
                          {"latency_seconds", {{"p50", 0.25}, {"p99", 1}}}}),
            "requests                                2\n"
            "max_kv_usage                        0.125\n"
            "latency_seconds              p50 0.2500 p99 1.0000\n");
  EXPECT_EQ(FiguresTable({}), "");
}

// A run may end before its first load report: then there is no usage to tell of.
TEST(FiguresTableTest, WhatIsNotKnownIsADash) {
  EXPECT_EQ(FiguresTable({{"max_kv_usage", nullptr}, {"latency_seconds", {{"p50", nullptr}}}}),
            "max_kv_usage                            -\n"
            "latency_seconds              p50 -\n");
}

}  // namespace
}  // namespace flotilla

#include "shm/flight_ring.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>

namespace flotilla {
namespace {

Segment MakeSegment(size_t bytes = kMinFlightRingBytes) {
  auto segment = Segment::Create("flight-test", bytes);
  EXPECT_TRUE(segment.ok()) << segment.status();
  return *std::move(segment);
}

std::string Record(uint32_t i) {
  std::string record(4 + (i * 37) % 900, static_cast<char>('a' + i % 26));
  std::memcpy(record.data(), &i, sizeof(i));
  return record;
}

uint32_t Number(const std::string& record) {
  uint32_t i = 0;
  std::memcpy(&i, record.data(), sizeof(i));
  return i;
}

// The records are Record(n), Record(n + 1), …, up to `end`.
void ExpectTail(const std::vector<std::string>& records, uint32_t end) {
  ASSERT_FALSE(records.empty());
  const uint32_t first = Number(records[0]);
  ASSERT_EQ(records.size(), end - first);
  for (uint32_t i = first; i < end; ++i) ASSERT_EQ(records[i - first], Record(i)) << i;
}

TEST(FlightRingTest, KeepsAllUntilItIsFullThenTheNewest) {
  const Segment segment = MakeSegment();
  FlightRingWriter writer = *FlightRingWriter::Attach(&segment);
  EXPECT_TRUE(ReadFlightRing(segment)->empty());
  size_t bytes = 0;
  for (uint32_t i = 0; i < 2000; ++i) {
    ASSERT_TRUE(writer.Append(Record(i)));
    bytes += 8 + (Record(i).size() + 7) / 8 * 8;
    if (i % 97 != 0) continue;
    const auto records = ReadFlightRing(segment);
    ASSERT_TRUE(records.ok());
    ASSERT_NO_FATAL_FAILURE(ExpectTail(*records, i + 1));
    if (bytes <= writer.capacity()) {
      ASSERT_EQ(records->size(), i + 1);
      ASSERT_EQ(writer.overwritten_bytes(), 0u);
    }
  }
  EXPECT_GT(writer.overwritten_bytes(), 0u);
  size_t kept = 0;
  const auto all = ReadFlightRing(segment);
  ASSERT_TRUE(all.ok());
  for (const std::string& record : *all) kept += record.size();
  EXPECT_GT(kept, writer.capacity() * 9 / 10) << "no more is given up than must be";
}

TEST(FlightRingTest, RefusesWhatIsTooLong) {
  const Segment segment = MakeSegment();
  FlightRingWriter writer = *FlightRingWriter::Attach(&segment);
  EXPECT_FALSE(writer.Append(std::string(writer.capacity() / 4, 'x')));
  EXPECT_TRUE(writer.Append(std::string(writer.capacity() / 4 - 16, 'x')));
  EXPECT_TRUE(writer.Append(""));
  EXPECT_EQ(ReadFlightRing(segment)->size(), 2u);
}

TEST(FlightRingTest, AttachingStartsAfresh) {
  const Segment segment = MakeSegment();
  ASSERT_TRUE(FlightRingWriter::Attach(&segment)->Append("old"));
  ASSERT_TRUE(FlightRingWriter::Attach(&segment)->Append("new"));
  EXPECT_EQ(*ReadFlightRing(segment), std::vector<std::string>{"new"});
}

TEST(FlightRingTest, BytesThatAreNoRingAreRefused) {
  const Segment segment = MakeSegment();
  EXPECT_TRUE(absl::IsDataLoss(ReadFlightRing(segment).status()));
  const Segment small = MakeSegment(4096);
  EXPECT_TRUE(absl::IsInvalidArgument(FlightRingWriter::Attach(&small).status()));
  EXPECT_TRUE(absl::IsDataLoss(ReadFlightRing(small).status()));
}

// Any flipped byte costs records, never sense: what is read was written.
TEST(FlightRingTest, DamageIsNoticed) {
  const Segment segment = MakeSegment();
  FlightRingWriter writer = *FlightRingWriter::Attach(&segment);
  for (uint32_t i = 0; i < 400; ++i) ASSERT_TRUE(writer.Append(Record(i)));
  std::mt19937 random(5);
  auto* bytes = static_cast<uint8_t*>(segment.data());
  for (int round = 0; round < 300; ++round) {
    uint8_t& byte = bytes[random() % segment.size()];
    const uint8_t old = byte;
    byte ^= 1u << (random() % 8);
    const auto records = ReadFlightRing(segment);
    if (records.ok()) {
      for (const std::string& record : *records) ASSERT_EQ(record, Record(Number(record)));
    }
    byte = old;
  }
}

// A writer killed at a random moment leaves a tail of whole records.
TEST(FlightRingTest, SurvivesTheWritersDeath) {
  const Segment segment = MakeSegment();
  std::mt19937 random(6);
  for (int round = 0; round < 30; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FlightRingWriter writer = *FlightRingWriter::Attach(&segment);
      for (uint32_t i = 0;; ++i) writer.Append(Record(i));
    }
    // Until it has gone around at least once; then a little longer.
    std::vector<std::string> records;
    const uint32_t least = 300 + random() % 3000;
    while (records.empty() || Number(records.back()) < least) {
      auto read = ReadFlightRing(segment);
      if (read.ok() && !read->empty()) records = *std::move(read);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectTail(records, Number(records.back()) + 1)) << "while it lives";
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    records = *ReadFlightRing(segment);
    ASSERT_NO_FATAL_FAILURE(ExpectTail(records, Number(records.back()) + 1));
    std::memset(segment.data(), 0, segment.size());
  }
}

TEST(FlightRingTest, FilesHoldTheSameAndAreTheirOwners) {
  const std::string path = StrCat(::testing::TempDir(), "flight_ring_test_", getpid(), ".flight");
  unlink(path.c_str());
  const std::vector<std::string> records = {"one", "", std::string(5000, 'x')};
  ASSERT_TRUE(WriteFlightFile(path, records).ok());
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(*ReadFlightFile(path), records);
  EXPECT_FALSE(WriteFlightFile(path, records).ok()) << "it is there already";
  ASSERT_EQ(truncate(path.c_str(), status.st_size - 1), 0);
  EXPECT_TRUE(absl::IsDataLoss(ReadFlightFile(path).status()));
  ASSERT_EQ(truncate(path.c_str(), 5), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFlightFile(path).status()));
  unlink(path.c_str());
  EXPECT_TRUE(absl::IsNotFound(ReadFlightFile(path).status()));
}

}  // namespace
}  // namespace flotilla

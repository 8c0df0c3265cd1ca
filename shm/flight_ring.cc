#include "shm/flight_ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

namespace flotilla {
namespace {

constexpr uint32_t kMagic = 0x47494c46;  // "FLIG"
constexpr uint32_t kVersion = 2;

struct RecordHead {
  uint32_t length = 0;
  uint32_t checksum = 0;
};

// FNV-1a of words rather than bytes (a record may have megabytes), folded.
uint32_t Checksum(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325 ^ bytes.size();
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t length = std::min(bytes.size(), sizeof(word));
    std::memcpy(&word, bytes.data(), length);
    bytes.remove_prefix(length);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 32;
  }
  return static_cast<uint32_t>(hash ^ (hash >> 29));
}

uint64_t RecordBytes(uint64_t length) { return (sizeof(RecordHead) + length + 7) / 8 * 8; }

}  // namespace

struct FlightRingWriter::Header {
  uint32_t magic;
  uint32_t version;
  uint64_t capacity;
  alignas(64) std::atomic<uint64_t> oldest;   // where the first record that is kept begins
  alignas(64) std::atomic<uint64_t> written;  // behind the last one
};

FlightRingWriter::FlightRingWriter(const Segment* segment)
    : header_(static_cast<Header*>(segment->data())),
      data_(static_cast<char*>(segment->data()) + sizeof(Header)),
      capacity_((segment->size() - sizeof(Header)) / 8 * 8) {}

StatusOr<FlightRingWriter> FlightRingWriter::Attach(const Segment* segment) {
  if (segment->size() < kMinFlightRingBytes)
    return absl::InvalidArgumentError("flight ring: the segment is too small");
  FlightRingWriter writer(segment);
  std::memset(segment->data(), 0, segment->size());  // its memory is there from now on
  Header* header = new (segment->data()) Header{};
  header->capacity = writer.capacity_;
  header->version = kVersion;
  header->magic = kMagic;
  return writer;
}

void FlightRingWriter::Copy(uint64_t position, std::string_view bytes) {
  const uint64_t at = position % capacity_;
  const size_t first = std::min<uint64_t>(bytes.size(), capacity_ - at);
  std::memcpy(data_ + at, bytes.data(), first);
  std::memcpy(data_, bytes.data() + first, bytes.size() - first);
}

bool FlightRingWriter::Append(std::string_view record) {
  const uint64_t bytes = RecordBytes(record.size());
  if (bytes > capacity_ / 4) return false;
  const uint64_t begin = header_->written.load(std::memory_order_relaxed);
  uint64_t oldest = header_->oldest.load(std::memory_order_relaxed);
  while (begin + bytes - oldest > capacity_) {
    RecordHead head;  // 8-byte aligned, so it never wraps
    std::memcpy(&head, data_ + oldest % capacity_, sizeof(head));
    oldest += RecordBytes(head.length);
  }
  header_->oldest.store(oldest, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // given up before overwritten
  const RecordHead head{static_cast<uint32_t>(record.size()), Checksum(record)};
  Copy(begin, {reinterpret_cast<const char*>(&head), sizeof(head)});
  Copy(begin + sizeof(head), record);
  header_->written.store(begin + bytes, std::memory_order_release);
  return true;
}

uint64_t FlightRingWriter::overwritten_bytes() const {
  return header_->oldest.load(std::memory_order_relaxed);
}

uint64_t FlightRingWriter::written_bytes() const {
  return header_->written.load(std::memory_order_relaxed);
}

StatusOr<std::vector<std::string>> ReadFlightRing(const Segment& segment) {
  const auto no_ring = [] { return absl::DataLossError("flight ring: the segment holds none"); };
  if (segment.size() < kMinFlightRingBytes) return no_ring();
  const FlightRingWriter ring(&segment);
  const uint64_t capacity = ring.capacity_;
  if (ring.header_->magic != kMagic || ring.header_->version != kVersion ||
      ring.header_->capacity != capacity)
    return no_ring();
  const uint64_t written = ring.header_->written.load(std::memory_order_acquire);
  uint64_t position = ring.header_->oldest.load(std::memory_order_relaxed);
  if (position > written || written - position > capacity) return no_ring();
  const std::string copy(ring.data_, capacity);
  std::atomic_thread_fence(std::memory_order_acquire);
  // What was given up since may have been overwritten under our hands.
  position = std::max(position, ring.header_->oldest.load(std::memory_order_relaxed));

  if (position % 8 != 0 || written % 8 != 0) return no_ring();

  std::vector<std::string> records;
  while (position < written) {
    RecordHead head;
    std::memcpy(&head, copy.data() + position % capacity, sizeof(head));
    if (RecordBytes(head.length) > written - position) break;
    std::string& record = records.emplace_back(head.length, '\0');
    const uint64_t at = (position + sizeof(head)) % capacity;
    const size_t first = std::min<uint64_t>(head.length, capacity - at);
    std::memcpy(record.data(), copy.data() + at, first);
    std::memcpy(record.data() + first, copy.data(), head.length - first);
    if (Checksum(record) != head.checksum) {
      records.pop_back();
      break;
    }
    position += RecordBytes(head.length);
  }
  return records;
}

}  // namespace flotilla

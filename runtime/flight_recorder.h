// Flight recorder: what a rank has done last on its communicators, kept for the case that it fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "planner/ir/dtype.h"
#include "runtime/communicator.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// One operation. Times are nanoseconds since 1970, 0: not yet.
struct FlightRecord {
  static constexpr int64_t kNotFollowed = -1;  ///< a time that nobody looks for
  int32_t group = -1;                          ///< index into Programs::groups; -1: the world
  CommOp op = CommOp::kBarrier;
  int64_t sequence = 0;  ///< 1, 2 ... on its communicator
  int64_t bytes = 0;     ///< as GroupUse counts them
  planner::DType dtype = planner::DType::kF32;
  int64_t step =
      -1;  ///< where in the run it stands: step, and the executor's number of the op in it
  int64_t item = -1;
  int64_t enqueued_ns = 0, started_ns = 0, done_ns = 0;
  friend bool operator==(const FlightRecord&, const FlightRecord&) = default;
};

/// The last records, in a ring of fixed size. Thread-safe; allocates only when it is made.
class FlightRecorder {
 public:
  /// Keeps the last `capacity` records, >= 1.
  explicit FlightRecorder(size_t capacity);

  /// Adds a record and returns its number, 0, 1, ...
  int64_t Add(const FlightRecord& record);
  /// Sets a time of a record; without effect once the ring has passed it.
  void SetStarted(int64_t number, int64_t ns);
  void SetDone(int64_t number, int64_t ns);
  /// Oldest first.
  std::vector<FlightRecord> Snapshot() const;

 private:
  FlightRecord* Find(int64_t number);

  mutable std::mutex mutex_;
  std::vector<FlightRecord> ring_;
  int64_t added_ = 0;
};

/// Nanoseconds since 1970, now.
int64_t WallClockNs();

/// The words for a record that need the program: name of its group, label of its task.
struct FlightNames {
  std::function<std::string(int32_t group)> group;
  std::function<std::string(int64_t item)> item;
};

/// A rank's records as others read them.
struct FlightEntry {
  int rank = 0;
  FlightRecord record;
  std::string communicator;  ///< name of the group
  std::string item;          ///< "Forward(0,3), op 7 (all_reduce)"
};
std::vector<FlightEntry> Name(int rank, const std::vector<FlightRecord>& records,
                              const FlightNames& names);

/// One JSON object a line, and back. Lines that are none are an error (kInvalidInput) with the
/// number of the line.
std::string ToJsonLines(const std::vector<FlightEntry>& entries);
Result<std::vector<FlightEntry>> ParseJsonLines(const std::string& text);

}  // namespace meshwright::runtime

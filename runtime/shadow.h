// Shadow mode of the executor: runs the same program while looking for what a correct program never
// shows. It fills dead buffers with NaN, guards the bytes that no op owns, delays streams at random
// and records the order in which ops really ran. Results stay those of the plain executor.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "planner/ir/program.h"
#include "runtime/issue_order.h"
#include "topologies/status.h"

namespace meshwright::runtime {

struct ShadowOptions {
  uint64_t seed = 1;
  int64_t max_delay_us = 200;  ///< of the sleep before an op; 0: none
  double delay_share = 0.05;   ///< share of the ops that sleep first, 0..1
  /// Counter of the recorded ticks, shared by the ranks of one process. nullptr: a counter a rank,
  /// which orders only the ops of that rank.
  std::shared_ptr<std::atomic<int64_t>> clock;
};

/// When an op ran, in ticks of the shared counter.
struct OpRecord {
  int64_t step = 0;
  int32_t op = 0;  ///< index into IssueOrder::ops
  int64_t start = 0;
  int64_t end = 0;
};

inline constexpr size_t kAreaCount = 7;  ///< in the order of ArenaLayout

struct ShadowReport {
  int64_t high_water_bytes = 0;  ///< largest end offset of any operand touched
  /// The same by area, from the start of the area; 0: not touched.
  std::array<int64_t, kAreaCount> area_high_water_bytes{};
  int64_t filled_values = 0;      ///< how often a dead buffer was filled with NaN
  std::vector<OpRecord> records;  ///< by (step, op)
};

/// One rank's shadow. Before and After are called on the stream workers.
class Shadow {
 public:
  /// The arena must outlive the shadow. `guard` bytes before and behind it belong to the shadow.
  Shadow(const planner::RankProgram& program, const IssueOrder& order, std::byte* arena,
         int64_t guard, int64_t steps, int rank, const ShadowOptions& options);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  /// Delays, checks that all earlier ops with conflicting accesses are done, and fills what the op
  /// overwrites with NaN. kRunFailed: a race, naming both ops and the bytes.
  Status Before(const IssuedOp& op, int64_t step);
  /// Notes the op as done and fills with NaN what it was the last to use.
  void After(const IssuedOp& op, int64_t step);
  /// After the run: an error when guard bytes or bytes of no operand were changed.
  Status CheckGuards() const;
  ShadowReport TakeReport();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether the recorded order contains every planned edge: order within streams, event waits, and
/// the meeting of all partners of a collective or message. `reports[r]` is rank r's, all with one
/// clock.
Status CheckHappensBefore(const planner::Programs& programs,
                          const std::vector<ShadowReport>& reports);

}  // namespace meshwright::runtime

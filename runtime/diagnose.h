// Who is to blame when operations do not meet: the flight records of all ranks, compared.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/ir/program.h"
#include "runtime/flight_recorder.h"

namespace meshwright::runtime {

struct Diagnosis {
  int32_t group = -1;    ///< where operations do not meet
  int64_t sequence = 0;  ///< first one that does not
  int culprit = -1;      ///< rank that left something out or did something else; -1: not told apart
  std::string text;  ///< the whole finding: communicator, sequence number, ranks, operations, tasks
};

/// Looks at the groups that have an operation which is not done, and compares what their members
/// did at each sequence number that all of them have kept: operation, bytes and type, and the task
/// where tasks were the same before. A member that has not come as far as the others is the culprit
/// otherwise. nullopt when all members did the same, or the records do not reach back far enough.
std::optional<Diagnosis> Diagnose(const std::vector<FlightEntry>& entries,
                                  const std::vector<planner::Group>& groups);

/// "operation 12 (all_reduce of 4096 bytes fp32), step 3, Forward(0,3), op 7".
std::string ToText(const FlightEntry& entry);

}  // namespace meshwright::runtime

// What the shadow executor knows before it runs: who uses which bytes of the arena, in issue order.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/issue_order.h"

namespace meshwright::runtime {

/// An earlier op on another stream that shares bytes with an op, at least one of them writing.
struct Conflict {
  Dependency on;
  ByteRange bytes;  ///< some of the bytes that both use
};

/// A content of some bytes, from the op that overwrites them to the last that uses them.
struct Value {
  ByteRange bytes;
  int32_t uses = 0;  ///< ops, the writer included
};

struct ShadowAnalysis {
  std::vector<std::vector<Conflict>> conflicts;   ///< by op
  std::vector<Value> values;                      ///< that end within the step
  std::vector<std::vector<int32_t>> values_used;  ///< by op, indices into `values`
  std::vector<std::vector<ByteRange>>
      overwritten;                       ///< by op: bytes that it writes and does not read
  std::vector<ByteRange> dead_at_start;  ///< bytes that every step overwrites before use
  std::vector<ByteRange> unowned;        ///< bytes of no operand, parameter, gradient or moment
};

ShadowAnalysis AnalyzeForShadow(const planner::RankProgram& program, const IssueOrder& order);

}  // namespace meshwright::runtime

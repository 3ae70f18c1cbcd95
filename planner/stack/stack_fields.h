// The fields of a stack file, listed once for reader and writer; internal.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "planner/stack/stack_spec.h"

namespace meshwright::planner::stack::internal {

struct FlagField {
  const char* name;
  bool StackLowering::*member;
};
const std::vector<FlagField>& FlagFields();

inline constexpr std::array kShardingLevels = {ShardingLevel::kNone, ShardingLevel::kZero1,
                                               ShardingLevel::kZero2, ShardingLevel::kZero3};
inline constexpr std::array kSchedules = {Schedule::kOneForwardOneBackward, Schedule::kInterleaved,
                                          Schedule::kZeroBubbleH1};
inline constexpr std::array kFormats = {LinearFormat::kBf16,  LinearFormat::kFp16,
                                        LinearFormat::kFp8,   LinearFormat::kMxFp8,
                                        LinearFormat::kNvFp4, LinearFormat::kFp32};
inline constexpr std::array kModes = {LayerMode::kKeep, LayerMode::kSelective, LayerMode::kFull,
                                      LayerMode::kOffload};

/// The value whose ToString is `text`.
template <typename Enum, size_t N>
std::optional<Enum> ValueOf(const std::array<Enum, N>& values, std::string_view text) {
  for (const Enum value : values) {
    if (ToString(value) == text) return value;
  }
  return std::nullopt;
}

}  // namespace meshwright::planner::stack::internal

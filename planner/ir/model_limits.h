// Largest numbers that a model file may state. Far above any model, low enough that products of a
// few of them fit 64 bits; CheckModel bounds the parameters of the whole besides.
#pragma once

#include <cstdint>

namespace meshwright::planner::limits {

inline constexpr int64_t kHidden = int64_t{1} << 20;
inline constexpr int64_t kFfn = int64_t{1} << 22;
inline constexpr int64_t kHeads = int64_t{1} << 14;
inline constexpr int64_t kHeadDim = int64_t{1} << 14;
inline constexpr int64_t kRank = int64_t{1} << 20;
inline constexpr int64_t kVocab = int64_t{1} << 26;
inline constexpr int64_t kPositions = int64_t{1} << 31;
inline constexpr int64_t kLayers = 10000;
inline constexpr int64_t kExperts = int64_t{1} << 16;
inline constexpr int64_t kNextTokenLayers = 64;
inline constexpr int64_t kModules = 64;
inline constexpr int64_t kNameBytes = 200;
inline constexpr double kParameters = 1e15;

}  // namespace meshwright::planner::limits

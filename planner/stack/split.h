// Split: how a model is cut on one kind of cluster, for any stack; wider than what our own programs
// run (context, expert and expert-tensor parallelism, ZeRO-2 and -3, zero-bubble schedules).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::planner::stack {

/// What is divided over data-parallel ranks: nothing, optimizer states, gradients too, parameters
/// too (FSDP).
enum class ShardingLevel : uint8_t { kNone, kZero1, kZero2, kZero3 };
enum class Schedule : uint8_t { kOneForwardOneBackward, kInterleaved, kZeroBubbleH1 };
/// What a layer keeps for its backward pass: everything; all but the attention core; its input
/// only; everything, moved to host memory until backward.
enum class LayerMode : uint8_t { kKeep, kSelective, kFull, kOffload };
inline constexpr size_t kLayerModes = 4;
/// Number format of the linear layers; the rest is bf16 (fp16 under kFp16).
enum class LinearFormat : uint8_t { kBf16, kFp16, kFp8, kMxFp8, kNvFp4, kFp32 };
/// Which ranks follow one another behind tensor and context groups: data-parallel ones
/// ("tp-cp-dp-pp") or pipeline stages ("tp-cp-pp-dp").
enum class RankOrder : uint8_t { kDataInside, kStagesInside };

std::string_view ToString(ShardingLevel value);
std::string_view ToString(Schedule value);
std::string_view ToString(LayerMode value);
std::string_view ToString(LinearFormat value);
std::string_view ToString(RankOrder value);

/// ranks = tp cp dp pp. The tp cp dp ranks of a stage are also expert_tp ep expert_dp ranks for its
/// experts (Megatron's folded grid), so ep expert_tp divides tp cp dp.
struct Split {
  int64_t tp = 1;
  int64_t cp = 1;
  int64_t ep = 1;
  int64_t expert_tp = 1;
  int64_t pp = 1;
  int64_t virtual_stages = 1;
  int64_t dp = 1;
  int64_t micro_batch = 1;    ///< samples per data-parallel rank and micro-batch
  int64_t micro_batches = 1;  ///< per step and data-parallel rank
  bool sequence_parallel = false;
  ShardingLevel sharding = ShardingLevel::kNone;
  Schedule schedule = Schedule::kOneForwardOneBackward;
  LinearFormat format = LinearFormat::kBf16;
  RankOrder order = RankOrder::kDataInside;
  friend auto operator<=>(const Split&, const Split&) = default;

  int64_t ranks() const { return tp * cp * dp * pp; }
  int64_t expert_dp() const { return tp * cp * dp / (ep * expert_tp); }
};

/// "tp8 cp2 ep4 pp4x2 dp16 mb1x16 sp zero1 bf16": the short name used in tables.
std::string ShortName(const Split& split);

/// Layers of one kind on a stage, by what they keep.
struct ModeCounts {
  std::array<int64_t, kLayerModes> layers{};
  int64_t total() const {
    int64_t n = 0;
    for (const int64_t count : layers) n += count;
    return n;
  }
  friend auto operator<=>(const ModeCounts&, const ModeCounts&) = default;
};

/// What a pipeline stage holds: counts by layer kind of its contiguous range of layers.
struct StageContent {
  std::vector<ModeCounts> kinds;  ///< by layer kind of the module
  bool embedding = false;         ///< first stage
  bool head = false;              ///< last stage: final norm, logits, loss, multi-token prediction
  friend bool operator==(const StageContent&, const StageContent&) = default;
};

}  // namespace meshwright::planner::stack

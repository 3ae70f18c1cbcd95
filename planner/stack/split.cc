#include "planner/stack/split.h"

#include <fmt/format.h>

namespace meshwright::planner::stack {

std::string_view ToString(ShardingLevel value) {
  switch (value) {
    case ShardingLevel::kNone:
      return "none";
    case ShardingLevel::kZero1:
      return "zero1";
    case ShardingLevel::kZero2:
      return "zero2";
    case ShardingLevel::kZero3:
      return "zero3";
  }
  return "unknown";
}

std::string_view ToString(Schedule value) {
  switch (value) {
    case Schedule::kOneForwardOneBackward:
      return "1f1b";
    case Schedule::kInterleaved:
      return "interleaved";
    case Schedule::kZeroBubbleH1:
      return "zb-h1";
  }
  return "unknown";
}

std::string_view ToString(LayerMode value) {
  switch (value) {
    case LayerMode::kKeep:
      return "keep";
    case LayerMode::kSelective:
      return "selective";
    case LayerMode::kFull:
      return "full";
    case LayerMode::kOffload:
      return "offload";
  }
  return "unknown";
}

std::string_view ToString(LinearFormat value) {
  switch (value) {
    case LinearFormat::kBf16:
      return "bf16";
    case LinearFormat::kFp16:
      return "fp16";
    case LinearFormat::kFp8:
      return "fp8";
    case LinearFormat::kMxFp8:
      return "mxfp8";
    case LinearFormat::kNvFp4:
      return "nvfp4";
    case LinearFormat::kFp32:
      return "fp32";
  }
  return "unknown";
}

std::string_view ToString(RankOrder value) {
  switch (value) {
    case RankOrder::kDataInside:
      return "tp-cp-dp-pp";
    case RankOrder::kStagesInside:
      return "tp-cp-pp-dp";
  }
  return "unknown";
}

std::string ShortName(const Split& split) {
  std::string name = fmt::format("tp{}", split.tp);
  if (split.cp > 1) name += fmt::format(" cp{}", split.cp);
  if (split.ep > 1) name += fmt::format(" ep{}", split.ep);
  if (split.expert_tp > 1) name += fmt::format(" etp{}", split.expert_tp);
  name += fmt::format(" pp{}", split.pp);
  if (split.virtual_stages > 1) name += fmt::format("x{}", split.virtual_stages);
  name += fmt::format(" dp{} mb{}x{}", split.dp, split.micro_batch, split.micro_batches);
  if (split.sequence_parallel) name += " sp";
  if (split.sharding != ShardingLevel::kNone) name += fmt::format(" {}", ToString(split.sharding));
  if (split.schedule == Schedule::kZeroBubbleH1) {
    name += fmt::format(" {}", ToString(split.schedule));
  }
  name += fmt::format(" {}", ToString(split.format));
  if (split.order == RankOrder::kStagesInside) name += fmt::format(" {}", ToString(split.order));
  return name;
}

}  // namespace meshwright::planner::stack

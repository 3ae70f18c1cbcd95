#include "cost_models/work.h"

#include <array>
#include <utility>

namespace meshwright::cost {
namespace {

constexpr std::array<std::pair<Precision, std::string_view>, 6> kPrecisions = {{
    {Precision::kFp64, "fp64"},
    {Precision::kFp32, "fp32"},
    {Precision::kTf32, "tf32"},
    {Precision::kBf16, "bf16"},
    {Precision::kFp16, "fp16"},
    {Precision::kFp8, "fp8"},
}};

}  // namespace

std::string_view ToString(Precision precision) {
  for (const auto& [value, name] : kPrecisions) {
    if (value == precision) return name;
  }
  return "?";
}

std::optional<Precision> ParsePrecision(std::string_view text) {
  for (const auto& [value, name] : kPrecisions) {
    if (name == text) return value;
  }
  return std::nullopt;
}

std::string_view ToString(WorkKind kind) {
  switch (kind) {
    case WorkKind::kGemm:
      return "gemm";
    case WorkKind::kAttention:
      return "attention";
    case WorkKind::kMemory:
      return "memory";
    case WorkKind::kReduction:
      return "reduction";
    case WorkKind::kCollective:
      return "collective";
    case WorkKind::kHost:
      return "host";
  }
  return "?";
}

}  // namespace meshwright::cost

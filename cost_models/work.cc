#include "cost_models/work.h"

#include <array>
#include <utility>

namespace meshwright::cost {
namespace {

constexpr std::array<std::pair<Precision, std::string_view>, 7> kPrecisions = {{
    {Precision::kFp64, "fp64"},
    {Precision::kFp32, "fp32"},
    {Precision::kTf32, "tf32"},
    {Precision::kBf16, "bf16"},
    {Precision::kFp16, "fp16"},
    {Precision::kFp8, "fp8"},
    {Precision::kFp4, "fp4"},
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

int64_t BitsOf(Precision precision) {
  switch (precision) {
    case Precision::kFp64:
      return 64;
    case Precision::kFp32:
    case Precision::kTf32:
      return 32;
    case Precision::kBf16:
    case Precision::kFp16:
      return 16;
    case Precision::kFp8:
      return 8;
    case Precision::kFp4:
      return 4;
  }
  return 0;
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

// What one op asks of a device, as plain values. The planner fills them in from its op schema.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "topologies/units.h"

namespace meshwright::cost {

/// What the arithmetic units work in. Names: "fp64" "fp32" "tf32" "bf16" "fp16" "fp8" "fp4" (NVFP4:
/// 4-bit floats with a scale for every 16).
enum class Precision : uint8_t { kFp64, kFp32, kTf32, kBf16, kFp16, kFp8, kFp4 };
std::string_view ToString(Precision precision);
/// Bits of one operand element in memory, without scales; tf32 is kept as fp32.
int64_t BitsOf(Precision precision);
std::optional<Precision> ParsePrecision(std::string_view text);

enum class WorkKind : uint8_t {
  kGemm,        ///< a (batched) matrix product; m, n, k, batch
  kAttention,   ///< fused attention; head_dim, kv_length, causal, backward
  kMemory,      ///< elementwise and copies: bounded by memory traffic
  kReduction,   ///< norms, softmax, sums: bounded by memory traffic
  kCollective,  ///< priced by PriceCollective, not by PriceOp
  kHost,        ///< takes the device only its launch overhead
};
std::string_view ToString(WorkKind kind);

/// Work of one op on one rank. Sizes are >= 0; `flops` counts what is computed: 2 m n k for a
/// product, half of the square for causal attention.
struct Work {
  WorkKind kind = WorkKind::kMemory;
  Precision precision = Precision::kFp32;
  Flops flops;
  Bytes read;     ///< from device memory
  Bytes written;  ///< to device memory
  // kGemm
  int64_t m = 0;  ///< rows of the result
  int64_t n = 0;  ///< columns of the result
  int64_t k = 0;  ///< length of the sums
  int64_t batch = 1;
  /// A weight gradient that is added to an fp32 buffer: C += A^T B, rows of A are m long.
  bool accumulate = false;
  // kAttention
  int64_t head_dim = 0;
  int64_t kv_length = 0;  ///< keys that a query could look at, in tokens
  bool causal = false;
  bool backward = false;
  bool deterministic = false;  ///< the backward pass that adds in a fixed order
  /// Name of the kernel, for profiles that have a measured rate for it ("softmax"); may be empty.
  std::string kernel;
  friend bool operator==(const Work&, const Work&) = default;
};

}  // namespace meshwright::cost

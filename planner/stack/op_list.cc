#include "planner/stack/op_list.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace meshwright::planner::stack {

int BitsOf(LinearFormat format) {
  switch (format) {
    case LinearFormat::kFp32:
      return 32;
    case LinearFormat::kFp8:
    case LinearFormat::kMxFp8:
      return 8;
    case LinearFormat::kNvFp4:
      return 4;
    case LinearFormat::kBf16:
    case LinearFormat::kFp16:
      return 16;
  }
  return 16;
}

cost::Precision PrecisionOf(LinearFormat format) {
  switch (format) {
    case LinearFormat::kFp32:
      return cost::Precision::kTf32;
    case LinearFormat::kFp16:
      return cost::Precision::kFp16;
    case LinearFormat::kFp8:
    case LinearFormat::kMxFp8:
      return cost::Precision::kFp8;
    case LinearFormat::kNvFp4:
      return cost::Precision::kFp4;
    case LinearFormat::kBf16:
      return cost::Precision::kBf16;
  }
  return cost::Precision::kBf16;
}

bool HasFormat(const cost::DeviceProfile& profile, LinearFormat format) {
  // Tensor cores that scale blocks of 32 elements came with those for fp4 (Blackwell).
  if (format == LinearFormat::kMxFp8 && !PeakOf(profile, cost::Precision::kFp4).ok()) return false;
  return PeakOf(profile, PrecisionOf(format)).ok();
}

namespace internal {
namespace {

Bytes Rounded(double bytes) {
  return Bytes(static_cast<int64_t>(std::llround(bytes)));
}

/// Of what is not a linear layer.
cost::Precision HalfOf(LinearFormat format) {
  return format == LinearFormat::kFp16   ? cost::Precision::kFp16
         : format == LinearFormat::kFp32 ? cost::Precision::kTf32
                                         : cost::Precision::kBf16;
}

}  // namespace

StackOp& OpList::Append(Phase phase, cost::WorkKind kind) {
  StackOp& op = item_.ops.emplace_back();
  op.phase = phase;
  op.work.kind = kind;
  return op;
}

void OpList::AddProduct(Phase phase, int64_t m, int64_t n, int64_t k, int64_t batch, bool low) {
  StackOp& op = Append(phase, cost::WorkKind::kGemm);
  op.work.m = m;
  op.work.n = n;
  op.work.k = k;
  op.work.batch = batch;
  const LinearFormat format = context_.split.format;
  op.work.precision = low ? PrecisionOf(format) : HalfOf(format);
  const double in = low ? BitsOf(format) / 8.0 : context_.element_bytes();
  const double mk = static_cast<double>(m) * static_cast<double>(k);
  const double kn = static_cast<double>(k) * static_cast<double>(n);
  const double mn = static_cast<double>(m) * static_cast<double>(n);
  const auto copies = static_cast<double>(batch);
  op.work.flops = Flops(2 * mk * static_cast<double>(n) * copies);
  op.work.read = Rounded((mk + kn) * in * copies);
  op.work.written = Rounded(mn * context_.element_bytes() * copies);
}

void OpList::AddCast(Phase phase, double elements) {
  StackOp& op = Append(phase, cost::WorkKind::kMemory);
  op.cast = true;
  op.pointwise = true;
  op.work.read = Rounded(elements * context_.stack.factors.cast_bytes_per_element);
}

void OpList::AddLinear(const Linear& linear) {
  const bool low = linear.low_precision;
  const auto copies = static_cast<double>(linear.batch);
  const double x = static_cast<double>(linear.m) * static_cast<double>(linear.k) * copies;
  const double y = static_cast<double>(linear.m) * static_cast<double>(linear.n) * copies;
  const double w = static_cast<double>(linear.k) * static_cast<double>(linear.n) * copies;
  const bool casts = low && BitsOf(context_.split.format) < 16;
  if (casts) AddCast(Phase::kForward, x);
  AddProduct(Phase::kForward, linear.m, linear.n, linear.k, linear.batch, low);
  if (casts) AddCast(Phase::kBackwardInput, y);
  AddProduct(Phase::kBackwardInput, linear.m, linear.k, linear.n, linear.batch, low);
  AddProduct(Phase::kBackwardWeight, linear.n, linear.k, linear.m, linear.batch, low);
  item_.ops.back().work.accumulate = context_.stack.lowering.fused_weight_accumulation;
  if (!context_.stack.lowering.fused_weight_accumulation) {
    // The product writes 16 bits; a kernel adds them to the accumulated gradient.
    AddPointwise(Phase::kBackwardWeight,
                 w * (context_.element_bytes() + 2 * context_.stack.state.gradients));
  }
  if (linear.bias) AddPointwise(Phase::kBackwardWeight, y * context_.element_bytes());
}

void OpList::AddPointwise(Phase phase, double bytes, int launches, bool core) {
  StackOp& op = Append(phase, cost::WorkKind::kMemory);
  op.pointwise = true;
  op.core = core;
  op.launches = launches;
  op.work.read = Rounded(bytes);
}

void OpList::AddNormPass(Phase phase, double bytes) {
  AddPointwise(phase, bytes);
  const StackLowering& lowering = context_.stack.lowering;
  const char* kernels = lowering.library_norms    ? "torch"
                        : lowering.compiled_norms ? "torch_compile"
                                                  : "cudnn";
  // Profiles know RMS norms by library; a layer norm passes over the same bytes.
  item_.ops.back().work.kernel =
      std::string(phase == Phase::kForward ? "norm" : "norm_grad") + ".rms_norm@" + kernels;
}

void OpList::AddScores(Phase phase, double bytes) {
  AddPointwise(phase, bytes, 1, phase == Phase::kForward);
  item_.ops.back().scores = true;
}

void OpList::AddBatchedProduct(Phase phase, int64_t batch, int64_t m, int64_t n, int64_t k) {
  AddProduct(phase, m, n, k, batch, false);
  item_.ops.back().core = true;
}

void OpList::AddAttention(Phase phase, double flops, int64_t head_dim, int64_t keys, bool causal,
                          double bytes) {
  StackOp& op = Append(phase, cost::WorkKind::kAttention);
  op.core = true;
  op.work.precision = HalfOf(context_.split.format);
  op.work.flops = Flops(flops);
  op.work.head_dim = head_dim;
  op.work.kv_length = keys;
  op.work.causal = causal;
  op.work.backward = phase != Phase::kForward;
  op.work.read = Rounded(bytes);
}

void OpList::AddCollective(Phase phase, cost::CollectiveKind kind, double bytes, Group group,
                           bool hidden) {
  StackOp& op = Append(phase, cost::WorkKind::kCollective);
  op.collective = {kind, Rounded(bytes)};
  op.group = group;
  op.hidden = hidden;
}

}  // namespace internal
}  // namespace meshwright::planner::stack

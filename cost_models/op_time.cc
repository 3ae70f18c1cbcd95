#include "cost_models/op_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshwright::cost {
namespace {

struct Tile {
  int64_t m;
  int64_t n;
};
constexpr Tile kTiles[] = {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}};
constexpr int64_t kSplits[] = {1, 2, 4, 8};

double Blocks(int64_t size, int64_t tile) {
  const int64_t whole = (size + tile - 1) / tile;
  return static_cast<double>(whole);
}

}  // namespace

const GemmFit& FitFor(const GpuModel& gpu, Precision precision, const std::string& kernel) {
  for (const PrecisionGemmFit& item : gpu.gemm_precisions) {
    if (item.precision == precision) return item.fit;
  }
  for (const KernelGemm& item : gpu.kernel_gemm) {
    if (item.kernel == kernel) return item.fit;
  }
  return gpu.gemm;
}

int64_t SumsOf(const GemmShape& shape) {
  return shape.accumulate ? shape.m : shape.k;
}

int64_t AlignmentOf(int64_t elements, Precision precision) {
  const int64_t bytes = elements * BitsOf(precision) / 8;
  return bytes & -bytes;
}

bool AlignedRows(const GemmShape& shape) {
  return std::min(AlignmentOf(SumsOf(shape), shape.precision),
                  AlignmentOf(shape.n, shape.precision)) >= kAlignedRowBytes;
}

double AlignmentShare(const GemmShape& shape, const GemmFit& fit) {
  const int64_t sums = SumsOf(shape);
  double share = 1;
  const int64_t element = BitsOf(shape.precision);
  for (const AlignmentLoss& loss : fit.alignment) {
    const int64_t bits = loss.bytes * 8 * 2;  // a row at twice the bytes does not have the loss
    if (sums * element % bits != 0) share = std::min(share, loss.sums.value);
    if (shape.n * element % bits != 0) share = std::min(share, loss.columns.value);
  }
  return share;
}

Seconds GpuGemmTime(const GemmShape& shape, const GpuModel& gpu, FlopsPerSecond peak,
                    BytesPerSecond memory_bandwidth) {
  return GpuGemmTime(shape, FitFor(gpu, shape.precision), gpu.multiprocessors.value, peak,
                     memory_bandwidth);
}

Seconds GpuGemmTime(const GemmShape& shape, const GemmFit& fit, int64_t multiprocessors,
                    FlopsPerSecond peak, BytesPerSecond memory_bandwidth) {
  const auto units = static_cast<double>(multiprocessors);
  const double unit_rate =
      peak.value() / units * fit.max_efficiency.value * AlignmentShare(shape, fit);
  const double q = fit.quantisation.value;
  const double elements = static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                          static_cast<double>(shape.batch);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const auto tm = static_cast<double>(tile.m);
    const auto tn = static_cast<double>(tile.n);
    const double rate = unit_rate / (1 + fit.edge.value * (1 / tm + 1 / tn));
    const double tiles =
        Blocks(shape.m, tile.m) * Blocks(shape.n, tile.n) * static_cast<double>(shape.batch);
    for (const int64_t split : kSplits) {
      const auto s = static_cast<double>(split);
      const double x = tiles * s / units;
      const double waves = q * std::ceil(x) + (1 - q) * std::max(x, 1.0);
      double time =
          waves * 2 * tm * tn * (static_cast<double>(shape.k) / s + fit.depth.value) / rate;
      if (split > 1) time += 8 * s * elements / memory_bandwidth.value();
      best = std::min(best, time);
    }
  }
  if (shape.accumulate) best += fit.accumulation.value * 8 * elements / memory_bandwidth.value();
  return Seconds(best) + fit.fixed.value;
}

namespace {

/// The measured head sizes around the wanted one; both the same where it was measured or lies
/// beyond.
struct Neighbours {
  const AttentionRate* below = nullptr;
  const AttentionRate* above = nullptr;
  double part = 0;  ///< 0: as `below`, 1: as `above`
};

/// None where no entry has this precision and order of sums.
Neighbours Find(const Work& work, const GpuModel& gpu, Precision precision, bool deterministic) {
  const AttentionRate* below = nullptr;  // greatest head size <= the wanted one
  const AttentionRate* above = nullptr;  // least head size >= the wanted one
  for (const AttentionRate& entry : gpu.attention) {
    if (entry.backward != work.backward || entry.precision != precision ||
        entry.deterministic != deterministic) {
      continue;
    }
    if (entry.head_dim <= work.head_dim && (below == nullptr || entry.head_dim > below->head_dim)) {
      below = &entry;
    }
    if (entry.head_dim >= work.head_dim && (above == nullptr || entry.head_dim < above->head_dim)) {
      above = &entry;
    }
  }
  if (below == nullptr) return {above, above, 0};
  if (above == nullptr) return {below, below, 0};
  if (above->head_dim == below->head_dim) return {below, below, 0};
  const double part = static_cast<double>(work.head_dim - below->head_dim) /
                      static_cast<double>(above->head_dim - below->head_dim);
  return {below, above, part};
}

Neighbours FindNearest(const Work& work, const GpuModel& gpu) {
  for (const Precision precision : {work.precision, Precision::kBf16}) {
    for (const bool deterministic : {work.deterministic, false}) {
      const Neighbours found = Find(work, gpu, precision, deterministic);
      if (found.below != nullptr) return found;
    }
  }
  MW_CHECK(false);  // Validate: there are entries of bf16
  return {};
}

double RateAt(const AttentionRate& entry, const Work& work) {
  const double length = static_cast<double>(work.kv_length) * (work.causal ? 1 : 2);
  return entry.rate.value.value() * length / (length + entry.half_length.value);
}

}  // namespace

FlopsPerSecond GpuAttentionRate(const Work& work, const GpuModel& gpu) {
  const Neighbours found = FindNearest(work, gpu);
  return FlopsPerSecond(RateAt(*found.below, work) * (1 - found.part) +
                        RateAt(*found.above, work) * found.part);
}

Seconds GpuAttentionTime(const Work& work, const GpuModel& gpu) {
  const Neighbours found = FindNearest(work, gpu);
  const auto between = [&](double below, double above) {
    return below * (1 - found.part) + above * found.part;
  };
  const double queries = std::min(128.0, static_cast<double>(work.kv_length));
  // Two products forward; five backward: the scores again and four gradients.
  const double products = work.backward ? 5 : 2;
  const double block = 2 * products * queries * static_cast<double>(work.kv_length) *
                       static_cast<double>(work.head_dim);
  const double units = static_cast<double>(gpu.multiprocessors.value);
  const FlopsPerSecond rate = GpuAttentionRate(work, gpu);
  const double tail = between(found.below->tail.value, found.above->tail.value);
  const Seconds all = work.flops / rate + Seconds(tail * block * units / rate.value());
  // Where there are fewer blocks than multiprocessors, the longest one is what takes the time.
  const double endless = between(found.below->rate.value.value(), found.above->rate.value.value());
  return std::max(all, Seconds(block * units / endless));
}

double AttentionClock(const Work& work, const GpuModel& gpu, double otherwise) {
  const Neighbours found = FindNearest(work, gpu);
  const auto clock = [&](const AttentionRate& entry) {
    return entry.clock.value > 0 ? entry.clock.value : otherwise;
  };
  return clock(*found.below) * (1 - found.part) + clock(*found.above) * found.part;
}

double EffectiveBytes(const std::vector<EfficiencyPoint>& curve, Bytes bytes) {
  auto effective = [](const EfficiencyPoint& point) {
    return static_cast<double>(point.bytes) / point.efficiency.value;
  };
  const auto size = static_cast<double>(bytes.value());
  const auto above = std::lower_bound(
      curve.begin(), curve.end(), bytes.value(),
      [](const EfficiencyPoint& point, int64_t value) { return point.bytes < value; });
  if (above == curve.begin()) return size / curve.front().efficiency.value;
  if (above == curve.end()) return size / curve.back().efficiency.value;
  const EfficiencyPoint& below = *(above - 1);
  const double part =
      (size - static_cast<double>(below.bytes)) / static_cast<double>(above->bytes - below.bytes);
  return effective(below) + part * (effective(*above) - effective(below));
}

Seconds TrafficTime(const TrafficFit& fit, Bytes bytes, BytesPerSecond bandwidth) {
  return fit.latency.value + Seconds(EffectiveBytes(fit.curve, bytes) / bandwidth.value());
}

FlopsPerSecond CpuGemmRateOf(const GemmShape& shape, Precision precision, const CpuModel& cpu) {
  auto log_ratio = [](int64_t a, int64_t b) {
    return std::log2(static_cast<double>(std::max<int64_t>(a, 1)) / static_cast<double>(b));
  };
  double weights = 0;
  double sum = 0;
  for (const CpuGemmRate& entry : cpu.gemm) {
    if (entry.precision != precision) continue;
    const double dm = log_ratio(shape.m, entry.m);
    const double dn = log_ratio(shape.n, entry.n);
    const double dk = log_ratio(shape.k, entry.k);
    const double squared = dm * dm + dn * dn + dk * dk;
    if (squared == 0) return entry.rate.value;
    const double weight = 1 / (squared * squared);
    weights += weight;
    sum += weight * entry.rate.value.value();
  }
  MW_CHECK(weights > 0);
  return FlopsPerSecond(sum / weights);
}

}  // namespace meshwright::cost

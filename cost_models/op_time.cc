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

Seconds GpuGemmTime(const GemmShape& shape, const GpuModel& gpu, FlopsPerSecond peak,
                    BytesPerSecond memory_bandwidth) {
  const GemmFit& fit = gpu.gemm;
  const auto units = static_cast<double>(gpu.multiprocessors.value);
  const double unit_rate = peak.value() / units * fit.max_efficiency.value;
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
  return Seconds(best) + fit.fixed.value;
}

FlopsPerSecond GpuAttentionRate(const Work& work, const GpuModel& gpu) {
  const double length = static_cast<double>(work.kv_length) * (work.causal ? 1 : 2);
  auto rate_of = [&](const AttentionRate& entry) {
    return entry.rate.value.value() * length / (length + entry.half_length.value);
  };
  const AttentionRate* below = nullptr;  // greatest head size <= the wanted one
  const AttentionRate* above = nullptr;  // least head size >= the wanted one
  for (const AttentionRate& entry : gpu.attention) {
    if (entry.backward != work.backward) continue;
    if (entry.head_dim <= work.head_dim && (below == nullptr || entry.head_dim > below->head_dim)) {
      below = &entry;
    }
    if (entry.head_dim >= work.head_dim && (above == nullptr || entry.head_dim < above->head_dim)) {
      above = &entry;
    }
  }
  MW_CHECK(below != nullptr || above != nullptr);
  if (below == nullptr) return FlopsPerSecond(rate_of(*above));
  if (above == nullptr || above->head_dim == below->head_dim) {
    return FlopsPerSecond(rate_of(*below));
  }
  const double part = static_cast<double>(work.head_dim - below->head_dim) /
                      static_cast<double>(above->head_dim - below->head_dim);
  return FlopsPerSecond(rate_of(*below) * (1 - part) + rate_of(*above) * part);
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

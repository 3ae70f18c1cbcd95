#include "cost_models/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cost_models/clock.h"
#include "cost_models/op_time.h"

namespace meshwright::cost {
namespace {

// 2^60 ns, about 36 years: beyond any price, and sums of prices still fit.
constexpr double kLongestSeconds = 1152921504.0;

Nanoseconds Rounded(Seconds seconds) {
  return ToNanoseconds(Seconds(std::min(seconds.value(), kLongestSeconds)));
}

const CollectiveFit& FitOf(const GpuModel& gpu, CollectiveKind kind, bool in_switch) {
  const auto found = std::find_if(
      gpu.collectives.begin(), gpu.collectives.end(),
      [&](const CollectiveFit& fit) { return fit.kind == kind && fit.in_switch == in_switch; });
  MW_CHECK(found != gpu.collectives.end());
  return *found;
}

bool HasInSwitchFit(const GpuModel& gpu) {
  return std::any_of(gpu.collectives.begin(), gpu.collectives.end(),
                     [](const CollectiveFit& fit) { return fit.in_switch; });
}

// The measured entry for a group inside a host: of as many ranks, else of the next larger group; of
// NCCL where the carrier was not measured; nullptr: none.
const TrafficFit* FindTraffic(const GpuModel& gpu, const CollectiveWork& work,
                              const PathFacts& path) {
  const TrafficFit* best = nullptr;
  if (!work.traffic || path.hosts != 1) return best;
  for (const Carrier carrier : {work.carrier, Carrier::kNccl}) {
    for (const TrafficFit& fit : gpu.traffic) {
      if (fit.kind != work.kind || fit.traffic != *work.traffic || fit.carrier != carrier ||
          fit.ranks < path.ranks) {
        continue;
      }
      if (best == nullptr || fit.ranks < best->ranks) best = &fit;
    }
    if (best != nullptr) break;
  }
  return best;
}

// The entry with the longest name that the kernel's begins with; nullptr: none.
const KernelFit* FindKernel(const GpuModel& gpu, const std::string& kernel) {
  const KernelFit* best = nullptr;
  for (const KernelFit& fit : gpu.kernels) {
    if (!kernel.starts_with(fit.kernel)) continue;
    if (best == nullptr || fit.kernel.size() > best->kernel.size()) best = &fit;
  }
  return best;
}

// How the collectives use the path's network; NetworkFit without its sources.
struct Network {
  double efficiency = 1;
  Seconds overhead;
  Seconds ramp;
  Seconds ramp_half;
};

Network NetworkOf(const GpuModel& gpu, Fabric fabric) {
  for (const NetworkFit& fit : gpu.networks) {
    if (fit.fabric != fabric) continue;
    return {fit.efficiency.value, fit.overhead.value, fit.ramp.value, fit.ramp_half.value};
  }
  return {gpu.network_efficiency.value, gpu.network_overhead.value, Seconds(0), Seconds(0)};
}

// The rate measured for the work's kernel and precision; nullptr: none.
template <typename Rate>
const Rate* Find(const std::vector<Rate>& rates, const Work& work) {
  for (const Rate& rate : rates) {
    if (rate.precision == work.precision && rate.kernel == work.kernel) return &rate;
  }
  return nullptr;
}

}  // namespace

Result<CostModel> CostModel::Make(DeviceProfile profile, CostOptions options) {
  MW_RETURN_IF_ERROR(Validate(profile).WithContext("device profile '" + profile.name + "'"));
  for (const Precision precision : options.precisions) {
    if (profile.gpu) {
      MW_RETURN_IF_ERROR(PeakOf(profile, precision).status());
    } else if (precision != Precision::kFp32 && precision != Precision::kFp64) {
      return Unsupported("device profile '" + profile.name + "': CPUs have no measured rate for " +
                         std::string(ToString(precision)) + "; allowed: fp32, fp64");
    }
  }
  return CostModel(std::move(profile), std::move(options));
}

Seconds CostModel::ArithmeticTime(const Work& work) const {
  const bool product = work.kind == WorkKind::kGemm || work.kind == WorkKind::kAttention;
  MW_CHECK(!product || std::find(options_.precisions.begin(), options_.precisions.end(),
                                 work.precision) != options_.precisions.end());
  if (work.flops.value() == 0) return Seconds(0);
  if (profile_.cpu) return CpuArithmeticTime(work);
  if (!product) return Seconds(0);
  if (work.kind == WorkKind::kAttention) return GpuAttentionTime(work, *profile_.gpu);
  const GpuModel& gpu = *profile_.gpu;
  return GpuGemmTime({work.m, work.n, work.k, work.batch, work.precision, work.accumulate},
                     FitFor(gpu, work.precision, work.kernel), gpu.multiprocessors.value,
                     *PeakOf(profile_, work.precision), profile_.memory_bandwidth.value);
}

Seconds CostModel::CpuArithmeticTime(const Work& work) const {
  const CpuModel& cpu = *profile_.cpu;
  if (const CpuArithmeticRate* measured = Find(cpu.arithmetic, work)) {
    return work.flops / measured->rate.value;
  }
  if (work.kind == WorkKind::kGemm) {
    return work.flops / CpuGemmRateOf({work.m, work.n, work.k}, work.precision, cpu);
  }
  if (work.kind == WorkKind::kAttention) {
    const GemmShape scores{work.kv_length, work.kv_length, work.head_dim};
    return work.flops / CpuGemmRateOf(scores, work.precision, cpu);
  }
  return Seconds(0);
}

Seconds CostModel::MemoryTime(const Work& work) const {
  const Bytes bytes = work.read + work.written;
  if (profile_.gpu) {
    const bool product = work.kind == WorkKind::kGemm || work.kind == WorkKind::kAttention;
    if (const KernelFit* fit = FindKernel(*profile_.gpu, work.kernel)) {
      return bytes / (profile_.memory_bandwidth.value * fit->efficiency.value) + fit->fixed.value;
    }
    const Seconds fixed = product ? Seconds(0) : profile_.memory_fixed.value;
    return bytes / (profile_.memory_bandwidth.value * profile_.memory_efficiency.value) + fixed;
  }
  const CpuKernelRate* measured = Find(profile_.cpu->kernels, work);
  return bytes / (measured ? measured->rate.value : profile_.cpu->core_memory_bandwidth.value);
}

OpPrice CostModel::ExplainOp(const Work& work) const {
  MW_CHECK(work.kind != WorkKind::kCollective);
  MW_CHECK(work.flops.value() >= 0 && work.read.value() >= 0 && work.written.value() >= 0);
  MW_CHECK(work.m >= 0 && work.n >= 0 && work.k >= 0 && work.batch >= 0);
  OpPrice price;
  const bool graphs =
      options_.graphs && profile_.gpu && profile_.gpu->graph_launch.value.value() > 0;
  price.overhead = graphs ? profile_.gpu->graph_launch.value : profile_.launch_overhead.value;
  if (work.kind != WorkKind::kHost) {
    price.arithmetic = ArithmeticTime(work);
    if (profile_.gpu && ClockDecides(work)) price.arithmetic = options_.stretch * price.arithmetic;
    price.memory = MemoryTime(work);
  }
  const Seconds body = std::max(price.arithmetic, price.memory);
  price.time = Rounded(body + price.overhead);
  const Seconds whole = (work.read + work.written) / profile_.memory_bandwidth.value;
  const double share = body.value() > 0 ? whole.value() / body.value() : 0;
  price.memory_milli = static_cast<int32_t>(std::ceil(std::clamp(share, 0.0, 1.0) * 1000));
  return price;
}

CollectivePrice CostModel::ExplainCollective(const CollectiveWork& work,
                                             const PathFacts& path) const {
  MW_CHECK(Validate(path).ok() && work.bytes.value() >= 0);
  if (path.ranks == 1) return {};
  if (profile_.cpu) return PriceCpu(work, path);
  if (const TrafficFit* fit = FindTraffic(*profile_.gpu, work, path)) {
    return PriceTraffic(*fit, work, path);
  }
  CollectivePrice best = PriceGpu(CollectiveAlgorithm::kRing, work, path);
  if (work.kind != CollectiveKind::kAllReduce) return best;
  auto consider = [&](CollectiveAlgorithm algorithm) {
    const CollectivePrice other = PriceGpu(algorithm, work, path);
    if (other.time < best.time) best = other;
  };
  if (path.hosts > 1) consider(CollectiveAlgorithm::kHierarchical);
  if (path.hosts == 1 && path.in_switch_reduction && HasInSwitchFit(*profile_.gpu)) {
    consider(CollectiveAlgorithm::kInSwitch);
  }
  return best;
}

CollectivePrice CostModel::PriceGpu(CollectiveAlgorithm algorithm, const CollectiveWork& work,
                                    const PathFacts& path) const {
  const GpuModel& gpu = *profile_.gpu;
  // NCCL's NVLSTree: the switches add inside each host, a tree between them.
  const bool tree_of_switches = algorithm == CollectiveAlgorithm::kHierarchical &&
                                path.in_switch_reduction && path.ranks_per_host > 1 &&
                                HasInSwitchFit(gpu);
  const bool in_switch = algorithm == CollectiveAlgorithm::kInSwitch || tree_of_switches;
  const CollectiveFit& fit = FitOf(gpu, work.kind, in_switch);
  const Network network = NetworkOf(gpu, path.fabric);
  CollectivePrice price;
  price.algorithm = algorithm;
  price.beside = gpu.beside_communication.value;
  price.wire = CountWire(algorithm, work, path);
  const int64_t local_steps = tree_of_switches ? 2 : price.wire.local_steps;
  const auto more_steps = static_cast<double>(std::max<int64_t>(local_steps - 2, 0));
  price.overhead =
      fit.latency.value + more_steps * (fit.step.value + path.local_latency) +
      static_cast<double>(price.wire.network_steps) * (network.overhead + path.network_latency);
  if (price.wire.local_bytes.value() > 0) {
    const double share = 1 - fit.rank_loss.value / static_cast<double>(path.ranks_per_host);
    price.local = Seconds(EffectiveBytes(fit.curve, price.wire.local_bytes) /
                          (path.local_bandwidth.value() * share));
  }
  if (price.wire.network_bytes.value() > 0) {
    price.network = price.wire.network_bytes / (path.network_bandwidth * network.efficiency);
    if (network.ramp > Seconds(0)) {
      price.network += network.ramp * (price.network / (price.network + network.ramp_half));
    }
  }
  price.time = Rounded(price.overhead + std::max(price.local, price.network));
  return price;
}

CollectivePrice CostModel::PriceTraffic(const TrafficFit& fit, const CollectiveWork& work,
                                        const PathFacts& path) const {
  CollectivePrice price;
  price.wire = CountWire(CollectiveAlgorithm::kRing, work, path);
  price.beside = fit.beside.value > 0 ? fit.beside.value : profile_.gpu->beside_communication.value;
  price.overhead = fit.latency.value;
  price.local = TrafficTime(fit, price.wire.local_bytes, path.local_bandwidth) - price.overhead;
  price.time = Rounded(price.overhead + price.local);
  return price;
}

CollectivePrice CostModel::PriceCpu(const CollectiveWork& work, const PathFacts& path) const {
  const CpuModel& cpu = *profile_.cpu;
  CollectivePrice price;
  price.wire = CountWire(CollectiveAlgorithm::kRing, work, path);
  const auto more_steps =
      static_cast<double>(price.wire.local_steps + price.wire.network_steps - 1);
  price.overhead = cpu.collective_latency.value + more_steps * cpu.collective_step.value +
                   static_cast<double>(price.wire.network_steps) * path.network_latency;
  price.local = price.wire.local_bytes / cpu.collective_bandwidth.value;
  if (price.wire.network_bytes.value() > 0) {
    price.network = price.wire.network_bytes / path.network_bandwidth;
  }
  price.time = Rounded(price.overhead + std::max(price.local, price.network));
  return price;
}

}  // namespace meshwright::cost

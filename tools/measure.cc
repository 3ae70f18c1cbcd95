#include "tools/measure.h"

#include <algorithm>

#include "planner/predict/prices.h"
#include "topologies/cluster_io.h"

namespace meshwright::tools {
namespace {

topologies::Source Measured(const std::string& when) {
  return {topologies::Origin::kMeasured, when};
}

template <typename T>
cost::Sourced<T> Value(T value, const std::string& when) {
  return {value, Measured(when)};
}

/// The best rate of any product: the peak of a core as far as anybody can see it.
void AddPeaks(const runtime::CpuMeasurement& measured, const std::string& when,
              cost::DeviceProfile* profile) {
  for (const planner::DType dtype : {planner::DType::kF32, planner::DType::kF64}) {
    double best = 0.0;
    for (const runtime::CpuProductSample& s : measured.products) {
      if (s.dtype == dtype) best = std::max(best, s.flops_per_s);
    }
    if (best <= 0) continue;
    profile->peaks.push_back(
        {planner::PrecisionOf(dtype), Value(FlopsPerSecond(best), "fastest product, " + when)});
  }
}

}  // namespace

Result<cost::DeviceProfile> CpuProfile(const runtime::CpuMeasurement& measured, Bytes memory,
                                       const std::string& when) {
  cost::DeviceProfile profile;
  profile.name = "cpu";
  profile.description = "CPU ranks of the machine that was measured";
  profile.kind = topologies::DeviceKind::kCpu;
  profile.memory = Value(memory, when);
  profile.memory_bandwidth = Value(BytesPerSecond(measured.machine_bytes_per_s), when);
  profile.memory_efficiency = Value(1.0, "the bandwidth is what kernels reached, " + when);
  profile.launch_overhead = Value(Seconds(measured.op_core_s), when);
  AddPeaks(measured, when, &profile);
  cost::CpuModel& cpu = profile.cpu.emplace();
  cpu.cores = Value(int64_t{measured.cores}, when);
  cpu.core_memory_bandwidth = Value(BytesPerSecond(measured.core_bytes_per_s), when);
  for (const runtime::CpuProductSample& s : measured.products) {
    cpu.gemm.push_back(
        {planner::PrecisionOf(s.dtype), s.m, s.n, s.k, Value(FlopsPerSecond(s.flops_per_s), when)});
  }
  for (const runtime::CpuKernelSample& s : measured.kernels) {
    const std::string name = planner::KernelName(s.kind, s.attributes);
    const cost::Precision precision = planner::PrecisionOf(s.dtype);
    cpu.kernels.push_back({name, precision, Value(BytesPerSecond(s.bytes_per_s), when)});
    if (s.score_bytes_per_s > 0) {
      cpu.kernels.push_back({name + planner::kScoresSuffix, precision,
                             Value(BytesPerSecond(s.score_bytes_per_s), when)});
    }
    if (s.flops_per_s > 0) {
      cpu.arithmetic.push_back({name, precision, Value(FlopsPerSecond(s.flops_per_s), when)});
    }
    if (s.kind == planner::OpKind::kSend && s.dtype == planner::DType::kF32) {
      // Half of what the sender's core moves is payload.
      cpu.collective_bandwidth = Value(BytesPerSecond(s.bytes_per_s / 2), when);
    }
  }
  cpu.collective_latency = Value(Seconds(measured.rendezvous_core_s), when);
  cpu.collective_step = Value(Seconds(measured.member_core_s), when);
  MW_RETURN_IF_ERROR(cost::Validate(profile).WithContext("measured CPU profile"));
  return profile;
}

Result<topologies::Cluster> CpuCluster(const runtime::CpuMeasurement& measured, Bytes memory,
                                       int ranks, const std::string& when) {
  topologies::CpuHostOptions options;
  options.ranks = ranks;
  options.cores = measured.cores;
  options.memory = memory;
  options.latency = Seconds(measured.rendezvous_latency_s);
  options.source = Measured(when);
  for (const runtime::CpuKernelSample& s : measured.kernels) {
    if (s.kind == planner::OpKind::kSend) options.bandwidth = BytesPerSecond(s.bytes_per_s / 2);
  }
  return topologies::CpuCluster(options);
}

}  // namespace meshwright::tools

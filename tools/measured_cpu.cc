#include "tools/measured_cpu.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>

#include "planner/predict/prices.h"

namespace meshwright::tools {
namespace {

using topologies::Origin;
using topologies::Source;

template <typename T>
cost::Sourced<T> Measured(T value, const Source& source) {
  return {value, source};
}

/// Rate at which a lone message moves: what one rank sends a second.
double MessageRate(const runtime::CpuMeasurement& measured) {
  for (const runtime::CpuKernelSample& sample : measured.kernels) {
    if (sample.kind == planner::OpKind::kSend) return sample.bytes_per_s / 2;  // read and written
  }
  return measured.core_bytes_per_s / 2;
}

void AddKernels(const runtime::CpuMeasurement& measured, const Source& source,
                cost::CpuModel* cpu) {
  for (const runtime::CpuProductSample& s : measured.products) {
    cpu->gemm.push_back({planner::PrecisionOf(s.dtype), s.m, s.n, s.k,
                         Measured(FlopsPerSecond(s.flops_per_s), source)});
  }
  for (const runtime::CpuKernelSample& s : measured.kernels) {
    const std::string name = planner::KernelName(s.kind, s.attributes);
    const cost::Precision precision = planner::PrecisionOf(s.dtype);
    if (s.bytes_per_s > 0) {
      cpu->kernels.push_back({name, precision, Measured(BytesPerSecond(s.bytes_per_s), source)});
    }
    if (s.score_bytes_per_s > 0) {
      cpu->kernels.push_back({name + planner::kScoresSuffix, precision,
                              Measured(BytesPerSecond(s.score_bytes_per_s), source)});
    }
    if (s.flops_per_s > 0) {
      cpu->arithmetic.push_back({name, precision, Measured(FlopsPerSecond(s.flops_per_s), source)});
    }
  }
}

/// The best rate of any product: the peak of a core as far as anybody can see it.
void AddPeaks(const Source& source, cost::DeviceProfile* profile) {
  std::map<cost::Precision, double> best;
  for (const cost::CpuGemmRate& g : profile->cpu->gemm) {
    best[g.precision] = std::max(best[g.precision], g.rate.value.value());
  }
  for (const auto& [precision, rate] : best) {
    const Source of_peak = {Origin::kMeasured,
                            "fastest matrix product of one core; " + source.text};
    profile->peaks.push_back({precision, Measured(FlopsPerSecond(rate), of_peak)});
  }
}

}  // namespace

Result<MeasuredCpu> ToMeasuredCpu(const runtime::CpuMeasurement& measured,
                                  const topologies::LocalMachine& machine,
                                  const std::string& cpu_name) {
  const std::time_t now = std::time(nullptr);
  const Source source = {Origin::kMeasured,
                         fmt::format("meshwright calibrate on {} cores of {}, {:%Y-%m-%d}",
                                     measured.cores, cpu_name, fmt::gmtime(now))};
  MeasuredCpu out;
  cost::DeviceProfile& profile = out.profile;
  profile.name = "cpu";
  profile.description = cpu_name;
  profile.kind = topologies::DeviceKind::kCpu;
  profile.memory = {machine.memory, {Origin::kMeasured, "MemTotal of /proc/meminfo"}};
  profile.memory_bandwidth = Measured(BytesPerSecond(measured.machine_bytes_per_s), source);
  profile.memory_efficiency = {1.0, {Origin::kMeasured, "the bandwidth is what kernels reached"}};
  profile.launch_overhead = Measured(Seconds(measured.op_core_s), source);
  cost::CpuModel& cpu = profile.cpu.emplace();
  cpu.cores = Measured(int64_t{measured.cores}, source);
  cpu.core_memory_bandwidth = Measured(BytesPerSecond(measured.core_bytes_per_s), source);
  AddKernels(measured, source, &cpu);
  cpu.shared_core_efficiency = Measured(measured.shared_core_efficiency, source);
  cpu.collective_latency = Measured(Seconds(measured.rendezvous_core_s), source);
  cpu.collective_step = Measured(Seconds(measured.member_core_s), source);
  cpu.collective_bandwidth = Measured(BytesPerSecond(MessageRate(measured)), source);
  AddPeaks(source, &profile);
  MW_RETURN_IF_ERROR(cost::Validate(profile).WithContext("the measured CPU"));
  out.host.cores = machine.cores;
  out.host.memory = machine.memory;
  out.host.bandwidth = cpu.collective_bandwidth.value;
  out.host.latency = Seconds(measured.rendezvous_latency_s);
  out.host.source = source;
  return out;
}

}  // namespace meshwright::tools

#include "tools/cpu_profile.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>

#include "planner/ir/hash.h"
#include "planner/predict/prices.h"
#include "topologies/text.h"

namespace meshwright::tools {
namespace {

using topologies::Origin;
using topologies::Source;

// Kept measurements of another version are measured again.
constexpr int64_t kMeasurementVersion = 1;

template <typename T>
cost::Sourced<T> Measured(T value, const Source& source) {
  return {value, source};
}

/// "Intel(R) Xeon(R) ..." of /proc/cpuinfo.
std::string CpuName() {
  const auto text = topologies::ReadTextFile("/proc/cpuinfo", 64 << 20);
  if (!text.ok()) return "CPU of unknown name";
  for (const std::string_view line : topologies::SplitAt(*text, '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    if (topologies::Trim(line.substr(0, colon)) != "model name") continue;
    return std::string(topologies::Trim(line.substr(colon + 1)));
  }
  return "CPU of unknown name";
}

/// Paths of both files without their endings; empty without a cache folder.
std::string CacheStem(const topologies::LocalMachine& machine) {
  const std::string folder = CacheDir();
  if (folder.empty()) return "";
  const uint64_t key = planner::Hasher()
                           .Add(CpuName())
                           .Add(static_cast<int64_t>(machine.cores))
                           .Add(machine.memory.value())
                           .Add(kMeasurementVersion)
                           .value();
  return fmt::format("{}/cpu-{:016x}", folder, key);
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
    if (s.flops_per_s > 0) {
      cpu->arithmetic.push_back({name, precision, Measured(FlopsPerSecond(s.flops_per_s), source)});
    }
  }
}

Status Keep(const std::string& stem, const CpuMachine& cpu) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(stem).parent_path(), error);
  topologies::CpuHostOptions one = cpu.host;
  one.ranks = 1;
  MW_ASSIGN_OR_RETURN(const topologies::Cluster cluster, topologies::CpuCluster(one));
  MW_RETURN_IF_ERROR(
      WriteFileAtomically(stem + ".cluster.yaml", topologies::ToYaml(cluster.spec())));
  return WriteFileAtomically(stem + ".yaml", cost::ToYaml(cpu.profile));
}

/// Both files of the cache; an error when one is missing or does not read.
Result<CpuMachine> Kept(const std::string& stem, const topologies::LocalMachine& machine) {
  CpuMachine cpu;
  MW_ASSIGN_OR_RETURN(cpu.profile, cost::LoadDeviceProfile(stem + ".yaml"));
  MW_ASSIGN_OR_RETURN(const topologies::Cluster cluster,
                      topologies::LoadCluster(stem + ".cluster.yaml"));
  const topologies::HostSpec& host = cluster.HostSpecOf(0);
  if (host.links.size() != 1 || !cpu.profile.cpu) {
    return InvalidInput(fmt::format("{} does not hold what 'meshwright calibrate' writes", stem));
  }
  const topologies::Link& link = host.links.front();
  cpu.host.cores = machine.cores;
  cpu.host.memory = machine.memory;
  cpu.host.bandwidth = link.forward;
  cpu.host.latency = link.latency * 2.0;  // two links between any two ranks
  cpu.host.source = link.bandwidth_source;
  cpu.profile_path = stem + ".yaml";
  return cpu;
}

}  // namespace

cost::DeviceProfile ToDeviceProfile(const runtime::CpuMeasurement& measured,
                                    const topologies::LocalMachine& machine,
                                    const std::string& cpu_name) {
  const std::time_t now = std::time(nullptr);
  const Source source = {Origin::kMeasured,
                         fmt::format("meshwright calibrate on {} cores of {}, {:%Y-%m-%d}",
                                     measured.cores, cpu_name, fmt::gmtime(now))};
  cost::DeviceProfile profile;
  profile.name = "cpu";
  profile.description = cpu_name;
  profile.kind = topologies::DeviceKind::kCpu;
  profile.memory = {machine.memory, {Origin::kMeasured, "MemTotal of /proc/meminfo"}};
  profile.memory_bandwidth = Measured(BytesPerSecond(measured.machine_bytes_per_s), source);
  profile.memory_efficiency = {1.0, {Origin::kMeasured, "the bandwidth is what kernels reached"}};
  profile.launch_overhead = Measured(Seconds(measured.op_core_s), source);
  cost::CpuModel cpu;
  cpu.cores = Measured(int64_t{measured.cores}, source);
  cpu.core_memory_bandwidth = Measured(BytesPerSecond(measured.core_bytes_per_s), source);
  AddKernels(measured, source, &cpu);
  cpu.collective_latency = Measured(Seconds(measured.rendezvous_core_s), source);
  cpu.collective_step = Measured(Seconds(measured.member_core_s), source);
  cpu.collective_bandwidth = Measured(BytesPerSecond(MessageRate(measured)), source);
  std::map<cost::Precision, double> best;
  for (const cost::CpuGemmRate& g : cpu.gemm) {
    best[g.precision] = std::max(best[g.precision], g.rate.value.value());
  }
  for (const auto& [precision, rate] : best) {
    const Source of_peak = {Origin::kMeasured,
                            "fastest matrix product of one core; " + source.text};
    profile.peaks.push_back({precision, Measured(FlopsPerSecond(rate), of_peak)});
  }
  profile.cpu = std::move(cpu);
  return profile;
}

std::string CacheDir() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (std::string own = variable("MESHWRIGHT_CACHE_DIR"); !own.empty()) return own;
  if (std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/meshwright";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/meshwright";
  return "";
}

Result<CpuMachine> MeasureThisCpu(Output& output) {
  MW_ASSIGN_OR_RETURN(const topologies::LocalMachine machine, topologies::ProbeLocalMachine());
  const std::string stem = CacheStem(machine);
  output.Progress(
      fmt::format("measuring {} cores of this machine's CPU, some seconds ...", machine.cores));
  runtime::MeasureCpuOptions options;
  options.cores = machine.cores;
  MW_ASSIGN_OR_RETURN(const runtime::CpuMeasurement measured, runtime::MeasureCpu(options));
  CpuMachine cpu;
  cpu.profile = ToDeviceProfile(measured, machine, CpuName());
  MW_RETURN_IF_ERROR(cost::Validate(cpu.profile).WithContext("the measured CPU"));
  cpu.host.cores = machine.cores;
  cpu.host.memory = machine.memory;
  cpu.host.bandwidth = cpu.profile.cpu->collective_bandwidth.value;
  cpu.host.latency = Seconds(measured.rendezvous_latency_s);
  cpu.host.source = cpu.profile.cpu->collective_bandwidth.source;
  if (stem.empty()) {
    output.Warn(
        "no cache folder: set MESHWRIGHT_CACHE_DIR or HOME, or every command measures again");
    return cpu;
  }
  const Status kept = Keep(stem, cpu);
  if (kept.ok()) {
    cpu.profile_path = stem + ".yaml";
    output.Progress(fmt::format("kept in {}", cpu.profile_path));
  } else {
    output.Warn(
        fmt::format("the measurement is not kept ({}); set MESHWRIGHT_CACHE_DIR to a folder that "
                    "can be written",
                    kept.message()));
  }
  return cpu;
}

Result<CpuMachine> ThisCpu(Output& output) {
  MW_ASSIGN_OR_RETURN(const topologies::LocalMachine machine, topologies::ProbeLocalMachine());
  const std::string stem = CacheStem(machine);
  std::error_code error;
  if (!stem.empty() && std::filesystem::exists(stem + ".yaml", error)) {
    Result<CpuMachine> kept = Kept(stem, machine);
    if (kept.ok()) return kept;
    output.Warn(fmt::format("{}; measuring again", kept.status().message()));
  }
  return MeasureThisCpu(output);
}

}  // namespace meshwright::tools

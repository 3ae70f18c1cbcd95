#include "tools/cpu_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "planner/ir/hash.h"
#include "topologies/text.h"

namespace meshwright::tools {
namespace {

// Kept measurements of another version are measured again.
constexpr int64_t kMeasurementVersion = 3;

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
  MW_ASSIGN_OR_RETURN(runtime::CpuMeasurement measured, runtime::MeasureCpu(options));
  MW_RETURN_IF_ERROR(FitToPrograms(machine, &measured));
  MW_ASSIGN_OR_RETURN(MeasuredCpu found, ToMeasuredCpu(measured, machine, CpuName()));
  CpuMachine cpu{std::move(found), ""};
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

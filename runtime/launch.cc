#include "runtime/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "runtime/file_store.h"
#include "runtime/slurm_lists.h"
#include "runtime/tcp_socket.h"
#include "runtime/tcp_store.h"

namespace meshwright::runtime {
namespace {

constexpr int kMaxRanks = 1 << 20;
// Ports that follow from a run id: below those that systems give to outgoing connections.
constexpr uint32_t kFirstPort = 20000;
constexpr uint32_t kPorts = 12000;

/// What one launcher calls things. The first name of a list that is set counts.
struct Names {
  Launcher launcher;
  std::vector<const char*> rank, world, local_rank, local_world, node, run_id;
  bool has_master = false;    ///< sets MASTER_ADDR and MASTER_PORT itself
  bool borrows_size = false;  ///< `world` is another launcher's and alone says nothing
};

/// Stands for the tasks of this host in SLURM_STEP_TASKS_PER_NODE.
constexpr char kSlurmLocalTasks[] = "SLURM_STEP_TASKS_PER_NODE";

const std::vector<Names>& Launchers() {
  static const std::vector<Names> all = {
      {Launcher::kTorchrun,
       {"RANK"},
       {"WORLD_SIZE"},
       {"LOCAL_RANK"},
       {"LOCAL_WORLD_SIZE"},
       {"GROUP_RANK"},
       {"TORCHELASTIC_RUN_ID"},
       true},
      {Launcher::kOpenMpi,
       {"OMPI_COMM_WORLD_RANK"},
       {"OMPI_COMM_WORLD_SIZE"},
       {"OMPI_COMM_WORLD_LOCAL_RANK"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       {},
       {"PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports"}},
      {Launcher::kPmi,
       {"PMI_RANK"},
       {"PMI_SIZE"},
       {"MPI_LOCALRANKID", "SLURM_LOCALID"},
       {"MPI_LOCALNRANKS", kSlurmLocalTasks},
       {"SLURM_NODEID"},
       {"SLURM_JOB_ID"}},
      {Launcher::kPmi,
       {"PMIX_RANK"},
       {"SLURM_STEP_NUM_TASKS"},
       {"SLURM_LOCALID"},
       {kSlurmLocalTasks},
       {"SLURM_NODEID"},
       {"PMIX_NAMESPACE", "SLURM_JOB_ID"},
       false,
       true},
      {Launcher::kSlurm,
       {"SLURM_PROCID"},
       {"SLURM_STEP_NUM_TASKS"},
       {"SLURM_LOCALID"},
       {kSlurmLocalTasks},
       {"SLURM_NODEID"},
       {"SLURM_JOB_ID"}},
  };
  return all;
}

struct Variable {
  std::string name, value;
};

class Detector {
 public:
  explicit Detector(const EnvironmentLookup& environment) : environment_(environment) {}

  Result<LaunchFacts> Detect();

 private:
  std::optional<Variable> Find(const std::vector<const char*>& names) const {
    for (const char* name : names) {
      if (auto value = environment_(name)) return Variable{name, *value};
    }
    return std::nullopt;
  }
  /// Empty: complete. Else what is missing, and whether anything is there.
  std::string Missing(const Names& names, bool* any) const;
  Result<LaunchFacts> Read(const Names& names) const;
  Result<int> ReadLocalWorld(const Variable& variable, int node) const;
  Result<std::string> RunId(const Names& names) const;
  Status ReadMeetingPlace(LaunchFacts& facts) const;

  const EnvironmentLookup& environment_;
};

Result<int> ToNumber(const Variable& variable, int least, int most) {
  int number = 0;
  const char* end = variable.value.data() + variable.value.size();
  const auto [at, error] = std::from_chars(variable.value.data(), end, number);
  if (error == std::errc() && at == end && number >= least && number <= most) return number;
  return InvalidInput(fmt::format("environment variable {}='{}': must be a whole number in {}..{}",
                                  variable.name, variable.value.substr(0, 80), least, most));
}

Status CheckBelow(const Variable& small, int a, const Variable& large, int b) {
  if (a < b) return Status::Ok();
  return InvalidInput(
      fmt::format("environment variables {}={} and {}={} contradict each other: "
                  "the first must be below the second",
                  small.name, a, large.name, b));
}

std::string Detector::Missing(const Names& names, bool* any) const {
  const auto rank = Find(names.rank);
  const auto world = Find(names.world);
  const auto local_rank = Find(names.local_rank);
  *any = rank || (world && !names.borrows_size) || (names.has_master && local_rank);
  const auto missing = [](const std::vector<const char*>& all) { return std::string(all.front()); };
  if (!rank) return missing(names.rank);
  if (!world) return missing(names.world);
  if (!local_rank) return missing(names.local_rank);
  if (!Find(names.local_world)) return missing(names.local_world);
  if (names.has_master && world->value != "1") {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      if (!environment_(name)) return name;
    }
  }
  return {};
}

Result<int> Detector::ReadLocalWorld(const Variable& variable, int node) const {
  if (variable.name != kSlurmLocalTasks) return ToNumber(variable, 1, kMaxRanks);
  Result<int> tasks = SlurmTasksOfNode(variable.value, node);
  if (tasks.ok()) return tasks;
  return tasks.status().WithContext("environment variable " + variable.name);
}

Result<std::string> Detector::RunId(const Names& names) const {
  std::string id;
  if (const auto chosen = environment_("MESHWRIGHT_RUN_ID")) {
    id = *chosen;
  } else {
    id = ToString(names.launcher);
    if (const auto given = Find(names.run_id)) {
      id += "-" + given->value;
      if (given->name == "SLURM_JOB_ID") id += "." + environment_("SLURM_STEP_ID").value_or("0");
    }
    // Ranks that torchrun starts again must not meet what is left of the run before.
    if (const auto restarts = environment_("TORCHELASTIC_RESTART_COUNT");
        restarts && names.launcher == Launcher::kTorchrun) {
      id += "-" + *restarts;
    }
  }
  if (!id.empty() && id.size() <= 128) return id;
  return InvalidInput(
      fmt::format("run id of {} bytes; must have 1..128: set MESHWRIGHT_RUN_ID", id.size()));
}

Status Detector::ReadMeetingPlace(LaunchFacts& facts) const {
  facts.store_directory = environment_("MESHWRIGHT_STORE_DIR").value_or("");
  if (facts.world == 1) return Status::Ok();
  if (const auto address = environment_("MASTER_ADDR"); address && !address->empty()) {
    facts.master_address = *address;
  } else if (const auto hosts = Find({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
             hosts && facts.launcher == Launcher::kSlurm) {
    MW_ASSIGN_OR_RETURN(facts.master_address, FirstSlurmHost(hosts->value));
  } else if (facts.local_world != facts.world && facts.store_directory.empty()) {
    return InvalidInput(fmt::format(
        "{} started {} ranks, {} of them on this host, and nothing says where rank 0 is: set "
        "MASTER_ADDR to its host on all ranks, or MESHWRIGHT_STORE_DIR to a directory that they "
        "share",
        ToString(facts.launcher), facts.world, facts.local_world));
  }
  if (const auto port = environment_("MASTER_PORT")) {
    // The launcher may listen on MASTER_PORT itself.
    MW_ASSIGN_OR_RETURN(const int number, ToNumber({"MASTER_PORT", *port}, 1, 65534));
    facts.store_port = number + 1;
    return Status::Ok();
  }
  uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : facts.run_id) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  facts.store_port = static_cast<int>(kFirstPort + hash % kPorts);
  return Status::Ok();
}

Result<LaunchFacts> Detector::Read(const Names& names) const {
  LaunchFacts facts;
  facts.launcher = names.launcher;
  const Variable rank = *Find(names.rank);
  const Variable world = *Find(names.world);
  const Variable local_rank = *Find(names.local_rank);
  const Variable local_world = *Find(names.local_world);
  MW_ASSIGN_OR_RETURN(facts.rank, ToNumber(rank, 0, kMaxRanks));
  MW_ASSIGN_OR_RETURN(facts.world, ToNumber(world, 1, kMaxRanks));
  MW_ASSIGN_OR_RETURN(facts.local_rank, ToNumber(local_rank, 0, kMaxRanks));
  facts.node = -1;
  if (const auto node = Find(names.node)) {
    MW_ASSIGN_OR_RETURN(facts.node, ToNumber(*node, 0, kMaxRanks));
  }
  MW_ASSIGN_OR_RETURN(facts.local_world, ReadLocalWorld(local_world, facts.node));
  MW_RETURN_IF_ERROR(CheckBelow(rank, facts.rank, world, facts.world));
  MW_RETURN_IF_ERROR(CheckBelow(local_rank, facts.local_rank, local_world, facts.local_world));
  if (facts.local_world > facts.world) {
    return InvalidInput(
        fmt::format("environment variables {}={} and {}={} contradict each other: "
                    "a host cannot have more ranks than there are",
                    local_world.name, facts.local_world, world.name, facts.world));
  }
  MW_ASSIGN_OR_RETURN(facts.run_id, RunId(names));
  MW_RETURN_IF_ERROR(ReadMeetingPlace(facts));
  return facts;
}

Result<LaunchFacts> Detector::Detect() {
  std::optional<LaunchFacts> chosen;
  std::vector<std::string> notes;
  Status half;
  for (const Names& names : Launchers()) {
    bool any = false;
    const std::string missing = Missing(names, &any);
    if (!any) continue;
    const Variable there = *Find({names.rank[0], names.world[0], names.local_rank[0]});
    if (names.launcher == Launcher::kSlurm && missing == "SLURM_STEP_NUM_TASKS") {
      notes.push_back(
          "SLURM_PROCID is set, but this is no step of srun (SLURM_STEP_NUM_TASKS is "
          "not set): not a rank");
    } else if (!missing.empty()) {
      const std::string text = fmt::format("{} is set, but {} is not", there.name, missing);
      if (!chosen) notes.push_back(text + ": not used");
      if (half.ok()) {
        half = InvalidInput(fmt::format(
            "environment: variables of {} are only partly set: {}; set all of them or none",
            ToString(names.launcher), text));
      }
    } else if (!chosen) {
      MW_ASSIGN_OR_RETURN(chosen, Read(names));
    } else {
      const Variable rank = *Find(names.rank);
      const Variable world = *Find(names.world);
      notes.push_back(fmt::format("{}={}, {}={}: not used, {} comes first", rank.name, rank.value,
                                  world.name, world.value, ToString(chosen->launcher)));
    }
  }
  if (!chosen) {
    MW_RETURN_IF_ERROR(half);
    chosen.emplace();
    chosen->run_id = environment_("MESHWRIGHT_RUN_ID").value_or("alone");
  }
  chosen->notes = std::move(notes);
  return *std::move(chosen);
}

}  // namespace

EnvironmentLookup ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

const char* ToString(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "none";
    case Launcher::kSelf:
      return "--nproc";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "Open MPI";
    case Launcher::kPmi:
      return "PMI";
    case Launcher::kSlurm:
      return "Slurm";
  }
  return "?";
}

Result<LaunchFacts> DetectLaunch(const EnvironmentLookup& environment) {
  return Detector(environment).Detect();
}

std::string Describe(const LaunchFacts& facts) {
  if (facts.launcher == Launcher::kNone) return "a process alone, started by no launcher";
  std::string text = fmt::format("rank {} of {} (local rank {} of {}", facts.rank, facts.world,
                                 facts.local_rank, facts.local_world);
  text += facts.node >= 0 ? fmt::format(" on node {})", facts.node) : ")";
  text += fmt::format(", started by {}, run '{}'", ToString(facts.launcher), facts.run_id);
  if (!facts.store_directory.empty()) return text + ", store in " + facts.store_directory;
  if (facts.world == 1) return text;
  return text + fmt::format(", store at {} port {}", facts.master_address, facts.store_port);
}

Result<int> DeviceOrdinal(const LaunchFacts& facts, int visible_devices) {
  if (visible_devices >= 1) return facts.local_rank % visible_devices;
  return InvalidInput(
      fmt::format("rank {}: no CUDA device is visible to this process; check the "
                  "driver and CUDA_VISIBLE_DEVICES",
                  facts.rank));
}

Result<std::unique_ptr<Store>> OpenStore(const LaunchFacts& facts, const StoreOptions& deadlines) {
  StoreOptions options = deadlines;
  options.rank = facts.rank;
  options.world = facts.world;
  options.run_id = facts.run_id;
  if (!facts.store_directory.empty()) return OpenFileStore(options, facts.store_directory);
  if (facts.world > 1) {
    return OpenTcpStore(options, {facts.master_address, facts.store_port, facts.listen_fd});
  }
  // Alone: any free port will do.
  MW_ASSIGN_OR_RETURN(FileDescriptor listener, ListenTcp("127.0.0.1", 0));
  MW_ASSIGN_OR_RETURN(const int port, PortOf(listener));
  return OpenTcpStore(options, {"127.0.0.1", port, listener.Release()});
}

}  // namespace meshwright::runtime

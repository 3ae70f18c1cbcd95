// How this process was started: alone, or as one rank of many by a launcher that says so in the
// environment.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/store.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// Value of an environment variable, nullopt when it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;
/// That of this process.
EnvironmentLookup ProcessEnvironment();

enum class Launcher {
  kNone,      ///< a process alone
  kSelf,      ///< by our own --nproc, see self_start.h
  kTorchrun,  ///< RANK, WORLD_SIZE ...
  kOpenMpi,   ///< OMPI_COMM_WORLD_RANK ...
  kPmi,       ///< PMI_RANK, PMI_SIZE (MPICH, Hydra), or PMIX_RANK with the size of the Slurm step
  kSlurm,     ///< a step of srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS ...
};
/// "torchrun", "Open MPI" ...
const char* ToString(Launcher launcher);

/// What a launcher says about this rank and where the ranks meet.
struct LaunchFacts {
  Launcher launcher = Launcher::kNone;
  int rank = 0, world = 1;                   ///< 0 .. world-1
  int local_rank = 0, local_world = 1;       ///< the same among the ranks of this host
  int node = 0;                              ///< number of this host; -1: the launcher does not say
  std::string master_address = "127.0.0.1";  ///< host of rank 0
  int store_port = 0;  ///< where rank 0's store listens (MASTER_PORT + 1); 0 when world is 1
  std::string run_id;
  int listen_fd = -1;              ///< of rank 0 under kSelf: the socket that listens there already
  std::string store_directory;     ///< MESHWRIGHT_STORE_DIR: meet in files and not over TCP
  std::vector<std::string> notes;  ///< other launchers' variables that were seen and not used
};

/// Reads the environment. The first launcher whose set of variables is complete wins, in the order
/// of `Launcher`; that of an MPI beats Slurm's, in whose allocation it runs. SLURM_PROCID counts in
/// a step only: a batch script has it, too, and is no rank.
///
/// MASTER_ADDR and MASTER_PORT say where ranks meet; torchrun sets them. Without them it is the
/// first host of a Slurm step or this host when all ranks are on it, and a port that follows from
/// the run id. MESHWRIGHT_RUN_ID replaces the launcher's name of the run.
///
/// Errors (kInvalidInput) name the variable: a value that is no number or out of range, values that
/// contradict each other, a set that is only partly there, no address of rank 0.
Result<LaunchFacts> DetectLaunch(const EnvironmentLookup& environment);

/// "rank 1 of 2 (local rank 1 of 2 on node 0), started by torchrun; ..." in one line.
std::string Describe(const LaunchFacts& facts);

/// CUDA device of this rank: local rank modulo visible devices. That two ranks do not share one is
/// checked where they meet. kInvalidInput when there is no device.
Result<int> DeviceOrdinal(const LaunchFacts& facts, int visible_devices);

/// The store of the run: in `store_directory` when there is one, else over TCP. `deadlines` gives
/// the times; its rank, world and run id are taken from `facts`.
Result<std::unique_ptr<Store>> OpenStore(const LaunchFacts& facts,
                                         const StoreOptions& deadlines = {});

}  // namespace meshwright::runtime

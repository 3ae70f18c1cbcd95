// Runs work in processes of its own and gets a text back: for a process that must not touch CUDA
// itself yet, because that does not survive a fork.
#pragma once

#include <functional>
#include <string>

#include "runtime/launch.h"
#include "runtime/self_start.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// As StartRanks, with a body that makes a text; rank 0's is returned. Errors: those of StartRanks;
/// the status of the rank that failed first, or kRunFailed with how it ended when it left none.
Result<std::string> TextOfRanks(const SelfStartOptions& options,
                                const std::function<Result<std::string>(const LaunchFacts&)>& body);

}  // namespace meshwright::runtime

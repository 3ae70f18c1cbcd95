// Communicators of ranks that are threads of one process: strict rendezvous in shared memory.
#pragma once

#include <memory>
#include <vector>

#include "runtime/communicator.h"

namespace meshwright::runtime {

/// World communicator of each of `ranks` threads; element i is for the thread of rank i.
///
/// A message is done when it was received, a collective when all members have arrived. What the
/// members ask for is compared before any data moves; a disagreement ends the operation on every
/// member there with an error that names both ranks and both requests. The member that arrives
/// last moves the data; the others sleep.
std::vector<std::unique_ptr<Communicator>> MakeThreadWorld(int ranks, const CommOptions& options);

}  // namespace meshwright::runtime

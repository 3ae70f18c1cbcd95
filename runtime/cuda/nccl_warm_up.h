// First operations of a communicator, in which NCCL makes its connections. Internal to NcclWorld.
#pragma once

#include <vector>

#include "runtime/cuda/nccl_communicator.h"
#include "runtime/group_use.h"

namespace meshwright::runtime::cuda {

/// Runs each of `uses` in up to three sizes, as NCCL chooses other ways for other sizes, and waits
/// for it. Allocates up to 64 MiB and a stream on the current device and frees them.
Status WarmUp(NcclCommunicator& communicator, const std::vector<GroupUse>& uses, double deadline_s);

}  // namespace meshwright::runtime::cuda

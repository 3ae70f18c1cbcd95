// What ranks tell each other before NCCL starts. Internal to NcclWorld.
#pragma once

#include <nccl.h>

#include "runtime/store.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// kInvalidInput for settings under which several ranks hang.
Status CheckNcclEnvironment(int world);

/// The id of rank 0 for all ranks, once rank 0 has seen that they use different GPUs; the current
/// one is `device`. With `share`, ranks on one GPU tell NCCL that they are on different hosts, as
/// it refuses them otherwise (NCCL_HOSTID). Errors as NcclWorld::Create.
Result<ncclUniqueId> ExchangeNcclId(Store& store, double deadline_s, int device, bool share);

}  // namespace meshwright::runtime::cuda

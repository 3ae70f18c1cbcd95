// Communicators over the store: for what ranks tell each other in host memory before and after they
// run, such as fingerprints and reports.
#pragma once

#include <memory>

#include "runtime/communicator.h"
#include "runtime/store.h"

namespace meshwright::runtime {

/// World communicator of this rank on a store that outlives it. A message has at most
/// kMaxStoreValueBytes (16 MiB) less a line; each member reads what all others have written, so
/// this is no way for bulk. An operation that cannot reach the store fails with the store's error.
///
/// Abort goes to all ranks through kAbortKey, as does that of anybody else who uses the key.
/// Names of keys follow from the order of operations, so a store carries one world made here.
std::unique_ptr<Communicator> MakeStoreWorld(Store& store, const CommOptions& options);

}  // namespace meshwright::runtime

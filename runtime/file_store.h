// A store in a directory that all ranks share.
#pragma once

#include <memory>
#include <string>

#include "runtime/store.h"

namespace meshwright::runtime {

/// Opens the store in the folder `<directory>/meshwright-<run id>`, made by whoever comes first;
/// rank 0 removes it once all ranks have left. A value is a file, written under another name,
/// synchronised and renamed, so that nobody reads a part of it. Calls that wait look again every
/// few milliseconds. It cannot tell that a process is gone: GoneKey is never set.
///
/// Errors: kInvalidInput for options, another world, or a rank that is there already, as it is when
/// files of an earlier run with the same run id are left; kRunFailed when the file system refuses.
Result<std::unique_ptr<Store>> OpenFileStore(const StoreOptions& options,
                                             const std::string& directory);

}  // namespace meshwright::runtime

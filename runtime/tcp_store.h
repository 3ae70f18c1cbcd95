// A store over TCP: rank 0 keeps the values, everybody connects to it.
#pragma once

#include <memory>
#include <string>

#include "runtime/store.h"

namespace meshwright::runtime {

struct TcpStoreOptions {
  std::string host;    ///< of rank 0: name, IPv4 or IPv6 address
  int port = 0;        ///< where rank 0 listens, 1..65535
  int listen_fd = -1;  ///< of rank 0: a socket that listens there already; the store takes it over
};

/// Opens the store: rank 0 serves it from a thread, the others connect, trying again until the
/// deadline. A connection says run id, world and rank, and what does not belong is refused; bytes
/// of strangers are ignored. Calls that wait use a connection each, so they do not delay others.
///
/// When a process ends without closing its store, GoneKey(rank) is set at once. When rank 0 is
/// gone, calls fail with an error that says so.
///
/// Errors: kInvalidInput for options, another run id, world or a rank that is there twice;
/// kRunFailed when the port is taken or nobody answers by the deadline.
Result<std::unique_ptr<Store>> OpenTcpStore(const StoreOptions& options,
                                            const TcpStoreOptions& tcp);

}  // namespace meshwright::runtime

// The store of a run: small values by key that all ranks share. Ranks meet through it before they
// have communicators, and say through it why a run ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topologies/status.h"

namespace meshwright::runtime {

/// Bounds of every store. A call beyond them is kInvalidInput.
inline constexpr size_t kMaxStoreKeyBytes = 200;
inline constexpr size_t kMaxStoreValueBytes = size_t{16} << 20;
inline constexpr size_t kMaxStoreWaitKeys = 8;

/// Settings that all stores have.
struct StoreOptions {
  std::string run_id;  ///< the same on all ranks, another one for each run; 1..128 bytes
  int rank = 0;
  int world = 1;
  /// For all ranks to find the store. Seconds, > 0.
  double open_deadline_s = 60.0;
  /// For a call that does not wait for other ranks. Seconds, > 0.
  double call_deadline_s = 10.0;
  /// How long rank 0 keeps the store for the others after it is done with it. Seconds, >= 0.
  double linger_s = 5.0;
};
/// kInvalidInput unless rank, world, run id and times are within their bounds.
Status CheckStoreOptions(const StoreOptions& options);

/// One rank's access to the store. All calls may come from several threads at once, block until
/// done or until their deadline, and never longer.
///
/// Errors: kInvalidInput for keys and values out of bounds; kRunFailed when the store cannot be
/// reached or a deadline has passed, naming the store and the key.
class Store {
 public:
  virtual ~Store() = default;

  /// "tcp store at 127.0.0.1:29501", for messages.
  virtual std::string where() const = 0;
  virtual int rank() const = 0;
  virtual int world() const = 0;

  virtual Status Set(const std::string& key, std::string_view value) = 0;
  /// Sets a key that does not exist yet; returns the value that it has then.
  virtual Result<std::string> SetOnce(const std::string& key, std::string_view value) = 0;
  /// Adds to a counter that starts at 0; returns the sum. A value that is no number is an error.
  virtual Result<int64_t> Add(const std::string& key, int64_t delta) = 0;
  /// Removes a key; one that does not exist is no error.
  virtual Status Remove(const std::string& key) = 0;
  /// All keys that begin with `prefix`, with their values.
  virtual Result<std::map<std::string, std::string>> List(const std::string& prefix) = 0;

  struct Found {
    size_t index = 0;  ///< into the keys asked for
    std::string value;
  };
  /// Waits until one of 1..8 keys exists; of several the first counts. nullopt once `deadline_s`
  /// seconds (>= 0) have passed: with 0 it only looks.
  virtual Result<std::optional<Found>> WaitAny(const std::vector<std::string>& keys,
                                               double deadline_s) = 0;

  /// Value of a key as soon as it exists; kRunFailed after `deadline_s`.
  Result<std::string> Get(const std::string& key, double deadline_s);
  /// nullopt when the key does not exist.
  Result<std::optional<std::string>> TryGet(const std::string& key);
  /// Done once all `world()` ranks have called it with this name, which is used once in a run.
  /// The error names the ranks that are missing, or is the reason for which the run was aborted.
  Status Barrier(const std::string& name, double deadline_s);
};

/// Key of the reason that ended the run; Store::List shows it to anybody.
inline constexpr char kAbortKey[] = "abort";
/// Key that a store which can tell sets when a rank is gone without a goodbye: "gone/3".
std::string GoneKey(int rank);

/// Text of a status that goes through the store, and back. Text that is none gives kRunFailed.
std::string EncodeStatus(const Status& status);
Status DecodeStatus(const std::string& text);

/// Makes `reason` the reason of the run's end unless there is one. Returns the one that counts,
/// which is `reason` when the store cannot be reached.
Status PostAbort(Store& store, const Status& reason);
/// The reason of the run's end; nullopt while there is none.
Result<std::optional<Status>> ReadAbort(Store& store);

/// kInvalidInput unless key and value are within their bounds.
Status CheckStoreKey(std::string_view key);
Status CheckStoreValue(std::string_view key, std::string_view value);

}  // namespace meshwright::runtime

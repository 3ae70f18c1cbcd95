// What is in flight on the streams of a GPU rank, followed by events, for the watchdog and the
// flight recorder.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda/device_communicator.h"
#include "runtime/flight_recorder.h"
#include "runtime/watchdog.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// The issuing thread tells where it stands and marks work; communicators tell of their operations
/// by themselves (NcclOptions::observer). The watchdog polls. Costs two event records an operation;
/// an operation that finds no free event is recorded without times.
class FlightTracker final : public DeviceCommunicatorObserver {
 public:
  /// Follows up to `in_flight` pieces of work at once (1..65536); makes two events for each on the
  /// current device. `recorder` outlives the tracker.
  static Result<std::unique_ptr<FlightTracker>> Create(FlightRecorder& recorder, size_t in_flight);
  ~FlightTracker() override;
  FlightTracker(const FlightTracker&) = delete;
  FlightTracker& operator=(const FlightTracker&) = delete;

  /// Step and number of the op that is issued next, as `WatchdogHooks::item` understands it.
  void SetPlace(int64_t step, int64_t item) {
    step_ = step;
    item_ = item;
  }
  /// Follows what is on `stream` by now (the end of a task or step, say) without a flight record.
  void Mark(cudaStream_t stream);

  void Before(const FlightRecord& record, cudaStream_t stream) override;
  void After(const FlightRecord& record, cudaStream_t stream) override;

  /// Looks what has started and ended since; a stream each that was ever used. From one thread at a
  /// time, any. Times in the flight records are those of the look that noticed.
  std::vector<StreamProgress> Poll();
  /// "step 3, Forward(0,3), op 7; communicator 'dp 0,1', operation 12 (all_reduce of 4096 bytes
  /// fp32), started" of the oldest work in flight on a stream of Poll; `names` as of the recorder.
  std::string Describe(size_t stream, const FlightNames& names) const;

 private:
  /// A piece of work in flight.
  struct Flight {
    cudaEvent_t started = nullptr, done = nullptr;
    int64_t number = -1;  ///< of the flight record; -1: a mark
    FlightRecord record;
    bool put = false;  ///< on its stream, and `done` recorded
    bool has_started = false;
  };
  struct Stream {
    cudaStream_t stream = nullptr;
    StreamProgress progress;
    std::deque<Flight> flights;  ///< in stream order
  };

  explicit FlightTracker(FlightRecorder& recorder) : recorder_(recorder) {}
  Stream& Of(cudaStream_t stream);
  /// A flight at the end of the stream's; nullptr when there are no events for it.
  Flight* Open(Stream& stream, const FlightRecord& record);

  FlightRecorder& recorder_;
  int64_t step_ = -1;  ///< of the issuing thread, as is item_
  int64_t item_ = -1;

  mutable std::mutex mutex_;  ///< guards what follows
  std::vector<cudaEvent_t> free_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace meshwright::runtime::cuda

#include "runtime/cuda/flight_tracker.h"

#include <fmt/format.h>

#include "runtime/cuda/cuda_device.h"
#include "runtime/diagnose.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr size_t kMaxInFlight = 65536;

/// A query or record that fails shows up as an error of the run itself, with its place there.
bool Ok(cudaError_t error) {
  return error == cudaSuccess;
}

}  // namespace

Result<std::unique_ptr<FlightTracker>> FlightTracker::Create(FlightRecorder& recorder,
                                                             size_t in_flight) {
  if (in_flight < 1 || in_flight > kMaxInFlight) {
    return InvalidInput(fmt::format("flight tracker: {} pieces of work in flight; must be in 1..{}",
                                    in_flight, kMaxInFlight));
  }
  std::unique_ptr<FlightTracker> tracker(new FlightTracker(recorder));
  tracker->free_.reserve(2 * in_flight);
  for (size_t i = 0; i < 2 * in_flight; ++i) {
    cudaEvent_t event = nullptr;
    MW_CUDA_CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    tracker->free_.push_back(event);
  }
  return tracker;
}

FlightTracker::~FlightTracker() {
  for (const auto& stream : streams_) {
    for (const Flight& flight : stream->flights) {
      free_.push_back(flight.started);
      free_.push_back(flight.done);
    }
  }
  for (const cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

FlightTracker::Stream& FlightTracker::Of(cudaStream_t stream) {
  for (const auto& known : streams_) {
    if (known->stream == stream) return *known;
  }
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->stream = stream;
  return *streams_.back();
}

FlightTracker::Flight* FlightTracker::Open(Stream& stream, const FlightRecord& record) {
  if (free_.size() < 2) return nullptr;
  Flight& flight = stream.flights.emplace_back();
  flight.record = record;
  flight.done = free_.back();
  free_.pop_back();
  flight.started = free_.back();
  free_.pop_back();
  ++stream.progress.enqueued;
  return &flight;
}

void FlightTracker::Mark(cudaStream_t stream) {
  FlightRecord place;
  place.step = step_;
  place.item = item_;
  const std::lock_guard lock(mutex_);
  Flight* flight = Open(Of(stream), place);
  if (flight == nullptr) return;
  flight->has_started = true;
  flight->put = Ok(cudaEventRecord(flight->done, stream));
}

/// A call that hangs before it is on the stream is in flight, too.
void FlightTracker::Before(const FlightRecord& record, cudaStream_t stream) {
  FlightRecord placed = record;
  placed.step = step_;
  placed.item = item_;
  placed.enqueued_ns = WallClockNs();
  const std::lock_guard lock(mutex_);
  Flight* flight = Open(Of(stream), placed);
  if (flight == nullptr) placed.started_ns = placed.done_ns = FlightRecord::kNotFollowed;
  const int64_t number = recorder_.Add(placed);
  if (flight == nullptr) return;
  flight->number = number;
  flight->has_started = !Ok(cudaEventRecord(flight->started, stream));
}

void FlightTracker::After(const FlightRecord& record, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  Stream& of = Of(stream);
  if (of.flights.empty()) return;
  Flight& last = of.flights.back();
  const bool same = last.number >= 0 && last.record.group == record.group &&
                    last.record.sequence == record.sequence;
  if (same) last.put = Ok(cudaEventRecord(last.done, stream));
}

std::vector<StreamProgress> FlightTracker::Poll() {
  const std::lock_guard lock(mutex_);
  std::vector<StreamProgress> out;
  for (const auto& stream : streams_) {
    while (!stream->flights.empty()) {
      Flight& front = stream->flights.front();
      const bool done = front.put && Ok(cudaEventQuery(front.done));
      if (!front.has_started && (done || Ok(cudaEventQuery(front.started)))) {
        front.has_started = true;
        recorder_.SetStarted(front.number, WallClockNs());
      }
      if (!done) break;
      if (front.number >= 0) recorder_.SetDone(front.number, WallClockNs());
      free_.push_back(front.done);
      free_.push_back(front.started);
      stream->flights.pop_front();
      ++stream->progress.completed;
    }
    out.push_back(stream->progress);
  }
  return out;
}

std::string FlightTracker::Describe(size_t stream, const FlightNames& names) const {
  Flight front;
  {
    const std::lock_guard lock(mutex_);
    if (stream >= streams_.size() || streams_[stream]->flights.empty()) return "no work in flight";
    front = streams_[stream]->flights.front();
  }
  const FlightEntry entry = Name(0, {front.record}, names).front();
  if (front.number >= 0) {
    return fmt::format("communicator '{}', {}{}", entry.communicator, ToText(entry),
                       front.has_started ? ", started" : ", not started");
  }
  std::string text = fmt::format("step {}", front.record.step);
  if (!entry.item.empty()) text += ", " + entry.item;
  return text + ", or what it waits for";
}

}  // namespace meshwright::runtime::cuda

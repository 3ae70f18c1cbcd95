#include "runtime/cuda/gemm_tuner.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <string>

#include "planner/ir/dtype.h"
#include "runtime/cuda/cuda_device.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kDelayBytes = int64_t{256} << 20;  // about 70 us at 4 TB/s
constexpr int64_t kMaxSlots = 64;
constexpr int kFinalists = 4;
constexpr int64_t kPatternBytes = int64_t{8} << 20;
constexpr int kMaxRuns = 32;  // events of one series

// Of FastestSustained. Series of 0.1 s choose well on an H200, series of 12 ms in turns did not
// (cost_models/h200_runs.md).
constexpr double kSettleSeconds = 0.1;
constexpr size_t kSustained = 4;
constexpr double kClose = 1.05;                // to the fastest alone
constexpr double kLeastSustainedFlops = 2e10;  // a step spends little on shorter ones

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Normal values in bf16. Read as fp32, pairs of them are normal-like values too: the upper half of
/// an fp32 is a bf16.
std::vector<uint16_t> RandomPattern() {
  std::mt19937 engine(20240501);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(static_cast<size_t>(kPatternBytes) / sizeof(uint16_t));
  for (uint16_t& v : values) {
    v = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(engine)) >> 16);
  }
  return values;
}

double Median(std::vector<double> values) {
  MW_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Candidate {
  cublasLtMatmulAlgo_t algorithm{};
  int64_t workspace_bytes = 0;
  std::vector<double> seconds;
  double median = 0.0;
};

GemmChoice ChoiceOf(const Candidate& best, const Candidate& first, size_t timed) {
  GemmChoice choice;
  static_assert(sizeof(choice.algorithm) == sizeof(best.algorithm));
  std::memcpy(choice.algorithm.data(), &best.algorithm, sizeof(best.algorithm));
  choice.workspace_bytes = best.workspace_bytes;
  choice.seconds = best.median;
  choice.first_seconds = first.median;
  choice.candidates = static_cast<int32_t>(timed);
  return choice;
}

}  // namespace

Result<std::unique_ptr<GemmTuner>> GemmTuner::Create(const GemmTunerOptions& options) {
  std::unique_ptr<GemmTuner> tuner(new GemmTuner(options));
  MW_RETURN_IF_ERROR(tuner->Open().WithContext("opening the GEMM tuner"));
  return tuner;
}

Status GemmTuner::Open() {
  int l2 = 0;
  MW_CUDA_CALL(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, options_.ordinal));
  l2_bytes_ = l2;
  MW_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  events_.resize(2 * kMaxRuns, nullptr);
  for (cudaEvent_t& event : events_) MW_CUDA_CALL(cudaEventCreate(&event));
  MW_RETURN_IF_ERROR(Grow(&delay_, kDelayBytes, false));
  return Grow(&workspace_, std::max(options_.workspace_bytes, kAlignment), false);
}

GemmTuner::~GemmTuner() {
  // Errors have no reader here; the next checked call reports a broken context.
  if (stream_ != nullptr) static_cast<void>(cudaStreamSynchronize(stream_));
  for (cudaEvent_t event : events_) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
  for (const Region* region : {&inputs_, &outputs_, &delay_, &workspace_}) {
    if (region->data != nullptr) static_cast<void>(cudaFree(region->data));
  }
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

GemmTuner::Slots GemmTuner::SlotsOf(const GemmKey& key) const {
  const int64_t element = planner::SizeOf(key.input);
  const int64_t a_bytes = (key.transpose_a ? key.k : key.m) * key.lda * element;
  const int64_t b_bytes = (key.transpose_b ? key.n : key.k) * key.ldb * element;
  const int64_t d_bytes = key.m * key.ldd * planner::SizeOf(key.output);
  Slots slots;
  slots.shift = key.alignment < kFullAlignment ? key.alignment : 0;
  const auto room = [&](int64_t bytes) { return RoundUp(bytes + slots.shift, kAlignment); };
  slots.b = room(a_bytes);
  slots.bias = slots.b + room(b_bytes);
  slots.input_bytes = slots.bias + room(key.bias ? key.n * planner::SizeOf(key.output) : 0);
  slots.output_bytes = room(d_bytes);
  const int64_t set = slots.input_bytes + slots.output_bytes;
  slots.count = std::clamp<int64_t>((3 * l2_bytes_ + set - 1) / set, 2, kMaxSlots);
  return slots;
}

Status GemmTuner::Grow(Region* region, int64_t bytes, bool random) {
  if (region->bytes >= bytes) return Status::Ok();
  if (region->data != nullptr) {
    MW_CUDA_CALL(cudaStreamSynchronize(stream_));
    MW_CUDA_CALL(cudaFree(region->data));
    *region = {};
  }
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // not sticky; the caller decides
    return CudaStatus(error, "cudaMalloc",
                      "tuning needs " + std::to_string(bytes) +
                          " bytes of GPU memory for a while; tune before the arena is allocated, "
                          "or run without tuning");
  }
  region->data = static_cast<std::byte*>(memory);
  region->bytes = bytes;
  if (!random) return Status::Ok();
  static const std::vector<uint16_t> pattern = RandomPattern();
  MW_CUDA_CALL(cudaMemcpyAsync(region->data, pattern.data(),
                               static_cast<size_t>(std::min(bytes, kPatternBytes)),
                               cudaMemcpyHostToDevice, stream_));
  for (int64_t filled = kPatternBytes; filled < bytes; filled *= 2) {
    MW_CUDA_CALL(cudaMemcpyAsync(region->data + filled, region->data,
                                 static_cast<size_t>(std::min(filled, bytes - filled)),
                                 cudaMemcpyDeviceToDevice, stream_));
  }
  MW_CUDA_CALL(cudaStreamSynchronize(stream_));
  return Status::Ok();
}

Status GemmTuner::Reserve(const Slots& slots) {
  MW_RETURN_IF_ERROR(Grow(&inputs_, slots.count * slots.input_bytes, true));
  MW_RETURN_IF_ERROR(Grow(&outputs_, slots.count * slots.output_bytes, false));
  // Outputs that are added to must be numbers.
  MW_CUDA_CALL(cudaMemsetAsync(outputs_.data, 0,
                               static_cast<size_t>(slots.count * slots.output_bytes), stream_));
  return Status::Ok();
}

GemmOperands GemmTuner::SlotAt(const Slots& slots, int64_t index) const {
  std::byte* in = inputs_.data + index * slots.input_bytes + slots.shift;
  return {in, in + slots.b, outputs_.data + index * slots.output_bytes + slots.shift,
          in + slots.bias};
}

Status GemmTuner::RunNext(cublasLtHandle_t handle, const GemmProblem& problem, const Slots& slots,
                          const cublasLtMatmulAlgo_t& algorithm) {
  const GemmOperands operands = SlotAt(slots, next_slot_++ % slots.count);
  return CublasLtStatus(problem.Run(handle, algorithm, operands, workspace_.data,
                                    options_.workspace_bytes, stream_),
                        "cublasLtMatmul");
}

Status GemmTuner::TimeRuns(cublasLtHandle_t handle, const GemmProblem& problem, const Slots& slots,
                           const cublasLtMatmulAlgo_t& algorithm, int runs,
                           std::vector<double>* seconds) {
  MW_CHECK(runs <= kMaxRuns);
  // While this is written, the host gets ahead, so that no launch is waited for. It clears L2 too.
  MW_CUDA_CALL(cudaMemsetAsync(delay_.data, 0, static_cast<size_t>(delay_.bytes), stream_));
  for (int i = 0; i < runs; ++i) {
    MW_CUDA_CALL(cudaEventRecord(events_[static_cast<size_t>(2 * i)], stream_));
    MW_RETURN_IF_ERROR(RunNext(handle, problem, slots, algorithm));
    MW_CUDA_CALL(cudaEventRecord(events_[static_cast<size_t>(2 * i + 1)], stream_));
  }
  MW_CUDA_CALL(cudaStreamSynchronize(stream_));
  for (int i = 0; i < runs; ++i) {
    float milliseconds = 0.0F;
    MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, events_[static_cast<size_t>(2 * i)],
                                      events_[static_cast<size_t>(2 * i + 1)]));
    seconds->push_back(static_cast<double>(milliseconds) * 1e-3);
  }
  return Status::Ok();
}

Result<GemmChoice> GemmTuner::Tune(cublasLtHandle_t handle, const GemmProblem& problem) {
  MW_ASSIGN_OR_RETURN(const std::vector<GemmChoice> finalists, Finalists(handle, problem));
  return finalists.front();
}

Result<std::vector<GemmChoice>> GemmTuner::Finalists(cublasLtHandle_t handle,
                                                     const GemmProblem& problem) {
  MW_ASSIGN_OR_RETURN(const auto proposals,
                      problem.Candidates(handle, options_.workspace_bytes, options_.deterministic,
                                         options_.candidates));
  const Slots slots = SlotsOf(problem.key());
  MW_RETURN_IF_ERROR(Reserve(slots).WithContext("product " + ToString(problem.key())));
  std::vector<Candidate> timed;
  Status refusal;
  for (const cublasLtMatmulHeuristicResult_t& proposal : proposals) {
    const Result<int64_t> needed = problem.Check(handle, proposal.algo);
    if (!needed.ok() || *needed > options_.workspace_bytes) continue;
    Candidate candidate;
    candidate.algorithm = proposal.algo;
    candidate.workspace_bytes = *needed;
    std::vector<double> warm_up;  // loads the kernel
    refusal = TimeRuns(handle, problem, slots, proposal.algo, 1, &warm_up);
    if (refusal.code() == StatusCode::kUnsupported) continue;
    MW_RETURN_IF_ERROR(refusal);
    MW_RETURN_IF_ERROR(TimeRuns(handle, problem, slots, proposal.algo, options_.screening_runs,
                                &candidate.seconds));
    candidate.median = Median(candidate.seconds);
    timed.push_back(std::move(candidate));
  }
  if (timed.empty()) {
    return Unsupported("product " + ToString(problem.key()) + ": none of the " +
                       std::to_string(proposals.size()) + " algorithms proposed can run");
  }
  // The best few against the first proposal once more, in turns, so that a drift of the clock
  // meets all of them.
  std::vector<size_t> order(timed.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return timed[x].median < timed[y].median; });
  order.resize(std::min(order.size(), static_cast<size_t>(kFinalists)));
  if (std::find(order.begin(), order.end(), size_t{0}) == order.end()) order.push_back(0);
  for (size_t i : order) timed[i].seconds.clear();
  for (int done = 0; done < options_.final_runs; done += options_.screening_runs) {
    for (size_t i : order) {
      MW_RETURN_IF_ERROR(TimeRuns(handle, problem, slots, timed[i].algorithm,
                                  options_.screening_runs, &timed[i].seconds));
    }
  }
  for (size_t i : order) timed[i].median = Median(timed[i].seconds);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return timed[x].median < timed[y].median; });
  std::vector<GemmChoice> finalists;
  for (size_t i : order) finalists.push_back(ChoiceOf(timed[i], timed[0], timed.size()));
  return finalists;
}

Result<double> GemmTuner::SustainedSeconds(cublasLtHandle_t handle, const GemmProblem& problem,
                                           const Slots& slots, const GemmChoice& choice) {
  const cublasLtMatmulAlgo_t algorithm = AlgorithmOf(choice);
  const int runs = 1 + static_cast<int>(kSettleSeconds / choice.seconds);
  for (size_t part = 0; part < 2; ++part) {  // the clock settles in the first
    MW_CUDA_CALL(cudaEventRecord(events_[part], stream_));
    for (int i = 0; i < runs; ++i) {
      MW_RETURN_IF_ERROR(RunNext(handle, problem, slots, algorithm));
    }
  }
  MW_CUDA_CALL(cudaEventRecord(events_[2], stream_));
  MW_CUDA_CALL(cudaStreamSynchronize(stream_));
  float milliseconds = 0.0F;
  MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, events_[1], events_[2]));
  return static_cast<double>(milliseconds) * 1e-3 / runs;
}

Result<GemmChoice> GemmTuner::FastestSustained(cublasLtHandle_t handle, const GemmProblem& problem,
                                               std::span<const GemmChoice> finalists) {
  GemmChoice best = finalists.front();
  if (problem.key().flops() < kLeastSustainedFlops) return best;
  const Slots slots = SlotsOf(problem.key());
  MW_RETURN_IF_ERROR(Reserve(slots).WithContext("product " + ToString(problem.key())));
  double least = 0.0;
  for (size_t i = 0; i < finalists.size() && i < kSustained; ++i) {
    if (finalists[i].seconds > kClose * finalists.front().seconds) break;
    MW_ASSIGN_OR_RETURN(const double seconds,
                        SustainedSeconds(handle, problem, slots, finalists[i]));
    if (i > 0 && seconds >= least) continue;
    least = seconds;
    best = finalists[i];
  }
  best.seconds = finalists.front().seconds;
  return best;
}

Result<double> GemmTuner::Time(cublasLtHandle_t handle, const GemmProblem& problem,
                               const GemmChoice& choice, int runs) {
  const Slots slots = SlotsOf(problem.key());
  MW_RETURN_IF_ERROR(Reserve(slots).WithContext("product " + ToString(problem.key())));
  const cublasLtMatmulAlgo_t algorithm = AlgorithmOf(choice);
  std::vector<double> seconds;
  MW_RETURN_IF_ERROR(TimeRuns(handle, problem, slots, algorithm, 1, &seconds));
  seconds.clear();
  for (int done = 0; done < runs; done += kMaxRuns) {
    MW_RETURN_IF_ERROR(
        TimeRuns(handle, problem, slots, algorithm, std::min(kMaxRuns, runs - done), &seconds));
  }
  return Median(seconds);
}

}  // namespace meshwright::runtime::cuda

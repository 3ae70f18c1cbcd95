#include "runtime/cuda/measure_sustained.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "runtime/cuda/attention.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/gemm_problem.h"
#include "runtime/cuda/gpu_bench_cases.h"
#include "runtime/cuda/gpu_clock.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::OpKind;

constexpr double kSettleSeconds = 2.5;
constexpr int kRounds = 15;
/// Of this many rounds, attention of a shape is in one. Together with the op between, products then
/// take about three quarters of the time and attention a sixth, as in training steps: the power
/// that the mix draws decides the clock.
constexpr int kAttentionTurns = 3;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Events around items of a round.
class Stopwatch {
 public:
  Stopwatch(cudaStream_t stream, size_t items) : stream_(stream), events_(2 * items, nullptr) {}
  ~Stopwatch() {
    for (cudaEvent_t event : events_) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  Status Create() {
    for (cudaEvent_t& event : events_) MW_CUDA_CALL(cudaEventCreate(&event));
    return Status::Ok();
  }
  Status Time(size_t item, const std::function<Status()>& run) {
    MW_CUDA_CALL(cudaEventRecord(events_[2 * item], stream_));
    MW_RETURN_IF_ERROR(run());
    MW_CUDA_CALL(cudaEventRecord(events_[2 * item + 1], stream_));
    return Status::Ok();
  }
  Result<double> Seconds(size_t item) const {
    float milliseconds = 0.0F;
    MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, events_[2 * item], events_[2 * item + 1]));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
};

/// Forward and backward of one shape on the same tensors.
struct AttentionPair {
  explicit AttentionPair(const planner::AttentionShape& shape)
      : backward(AttentionCase(shape, true, false), kBenchAlignment) {
    forward = backward.op;
    forward.kind = OpKind::kAttention;
    forward.operands.clear();
    for (const planner::OperandRow& row : planner::RowOf(OpKind::kAttention).operands) {
      const auto index =
          static_cast<size_t>(planner::OperandIndex(OpKind::kAttentionGrad, row.name));
      forward.operands.push_back({backward.op.operands[index].tensor, row.access});
    }
  }
  OpCall Call(bool grad, std::byte* at) const {
    return {backward.context,  backward.block, grad ? backward.op : forward,
            backward.instance, backward.task,  at};
  }
  BenchOp backward;
  planner::Op forward;
};

/// The bench's memory: inputs of products, what they write, tensors of attention and of the op
/// between. Products take turns in it, so that none finds its operands in the L2 cache.
class Mix {
 public:
  Mix(CudaDevice& device, GpuBench& bench, std::vector<TunedProduct>& products,
      std::vector<GpuAttentionSample>& attention)
      : device_(device), bench_(bench), products_(products), attention_(attention) {}

  Status Prepare();
  Status Measure(double* mean_clock);

 private:
  Status RunProduct(size_t i);
  Status RunAttention(size_t i);
  Status RunBetween();
  /// `turn`: which third of the attention pairs takes part.
  Status Round(size_t turn, Stopwatch* watch);
  bool TakesPart(size_t item, size_t turn) const {
    return item < products_.size() || (item - products_.size()) / 2 % kAttentionTurns == turn;
  }
  std::byte* Take(int64_t begin, int64_t end, int64_t bytes, int64_t* next) const;

  CudaDevice& device_;
  GpuBench& bench_;
  std::vector<TunedProduct>& products_;
  std::vector<GpuAttentionSample>& attention_;
  std::vector<std::unique_ptr<GemmProblem>> problems_;
  std::vector<std::unique_ptr<AttentionPair>> pairs_;
  std::unique_ptr<BenchOp> between_;
  std::vector<size_t> order_;  ///< products, then pairs of attention samples
  // Borders of the areas in the bench's memory, and where the next operands go.
  int64_t results_ = 0, attention_at_ = 0, between_at_ = 0;
  int64_t next_input_ = 0, next_result_ = 0;
};

Status Mix::Prepare() {
  int64_t attention_bytes = 0;
  for (size_t i = 0; i < attention_.size(); i += 2) {
    pairs_.push_back(std::make_unique<AttentionPair>(attention_[i].shape));
    attention_bytes = std::max(attention_bytes, pairs_.back()->backward.bytes);
    pairs_.back()->backward.context.device = &device_;
  }
  const std::vector<int64_t> shape = {12288, 2560};
  between_ = std::make_unique<BenchOp>(
      BenchCase{
          OpKind::kAdd,
          {},
          {{"a", shape, DType::kBf16}, {"b", shape, DType::kBf16}, {"out", shape, DType::kBf16}}},
      kBenchAlignment);
  between_->context.device = &device_;
  between_at_ = bench_.bytes() - AlignedBytes(between_->bytes);
  attention_at_ = between_at_ - AlignedBytes(attention_bytes);
  results_ = AlignedBytes(attention_at_ / 2);
  for (const TunedProduct& p : products_) {
    MW_ASSIGN_OR_RETURN(auto problem, GemmProblem::Create(p.key));
    problems_.push_back(std::move(problem));
    const int64_t input = 2 * (p.key.m + p.key.n) * p.key.k;
    const int64_t result = 4 * p.key.m * p.key.n;
    MW_CHECK(input + kBenchAlignment <= results_ && result <= attention_at_ - results_);
  }
  order_.resize(products_.size() + pairs_.size());
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
  std::shuffle(order_.begin(), order_.end(), std::mt19937(1));
  MW_RETURN_IF_ERROR(bench_.FillNormal());
  MW_CUDA_CALL(cudaMemsetAsync(bench_.memory() + results_, 0,
                               static_cast<size_t>(attention_at_ - results_),
                               device_.stream(planner::kComputeStream)));
  return Status::Ok();
}

std::byte* Mix::Take(int64_t begin, int64_t end, int64_t bytes, int64_t* next) const {
  if (*next < begin || *next + bytes > end) *next = begin;
  std::byte* at = bench_.memory() + *next;
  *next += AlignedBytes(bytes);
  return at;
}

Status Mix::RunProduct(size_t i) {
  const TunedProduct& p = products_[i];
  const GemmKey& key = p.key;
  GemmOperands operands{};
  operands.a = Take(0, results_, 2 * key.m * key.k, &next_input_);
  operands.b = Take(0, results_, 2 * key.k * key.n, &next_input_);
  operands.d = Take(results_, attention_at_, 4 * key.m * key.n, &next_result_);
  return RunTuned(device_, p, *problems_[i], operands);
}

Status Mix::RunAttention(size_t i) {
  const OpCall call = pairs_[i / 2]->Call(attention_[i].backward, bench_.memory() + attention_at_);
  return device_.attention().Run(call);
}

Status Mix::RunBetween() {
  return CudaKernels().kernels[static_cast<size_t>(OpKind::kAdd)](
      between_->At(bench_.memory() + between_at_));
}

Status Mix::Round(size_t turn, Stopwatch* watch) {
  const auto time = [&](size_t item, const std::function<Status()>& run) {
    return watch == nullptr ? run() : watch->Time(item, run);
  };
  for (const size_t i : order_) {
    if (i < products_.size()) {
      MW_RETURN_IF_ERROR(time(i, [&] { return RunProduct(i); }));
    } else {
      const size_t forward = 2 * (i - products_.size());
      if (!TakesPart(products_.size() + forward, turn)) continue;
      for (const size_t pass : {forward, forward + 1}) {
        MW_RETURN_IF_ERROR(time(products_.size() + pass, [&] { return RunAttention(pass); }));
      }
    }
    MW_RETURN_IF_ERROR(RunBetween());
  }
  return Status::Ok();
}

/// Waits for the stream and adds clocks meanwhile.
Status WaitAndSample(cudaStream_t stream, const GpuClock& clock, std::vector<double>* clocks) {
  while (true) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return Status::Ok();
    if (state != cudaErrorNotReady) MW_CUDA_CALL(state);
    clocks->push_back(clock.Share());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Status Mix::Measure(double* mean_clock) {
  const cudaStream_t stream = device_.stream(planner::kComputeStream);
  size_t turn = 0;
  const auto next_turn = [&] { return turn++ % kAttentionTurns; };
  for (const double start = Now(); Now() - start < kSettleSeconds;) {
    MW_RETURN_IF_ERROR(Round(next_turn(), nullptr));
    MW_CUDA_CALL(cudaStreamSynchronize(stream));
  }
  const size_t items = products_.size() + attention_.size();
  std::vector<std::vector<double>> seconds(items);
  Stopwatch watch(stream, items);
  MW_RETURN_IF_ERROR(watch.Create());
  const GpuClock clock(device_.ordinal());
  std::vector<double> clocks;
  for (int round = 0; round < kRounds; ++round) {
    const size_t part = next_turn();
    MW_RETURN_IF_ERROR(Round(part, &watch));
    MW_RETURN_IF_ERROR(WaitAndSample(stream, clock, &clocks));
    for (size_t i = 0; i < items; ++i) {
      if (!TakesPart(i, part)) continue;
      MW_ASSIGN_OR_RETURN(const double took, watch.Seconds(i));
      seconds[i].push_back(took);
    }
  }
  if (!clocks.empty()) {
    *mean_clock =
        std::accumulate(clocks.begin(), clocks.end(), 0.0) / static_cast<double>(clocks.size());
  }
  for (size_t i = 0; i < items; ++i) {
    const auto middle = seconds[i].begin() + static_cast<std::ptrdiff_t>(seconds[i].size() / 2);
    std::nth_element(seconds[i].begin(), middle, seconds[i].end());
    (i < products_.size() ? products_[i].sample.seconds
                          : attention_[i - products_.size()].seconds) = *middle;
  }
  return Status::Ok();
}

}  // namespace

Status RunTuned(CudaDevice& device, const TunedProduct& product, const GemmProblem& problem,
                const GemmOperands& operands) {
  const GemmChoice& choice = product.choice;
  const cublasLtMatmulAlgo_t algorithm = AlgorithmOf(choice);
  MW_ASSIGN_OR_RETURN(std::byte* const workspace,
                      device.workspace(planner::kComputeStream, choice.workspace_bytes));
  return CublasLtStatus(problem.Run(device.gemm().handle(), algorithm, operands, workspace,
                                    choice.workspace_bytes, device.stream(planner::kComputeStream)),
                        "cublasLtMatmul");
}

Status MeasureSustained(CudaDevice& device, GpuBench& bench, std::vector<TunedProduct>* products,
                        std::vector<GpuAttentionSample>* attention, double* clock) {
  Mix mix(device, bench, *products, *attention);
  MW_RETURN_IF_ERROR(mix.Prepare());
  return mix.Measure(clock);
}

}  // namespace meshwright::runtime::cuda

// Prints what the memory-bound kernels reach on the present GPU at Llama shapes: time, traffic over
// time, and its share of the device-to-device copy rate of the same run. Not a test.
//
//   kernel_rates [GPU ordinal]
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/operands.h"
#include "runtime/cuda/step_tables.h"
#include "tests/runtime/op_of_bindings.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::DType;
using planner::OpKind;

constexpr int64_t kRows = 16384;  ///< tokens of a micro-batch: 4 x 4096
constexpr int64_t kArena = int64_t{12} << 30;
constexpr int kWarmUps = 3;
constexpr int kRepetitions = 20;

[[noreturn]] void Fail(const Status& status) {
  std::fprintf(stderr, "kernel_rates: %s\n", status.message().c_str());
  std::exit(ExitCode(status));
}
void Check(const Status& status) {
  if (!status.ok()) Fail(status);
}
void Check(cudaError_t error, const char* call) {
  Check(CudaStatus(error, call));
}

/// Milliseconds of one call on the stream, averaged over many.
double Time(cudaStream_t stream, const std::function<Status()>& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  for (int i = 0; i < kWarmUps; ++i) Check(run());
  Check(cudaEventRecord(begin, stream), "cudaEventRecord");
  for (int i = 0; i < kRepetitions; ++i) Check(run());
  Check(cudaEventRecord(end, stream), "cudaEventRecord");
  Check(cudaEventSynchronize(end), "cudaEventSynchronize");
  float ms = 0.0f;
  Check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  Check(cudaEventDestroy(begin), "cudaEventDestroy");
  Check(cudaEventDestroy(end), "cudaEventDestroy");
  return static_cast<double>(ms) / kRepetitions;
}

/// One op on tensors in the arena.
class Bench {
 public:
  using Bindings = OpBindings;

  Bench(CudaDevice& device, std::byte* arena, double copy_rate)
      : device_(device), arena_(arena), copy_rate_(copy_rate) {
    block_.name = "rates";
    rank_.device = &device;
    rank_.facts.dtypes = planner::PolicyOf(DType::kBf16);
  }

  planner::RankProgram program;
  planner::OpAttributes attributes;

  void Add(const std::string& name, std::vector<int64_t> shape, DType dtype = DType::kBf16) {
    planner::TensorView view;
    view.name = name;
    view.dtype = dtype;
    view.shape = std::move(shape);
    view.offset = bytes_;
    bytes_ += (view.bytes() + 255) / 256 * 256;
    MW_CHECK(bytes_ <= kArena);
    block_.tensors.push_back(view);
  }
  template <typename T>
  void Set(const std::string& name, const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    MW_CHECK(bytes == View(name).bytes());
    Check(cudaMemcpy(arena_ + View(name).offset, values.data(), static_cast<size_t>(bytes),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  /// Times the op and prints a line. `bytes`: what must move, read and written.
  void Run(const std::string& what, OpKind kind, const Bindings& bindings, int64_t bytes,
           bool accumulate = true) {
    const planner::Op op =
        OpOfBindings(kind, attributes, bindings, {accumulate, false},
                     [&](const std::string& name) { return &View(name) - block_.tensors.data(); });
    Check(planner::CheckOp(block_, op, program));
    program.blocks.assign(1, planner::Block{});
    program.blocks[0].ops = {op};
    rank_.program = &program;
    rank_.binding = &binding_;
    Check(device_.step_tables().Build(rank_));
    const planner::Instance instance;
    const planner::Task task;
    const OpCall call{rank_, block_, op, instance, task, arena_};
    const Kernel kernel = CudaKernels().kernels[static_cast<size_t>(kind)];
    const double ms = Time(device_.stream(0), [&] { return kernel(call); });
    const double rate = static_cast<double>(bytes) / (ms * 1e9);
    fmt::print("{:<44} {:9.4f} ms {:7.3f} TB/s {:6.1f} %\n", what, ms, rate,
               100.0 * rate / copy_rate_);
    std::fflush(stdout);
  }

 private:
  const planner::TensorView& View(const std::string& name) const {
    for (const planner::TensorView& view : block_.tensors) {
      if (view.name == name) return view;
    }
    MW_CHECK(false && "no such tensor");
    std::abort();
  }

  CudaDevice& device_;
  std::byte* arena_;
  double copy_rate_;  ///< TB/s
  int64_t bytes_ = 0;
  planner::Block block_;
  planner::RankBinding binding_;
  RankContext rank_;
};

/// Device memory of the benches, and a tile of random values to fill it with.
struct Memory {
  std::byte* arena = nullptr;
  std::byte* tile = nullptr;
};
constexpr int64_t kTile = int64_t{64} << 20;

/// Values from 0.5 to 2 as bf16 pairs, which are such values as fp32 too.
Memory Allocate() {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, static_cast<size_t>(kArena + kTile)), "cudaMalloc");
  auto* arena = static_cast<std::byte*>(memory);
  std::vector<uint32_t> tile(static_cast<size_t>(kTile / 4));
  std::mt19937 engine(1);
  for (uint32_t& word : tile) word = (static_cast<uint32_t>(engine()) & 0x00FF00FFu) | 0x3F003F00u;
  Check(cudaMemcpy(arena + kArena, tile.data(), static_cast<size_t>(kTile), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  return {arena, arena + kArena};
}

void Fill(const Memory& memory) {
  for (int64_t at = 0; at < kArena; at += kTile) {
    Check(cudaMemcpy(memory.arena + at, memory.tile, static_cast<size_t>(kTile),
                     cudaMemcpyDeviceToDevice),
          "cudaMemcpy");
  }
  Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

double CopyRate(const CudaDevice& device, std::byte* arena) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const double ms = Time(device.stream(0), [&] {
    return CudaStatus(cudaMemcpyAsync(arena + kBytes, arena, static_cast<size_t>(kBytes),
                                      cudaMemcpyDeviceToDevice, device.stream(0)),
                      "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(kBytes) / (ms * 1e9);
}

void Norms(const std::function<Bench()>& make, int64_t h) {
  const int64_t n = kRows * h * 2;  // bytes of a tensor
  for (bool layer : {false, true}) {
    Bench b = make();
    b.attributes.norm = layer ? planner::NormKind::kLayerNorm : planner::NormKind::kRmsNorm;
    b.attributes.eps = 1e-5;
    for (const char* name : {"r", "delta", "r1", "n"}) b.Add(name, {kRows, h});
    for (const char* name : {"gamma", "beta"}) b.Add(name, {h});
    for (const char* name : {"dgamma", "dbeta"}) b.Add(name, {h}, DType::kF32);
    b.Add("stat", {layer ? 2 * kRows : kRows}, DType::kF32);
    const std::string kind = fmt::format("{} h {}", layer ? "layer norm" : "RMS norm", h);
    Bench::Bindings forward = {{"r", "r"},   {"delta", "delta"}, {"gamma", "gamma"},
                               {"r1", "r1"}, {"n", "n"},         {"stat", "stat"}};
    Bench::Bindings backward = {
        {"dn", "n"},    {"r1", "r1"},        {"stat", "stat"},        {"gamma", "gamma"},
        {"dr_in", "r"}, {"dr_out", "delta"}, {"gamma_grad", "dgamma"}};
    if (layer) {
      forward.emplace_back("beta", "beta");
      backward.emplace_back("beta_grad", "dbeta");
    }
    b.Run("residual + " + kind, OpKind::kNorm, forward, 4 * n);
    b.Run(kind + " again", OpKind::kNormApply,
          {{"r1", "r1"}, {"stat", "stat"}, {"gamma", "gamma"}, {"n", "n"}}, 2 * n);
    b.Run(kind + " backward", OpKind::kNormGrad, backward, 4 * n);
  }
}

void Elementwise(const std::function<Bench()>& make, int64_t h, int64_t head_dim) {
  const int64_t n = kRows * h * 2;
  Bench b = make();
  for (const char* name : {"a", "b", "out"}) b.Add(name, {kRows, h});
  b.Add("bias", {h});
  b.Add("dbias", {h}, DType::kF32);
  b.Run(fmt::format("add h {}", h), OpKind::kAdd, {{"a", "a"}, {"b", "b"}, {"out", "out"}}, 3 * n);
  b.Run(fmt::format("copy h {}", h), OpKind::kCopy, {{"a", "a"}, {"out", "out"}}, 2 * n);
  b.Run(fmt::format("bias add h {}", h), OpKind::kBiasAdd, {{"bias", "bias"}, {"y", "a"}}, 2 * n);
  b.Run(fmt::format("bias gradient h {}", h), OpKind::kBiasGrad,
        {{"dy", "a"}, {"bias_grad", "dbias"}}, n);
  b.Add("tall", {4 * kRows, h});  // the start counts less
  b.Run(fmt::format("bias gradient h {}, {} rows", h, 4 * kRows), OpKind::kBiasGrad,
        {{"dy", "tall"}, {"bias_grad", "dbias"}}, 4 * n);

  Bench r = make();
  planner::OpAttributes& a = r.attributes;
  a.sequence = 4096;
  a.batch = kRows / 4096;
  a.heads = h / head_dim;
  a.kv_heads = 8;
  a.head_dim = head_dim;
  a.rope_theta = 500000.0;
  r.Add("qkv", {a.sequence, a.batch, (a.heads + 2 * a.kv_heads) * head_dim});
  r.Run(fmt::format("rotary h {} d {}", h, head_dim), OpKind::kRotary, {{"qkv", "qkv"}},
        2 * kRows * (a.heads + a.kv_heads) * head_dim * 2);
}

void Activations(const std::function<Bench()>& make, int64_t f, bool gated) {
  const int64_t n = kRows * f * 2;
  const int64_t width = gated ? 2 * f : f;
  Bench b = make();
  b.attributes.gated = gated;
  b.attributes.activation = gated ? planner::Activation::kSilu : planner::Activation::kGeluTanh;
  b.Add("u", {kRows, width});
  b.Add("ds", {kRows, f});
  b.Add("s", {kRows, f});
  b.Add("du", {kRows, width});
  const std::string kind = fmt::format("{} f {}", gated ? "SwiGLU" : "GELU (tanh)", f);
  const int64_t u = gated ? 2 * n : n;
  b.Run(kind, OpKind::kActivation, {{"u", "u"}, {"s", "s"}}, u + n);
  b.Run(kind + " backward", OpKind::kActivationGrad, {{"u", "u"}, {"ds", "ds"}, {"du", "du"}},
        2 * u + n);
  b.Run(kind + " backward, s again", OpKind::kActivationGrad,
        {{"u", "u"}, {"ds", "ds"}, {"du", "du"}, {"s", "s"}}, 2 * u + 2 * n);
}

void Loss(const std::function<Bench()>& make) {
  constexpr int64_t kChunk = 2048;
  constexpr int64_t kVocab = 128256;
  Bench b = make();
  b.attributes.vocab = kVocab;
  b.Add("logits", {kChunk, kVocab});
  b.Add("labels", {kChunk}, DType::kI32);
  b.Add("stats", {kChunk, 3}, DType::kF32);
  b.Add("loss", {1}, DType::kF64);
  b.Add("inverse", {1}, DType::kF64);
  std::vector<int32_t> labels(static_cast<size_t>(kChunk));
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(i * 61 % kVocab);
  b.Set("labels", labels);
  b.Set("inverse", std::vector<double>{1.0 / static_cast<double>(kRows)});
  b.Set("loss", std::vector<double>{0.0});
  const int64_t n = kChunk * kVocab * 2;
  b.Run("softmax statistics 2048 x 128256", OpKind::kSoftmaxStats,
        {{"logits", "logits"}, {"labels", "labels"}, {"stats", "stats"}}, n);
  b.Run("cross-entropy gradient 2048 x 128256", OpKind::kCrossEntropyGrad,
        {{"stats", "stats"},
         {"labels", "labels"},
         {"logits", "logits"},
         {"loss", "loss"},
         {"inverse", "inverse"}},
        2 * n);
}

void Embedding(const std::function<Bench()>& make, int64_t h) {
  constexpr int64_t kVocab = 128256;
  Bench b = make();
  b.Add("tokens", {kRows}, DType::kI32);
  b.Add("weight", {kVocab, h});
  b.Add("g", {kVocab, h}, DType::kF32);
  b.Add("y", {kRows, h});
  std::vector<int32_t> tokens(static_cast<size_t>(kRows));
  std::mt19937 engine(1);
  std::uniform_real_distribution<double> uniform;
  for (int32_t& id : tokens) {  // frequent and rare ids
    const double u = uniform(engine);
    id = static_cast<int32_t>(u * u * u * kVocab);
  }
  b.Set("tokens", tokens);
  std::vector<int32_t> uniform_ids;
  for (size_t i = 0; i < tokens.size(); ++i) {
    uniform_ids.push_back(static_cast<int32_t>(uniform(engine) * kVocab));
  }
  const int64_t n = kRows * h * 2;
  b.Run(fmt::format("embedding h {}", h), OpKind::kEmbed,
        {{"tokens", "tokens"}, {"weight", "weight"}, {"y", "y"}}, 2 * n);
  const Bench::Bindings gradient = {{"tokens", "tokens"}, {"dy", "y"}, {"weight_grad", "g"}};
  b.Run(fmt::format("embedding gradient h {}, adds", h), OpKind::kEmbedGrad, gradient, 5 * n);
  b.Run(fmt::format("embedding gradient h {}, writes", h), OpKind::kEmbedGrad, gradient,
        5 * n + kVocab * h * 4, false);
  b.Set("tokens", uniform_ids);
  b.Run(fmt::format("embedding gradient h {}, adds, rare ids", h), OpKind::kEmbedGrad, gradient,
        5 * n);
}

void Step(const std::function<Bench()>& make, DType dtype) {
  constexpr int64_t kElements = 125'000'000 / 64 * 64;  // a billion over 8 ranks
  const bool master = dtype == DType::kBf16;
  Bench b = make();
  planner::ParameterEntry entry;
  entry.name = "weights";
  entry.global_shape = entry.local_shape = {kElements};
  b.program.parameters = {entry};
  b.program.buckets = {planner::Bucket{0, kElements, 0}};
  b.attributes.bucket = 0;
  b.Add("p", {kElements}, dtype);
  b.Add("g", {kElements}, DType::kF32);
  b.Add("state", {(master ? 3 : 2) * kElements}, DType::kF32);
  for (const char* name : {"clip", "rate", "norm"}) b.Add(name, {1}, DType::kF64);
  b.Add("step", {1}, DType::kI64);
  b.Set("clip", std::vector<double>{1.0});
  b.Set("rate", std::vector<double>{1e-4});
  b.Set("norm", std::vector<double>{0.0});
  b.Set("step", std::vector<int64_t>{10});
  if (master) {
    b.Run("squared norm, 125 M elements", OpKind::kSquaredNorm,
          {{"gradient", "g"}, {"norm", "norm"}}, 4 * kElements);
  }
  b.Run(fmt::format("AdamW, 125 M {} parameters", planner::ToString(dtype)), OpKind::kOptimizerStep,
        {{"parameter", "p"},
         {"gradient", "g"},
         {"state", "state"},
         {"clip", "clip"},
         {"learning_rate", "rate"},
         {"step", "step"}},
        (master ? 30 : 28) * kElements);
}

int Main(int argc, char** argv) {
  CudaDeviceOptions options;
  if (argc > 1) options.ordinal = std::atoi(argv[1]);
  auto opened = CudaDevice::Open(options, {true});
  if (!opened.ok()) Fail(opened.status());
  CudaDevice& device = **opened;
  const Memory memory = Allocate();
  std::byte* const arena = memory.arena;
  Fill(memory);
  const double copy_rate = CopyRate(device, arena);
  fmt::print("device-to-device copy of 1 GiB: {:.3f} TB/s read and written; shares are of this\n",
             copy_rate);
  const auto make = [&] {
    Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    Fill(memory);
    return Bench(device, arena, copy_rate);
  };
  for (int64_t h : {2048, 4096}) Norms(make, h);
  Elementwise(make, 2048, 64);
  Elementwise(make, 4096, 128);
  for (int64_t f : {8192, 14336}) Activations(make, f, true);
  Activations(make, 8192, false);
  Loss(make);
  for (int64_t h : {2048, 4096}) Embedding(make, h);
  for (DType dtype : {DType::kBf16, DType::kF32}) Step(make, dtype);
  Check(cudaFree(arena), "cudaFree");
  return 0;
}

}  // namespace
}  // namespace meshwright::runtime::cuda

int main(int argc, char** argv) {
  return meshwright::runtime::cuda::Main(argc, argv);
}

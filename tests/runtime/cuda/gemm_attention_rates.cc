// Prints what GEMMs and attention reach on the present GPU, shape by shape, as CSV: products of
// Llama shapes with the heuristics' first algorithm and with the tuned one, and attention forward
// and backward (causal work counted as half of the square). Not a test.
//
//   gemm_attention_rates [gemm|attention] [tuning file]
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "planner/ir/attention_workspace.h"
#include "runtime/cuda/attention.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/gemm.h"
#include "tests/runtime/cuda/gpu_op.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::AttentionShape;
using planner::DType;
using planner::OpKind;

struct Model {
  const char* name;
  int64_t hidden, heads, kv_heads, head_dim, mlp, tokens;
};
constexpr Model kModels[] = {{"1B", 2048, 32, 8, 64, 8192, 16384},
                             {"3B", 3072, 24, 8, 128, 8192, 8192},
                             {"8B", 4096, 32, 8, 128, 14336, 4096}};
/// Rows and columns of one chunk of the head, as chunked heads have them.
constexpr int64_t kHeadRows = 2048;
constexpr int64_t kVocab = 128256;

struct Named {
  std::string name;
  GemmKey key;
};

GemmKey Dense(int64_t m, int64_t n, int64_t k) {
  GemmKey key;
  key.m = m, key.n = n, key.k = k;
  key.lda = k, key.ldb = n, key.ldd = n;
  return key;
}

/// Forward, input gradient and weight gradient of one linear layer.
void AddLayer(const std::string& name, int64_t rows, int64_t in, int64_t out,
              std::vector<Named>* keys) {
  GemmKey forward = Dense(rows, out, in);
  forward.transpose_b = true;
  forward.ldb = in;
  keys->push_back({name + ",forward", forward});
  keys->push_back({name + ",input_grad", Dense(rows, in, out)});
  GemmKey weight = Dense(out, in, rows);
  weight.transpose_a = true;
  weight.lda = out;
  weight.output = DType::kF32;
  weight.accumulate = true;
  keys->push_back({name + ",weight_grad", weight});
}

std::vector<Named> Products() {
  std::vector<Named> keys;
  for (const Model& m : kModels) {
    for (const int64_t tp : {1, 2}) {
      const std::string at = fmt::format("{},{}", m.name, tp);
      const int64_t qkv = (m.heads + 2 * m.kv_heads) * m.head_dim / tp;
      AddLayer(at + ",qkv", m.tokens, m.hidden, qkv, &keys);
      AddLayer(at + ",out", m.tokens, m.heads * m.head_dim / tp, m.hidden, &keys);
      AddLayer(at + ",up", m.tokens, m.hidden, 2 * m.mlp / tp, &keys);
      AddLayer(at + ",down", m.tokens, m.mlp / tp, m.hidden, &keys);
      AddLayer(at + ",head", kHeadRows, m.hidden, kVocab / tp, &keys);
    }
  }
  return keys;
}

Status PrintProducts(CudaDevice& device) {
  fmt::print("model,tp,layer,pass,m,n,k,first_us,first_tflops,tuned_us,tuned_tflops,gain\n");
  for (const Named& product : Products()) {
    MW_RETURN_IF_ERROR(device.gemm().Prepare(std::span(&product.key, 1)));
    const GemmChoice& choice = device.gemm().choices().at(product.key);
    const double flops = product.key.flops();
    fmt::print("{},{},{},{},{:.1f},{:.1f},{:.1f},{:.1f},{:.3f}\n", product.name, product.key.m,
               product.key.n, product.key.k, choice.first_seconds * 1e6,
               flops / choice.first_seconds * 1e-12, choice.seconds * 1e6,
               flops / choice.seconds * 1e-12, choice.first_seconds / choice.seconds);
    std::fflush(stdout);
  }
  return Status::Ok();
}

/// Median seconds of a kernel that has been run before.
Result<double> Seconds(CudaDevice& device, Kernel kernel, const OpCall& call) {
  cudaStream_t stream = device.stream(call.op.stream);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  MW_CUDA_CALL(cudaEventCreate(&begin));
  MW_CUDA_CALL(cudaEventCreate(&end));
  std::vector<double> seconds;
  constexpr int kRuns = 4;  // a series, so that launches are not waited for
  for (int i = 0; i < 7; ++i) {
    MW_CUDA_CALL(cudaEventRecord(begin, stream));
    for (int run = 0; run < kRuns; ++run) MW_RETURN_IF_ERROR(kernel(call));
    MW_CUDA_CALL(cudaEventRecord(end, stream));
    MW_CUDA_CALL(cudaStreamSynchronize(stream));
    float milliseconds = 0.0F;
    MW_CUDA_CALL(cudaEventElapsedTime(&milliseconds, begin, end));
    seconds.push_back(static_cast<double>(milliseconds) * 1e-3 / kRuns);
  }
  MW_CUDA_CALL(cudaEventDestroy(begin));
  MW_CUDA_CALL(cudaEventDestroy(end));
  std::nth_element(seconds.begin(), seconds.begin() + 3, seconds.end());
  return seconds[3];
}

Status PrintAttention(CudaDevice& device, const char* name, const AttentionShape& s) {
  const int64_t tokens = s.sequence * s.batch;
  const auto workspace =
      planner::AttentionWorkspaceBytes(s, DType::kBf16, true, device.deterministic());
  GpuOp g(device);
  g.attributes.sequence = s.sequence, g.attributes.batch = s.batch;
  g.attributes.heads = s.heads, g.attributes.kv_heads = s.kv_heads;
  g.attributes.head_dim = s.head_dim, g.attributes.scale = s.scale;
  // Normal values: the clock of a GPU that multiplies zeros is not that of a training run.
  std::vector<double> values(static_cast<size_t>(tokens * s.packed()));
  uint64_t state = 1;
  for (double& v : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    v = static_cast<double>(static_cast<int64_t>(state) >> 32) * 0x1p-31;
  }
  const std::vector<double> d_o(values.begin(), values.begin() + tokens * s.heads * s.head_dim);
  g.Add("qkv", {s.sequence, s.batch, s.packed()}, DType::kBf16, values);
  g.Add("do", {s.sequence, s.batch, s.heads * s.head_dim}, DType::kBf16, d_o);
  g.Add("o", {s.sequence, s.batch, s.heads * s.head_dim}, DType::kBf16);
  g.Add("lse", {s.batch, s.heads, s.sequence}, DType::kF32);
  g.Add("dqkv", {s.sequence, s.batch, s.packed()}, DType::kBf16);
  g.Add("workspace", {workspace / 4}, DType::kF32);
  const GpuOp::Bindings forward = {
      {"qkv", "qkv"}, {"o", "o"}, {"lse", "lse"}, {"workspace", "workspace"}};
  const GpuOp::Bindings backward = {{"qkv", "qkv"}, {"o", "o"},       {"lse", "lse"},
                                    {"do", "do"},   {"dqkv", "dqkv"}, {"workspace", "workspace"}};
  const double square = static_cast<double>(s.sequence) * static_cast<double>(s.sequence) * 0.5 *
                        static_cast<double>(s.batch * s.heads * s.head_dim);
  struct Pass {
    const char* name;
    Kernel kernel;
    OpKind kind;
    const GpuOp::Bindings& bindings;
    double products;  ///< matrix products of the square
  };
  for (const Pass& pass :
       {Pass{"forward", &Attention, OpKind::kAttention, forward, 2.0},
        Pass{"backward", &AttentionGrad, OpKind::kAttentionGrad, backward, 5.0}}) {
    MW_RETURN_IF_ERROR(g.Run(pass.kernel, pass.kind, pass.bindings));
    const auto seconds = g.With(pass.kind, pass.bindings, [&](const OpCall& call) {
      return Seconds(device, pass.kernel, call);
    });
    MW_RETURN_IF_ERROR(seconds.status());
    fmt::print("{},{},{},{},{},{},{},{:.1f},{:.1f}\n", name, pass.name, s.sequence, s.batch,
               s.heads, s.kv_heads, s.head_dim, *seconds * 1e6,
               2.0 * pass.products * square / *seconds * 1e-12);
    std::fflush(stdout);
  }
  return Status::Ok();
}

Status Print(const std::string& what, const std::string& tuning_file) {
  CudaDeviceOptions options;
  options.tuning_file = tuning_file;
  MW_ASSIGN_OR_RETURN(const auto device, CudaDevice::Open(options, {true}));
  if (what != "attention") MW_RETURN_IF_ERROR(PrintProducts(*device));
  if (what == "gemm") return Status::Ok();
  MW_ASSIGN_OR_RETURN(const std::string json, device->attention().DeviceJson());
  fmt::print("# {}\n", json);
  fmt::print("model,pass,sequence,batch,heads,kv_heads,head_dim,us,tflops\n");
  for (const Model& m : kModels) {
    for (const int64_t sequence : {2048, 4096, 8192}) {
      const int64_t batch = std::max<int64_t>(1, m.tokens / sequence);
      const double scale = 1.0 / std::sqrt(static_cast<double>(m.head_dim));
      MW_RETURN_IF_ERROR(PrintAttention(
          *device, m.name, {sequence, batch, m.heads, m.kv_heads, m.head_dim, 0, true, scale}));
    }
  }
  return Status::Ok();
}

}  // namespace
}  // namespace meshwright::runtime::cuda

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  const meshwright::Status status = meshwright::runtime::cuda::Print(what, argc > 2 ? argv[2] : "");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return meshwright::ExitCode(status);
}

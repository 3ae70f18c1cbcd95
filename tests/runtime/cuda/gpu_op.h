// Runs single CUDA kernels on named tensors: makes the block, the op and a device arena around
// them. Every tensor starts as 0xFF bytes, NaN in all float types.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "planner/ir/op_schema.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/kernels.h"
#include "tests/runtime/op_of_bindings.h"

namespace meshwright::runtime::cuda {

/// Round to nearest even, as the GPU stores bf16.
inline uint16_t ToBf16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (std::isnan(value)) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
inline double FromBf16(uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}
/// Values as a tensor of this dtype holds them.
inline std::vector<double> Rounded(std::vector<double> values, planner::DType dtype) {
  for (double& v : values) {
    v = dtype == planner::DType::kBf16 ? FromBf16(ToBf16(v))
                                       : static_cast<double>(static_cast<float>(v));
  }
  return values;
}

/// Why there is no GPU to test on; empty when there is one.
inline std::string NoGpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no device" : "";
}

class GpuOp {
 public:
  using Values = std::vector<double>;
  using Bindings = OpBindings;

  explicit GpuOp(CudaDevice& device) {
    block_.name = "test";
    rank_.device = &device;
    rank_.program = &program_;
    rank_.binding = &binding_;
  }
  ~GpuOp() { static_cast<void>(cudaFree(arena_)); }
  GpuOp(const GpuOp&) = delete;
  GpuOp& operator=(const GpuOp&) = delete;

  planner::OpAttributes attributes;
  bool first_micro_batch = false;  ///< gradients are written, not added to
  bool add_to_products = false;    ///< outputs of kLinear and kLinearInputGrad

  /// `shift` bytes off a 256-byte boundary. All tensors come before the first Run.
  void Add(const std::string& name, std::vector<int64_t> shape, planner::DType dtype,
           int64_t shift = 0) {
    planner::TensorView view;
    view.name = name;
    view.dtype = dtype;
    view.shape = std::move(shape);
    view.offset = bytes_ + shift;
    bytes_ += (view.bytes() + shift + 255) / 256 * 256;
    block_.tensors.push_back(view);
  }
  void Add(const std::string& name, std::vector<int64_t> shape, planner::DType dtype,
           const Values& values, int64_t shift = 0) {
    Add(name, std::move(shape), dtype, shift);
    pending_.emplace_back(name, values);
  }

  void Set(const std::string& name, const Values& values) {
    Allocate();
    const planner::TensorView& view = View(name);
    ASSERT_EQ(static_cast<int64_t>(values.size()), view.elements()) << name;
    std::vector<std::byte> host(static_cast<size_t>(view.bytes()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (view.dtype == planner::DType::kBf16) {
        const uint16_t bits = ToBf16(values[i]);
        std::memcpy(&host[2 * i], &bits, 2);
      } else {
        const auto value = static_cast<float>(values[i]);
        std::memcpy(&host[4 * i], &value, 4);
      }
    }
    ASSERT_EQ(cudaMemcpy(arena_ + view.offset, host.data(), host.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  Values Get(const std::string& name) {
    const planner::TensorView& view = View(name);
    std::vector<std::byte> host(static_cast<size_t>(view.bytes()));
    EXPECT_EQ(cudaMemcpy(host.data(), arena_ + view.offset, host.size(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    Values values(static_cast<size_t>(view.elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (view.dtype == planner::DType::kBf16) {
        uint16_t bits = 0;
        std::memcpy(&bits, &host[2 * i], 2);
        values[i] = FromBf16(bits);
      } else {
        float value = 0;
        std::memcpy(&value, &host[4 * i], 4);
        values[i] = static_cast<double>(value);
      }
    }
    return values;
  }
  void Poison(const std::string& name) {
    Allocate();
    const planner::TensorView& view = View(name);
    ASSERT_EQ(cudaMemset(arena_ + view.offset, 0xFF, static_cast<size_t>(view.bytes())),
              cudaSuccess);
  }

  /// f(call) for one op with {operand, tensor} pairs; operands left out are absent.
  template <typename F>
  auto With(planner::OpKind kind, const Bindings& bindings, F f) {
    Allocate();
    const planner::Op op =
        OpOfBindings(kind, attributes, bindings, {!first_micro_batch, add_to_products},
                     [this](const std::string& tensor) { return Index(tensor); });
    const planner::Instance instance;
    const planner::Task task;
    return f(OpCall{rank_, block_, op, instance, task, arena_});
  }
  /// Runs the kernel and waits for it.
  Status Run(Kernel kernel, planner::OpKind kind, const Bindings& bindings) {
    return With(kind, bindings, [&](const OpCall& call) -> Status {
      MW_RETURN_IF_ERROR(planner::CheckOp(block_, call.op, program_));
      MW_RETURN_IF_ERROR(kernel(call));
      MW_CUDA_CALL(cudaDeviceSynchronize());
      return Status::Ok();
    });
  }

 private:
  void Allocate() {
    if (arena_ != nullptr) return;
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, static_cast<size_t>(bytes_)), cudaSuccess);
    arena_ = static_cast<std::byte*>(memory);
    ASSERT_EQ(cudaMemset(arena_, 0xFF, static_cast<size_t>(bytes_)), cudaSuccess);
    for (const auto& [name, values] : std::exchange(pending_, {})) Set(name, values);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  size_t Index(const std::string& name) const {
    for (size_t i = 0; i < block_.tensors.size(); ++i) {
      if (block_.tensors[i].name == name) return i;
    }
    ADD_FAILURE() << "no tensor " << name;
    std::abort();
  }
  const planner::TensorView& View(const std::string& name) const {
    return block_.tensors[Index(name)];
  }

  planner::RankProgram program_;
  planner::RankBinding binding_;
  planner::Block block_;
  RankContext rank_;
  std::byte* arena_ = nullptr;
  int64_t bytes_ = 0;
  std::vector<std::pair<std::string, Values>> pending_;
};

/// ||found - expected|| / ||expected||; NaN when a value is not a number.
inline double RelativeDistance(const std::vector<double>& found,
                               const std::vector<double>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace meshwright::runtime::cuda

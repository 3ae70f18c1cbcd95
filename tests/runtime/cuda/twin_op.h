// Runs one op on the CPU table in fp64 and on the CUDA table, from the same values rounded to the
// GPU's dtypes. Every tensor starts as NaN on both sides; bytes between the GPU's tensors must stay
// as they were.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/operands.h"
#include "runtime/cuda/step_tables.h"
#include "tests/runtime/cuda/gpu_op.h"
#include "tests/runtime/kernel_harness.h"

namespace meshwright::runtime::cuda {

/// The GPU of the tests, opened once and never closed: libraries may be gone at exit.
inline CudaDevice& TestDevice(bool deterministic = false) {
  static CudaDevice* devices[2] = {};
  CudaDevice*& device = devices[deterministic ? 1 : 0];
  if (device == nullptr) {
    CudaDeviceOptions options;
    options.deterministic = deterministic;
    auto opened = CudaDevice::Open(options, {true});
    if (!opened.ok()) ADD_FAILURE() << opened.status().message();
    device = std::move(opened).value().release();
  }
  return *device;
}

/// |found - expected| <= relative * |expected| + absolute * max |expected|.
struct Tolerance {
  double relative = 0.0;
  double absolute = 0.0;
};
/// A result that is rounded once to `dtype` after arithmetic in fp32.
inline Tolerance RoundedOnce(planner::DType dtype) {
  if (dtype == planner::DType::kBf16) return {1.0 / 256, 2e-5};
  return {2e-6, 2e-6};
}

class TwinOp {
 public:
  using Values = std::vector<double>;
  using Bindings = KernelHarness::Bindings;

  explicit TwinOp(planner::DType compute, bool deterministic = false)
      : device_(TestDevice(deterministic)), compute_(compute) {
    block_.name = "test";
  }

  KernelHarness cpu{
      planner::DType::kF64};  ///< its attributes, program, binding and rank() hold for both
  int64_t shift = 0;          ///< bytes that the GPU's tensors added from here on lie off alignment

  /// Tensors of the compute dtype: results, and inputs with values.
  void Add(const std::string& name, std::vector<int64_t> shape) {
    cpu.Add(name, shape);
    AddGpu(name, std::move(shape), compute_);
  }
  void Add(const std::string& name, std::vector<int64_t> shape, const Values& values) {
    AddBoth(name, std::move(shape), compute_, values);
  }
  /// fp32 on the GPU whatever the compute dtype: gradients and statistics.
  void AddFloat(const std::string& name, std::vector<int64_t> shape) {
    cpu.Add(name, shape);
    AddGpu(name, std::move(shape), planner::DType::kF32);
  }
  void AddFloat(const std::string& name, std::vector<int64_t> shape, const Values& values) {
    AddBoth(name, std::move(shape), planner::DType::kF32, values);
  }
  void AddScalar(const std::string& name, double value) {
    cpu.AddScalar(name, value);
    AddGpu(name, {1}, planner::DType::kF64, {value});
  }
  void AddDoubles(const std::string& name, const Values& values) {
    cpu.Add(name, {static_cast<int64_t>(values.size())}, values);
    AddGpu(name, {static_cast<int64_t>(values.size())}, planner::DType::kF64, values);
  }
  void AddLong(const std::string& name, int64_t value) {
    cpu.AddLong(name, value);
    AddGpu(name, {1}, planner::DType::kI64);
    std::memcpy(At(name), &value, sizeof(value));
  }
  void AddInts(const std::string& name, std::vector<int64_t> shape,
               const std::vector<int32_t>& values) {
    cpu.AddInts(name, shape, values);
    AddGpu(name, std::move(shape), planner::DType::kI32);
    std::memcpy(At(name), values.data(), values.size() * sizeof(int32_t));
  }
  /// A tensor of the GPU alone, for operands whose shape or dtype differs from the CPU's.
  void AddGpu(const std::string& name, std::vector<int64_t> shape, planner::DType dtype) {
    planner::TensorView view;
    view.name = name;
    view.dtype = dtype;
    view.shape = std::move(shape);
    // Scalars and integers keep their alignment.
    const bool shifts = dtype == planner::DType::kBf16 || dtype == planner::DType::kF32;
    view.offset = static_cast<int64_t>(image_.size()) + (shifts ? shift : 0);
    image_.resize(image_.size() + static_cast<size_t>((view.bytes() + shift + 511) / 256 * 256),
                  std::byte{0xFF});
    block_.tensors.push_back(view);
  }
  void AddGpu(const std::string& name, std::vector<int64_t> shape, planner::DType dtype,
              const Values& values) {
    AddGpu(name, std::move(shape), dtype);
    SetGpu(name, values);
  }
  /// New name for the memory of `of` on both sides.
  void Alias(const std::string& name, const std::string& of) {
    cpu.Alias(name, of);
    planner::TensorView view = View(of);
    view.name = name;
    block_.tensors.push_back(view);
  }

  /// Runs both.
  Status Run(planner::OpKind kind, const Bindings& bindings) {
    MW_RETURN_IF_ERROR(cpu.Run(kind, bindings).WithContext("CPU"));
    return RunGpu(kind, bindings);
  }
  Status RunGpu(planner::OpKind kind, const Bindings& bindings) {
    const planner::Op op =
        OpOfBindings(kind, cpu.attributes, bindings, {!cpu.first_micro_batch, cpu.add_to_products},
                     [this](const std::string& tensor) { return Index(tensor); });
    planner::RankProgram program = cpu.program;
    MW_RETURN_IF_ERROR(planner::CheckOp(block_, op, program));
    program.blocks.emplace_back().ops.push_back(op);
    RankContext rank = cpu.rank();
    rank.facts.dtypes = planner::PolicyOf(compute_);
    rank.program = &program;
    rank.binding = &cpu.binding;
    rank.device = &device_;
    MW_RETURN_IF_ERROR(device_.step_tables().Build(rank));
    return OnDevice([&](std::byte* arena) {
      const planner::Instance instance;
      const planner::Task task;
      return CudaKernels().kernels[static_cast<size_t>(kind)](
          OpCall{rank, block_, op, instance, task, arena});
    });
  }

  Values Gpu(const std::string& name) const {
    const planner::TensorView& view = View(name);
    const std::byte* at = image_.data() + view.offset;
    Values values(static_cast<size_t>(view.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = Element(view.dtype, at, i);
    return values;
  }
  int64_t GpuLong(const std::string& name) const {
    int64_t value = 0;
    std::memcpy(&value, image_.data() + View(name).offset, sizeof(value));
    return value;
  }
  void SetGpu(const std::string& name, const Values& values) {
    const planner::TensorView& view = View(name);
    ASSERT_EQ(static_cast<int64_t>(values.size()), view.elements()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      if (view.dtype == planner::DType::kBf16) {
        const uint16_t bits = ToBf16(values[i]);
        std::memcpy(At(name) + 2 * i, &bits, 2);
      } else if (view.dtype == planner::DType::kF32) {
        const auto value = static_cast<float>(values[i]);
        std::memcpy(At(name) + 4 * i, &value, 4);
      } else {
        std::memcpy(At(name) + 8 * i, &values[i], 8);
      }
    }
  }
  void Expect(const std::string& name, Tolerance tolerance) {
    ExpectNear(Gpu(name), cpu.Get(name), tolerance, name);
  }
  static void ExpectNear(const Values& found, const Values& expected, Tolerance tolerance,
                         const std::string& what) {
    ASSERT_EQ(found.size(), expected.size()) << what;
    double scale = 0.0;
    for (double e : expected) {
      if (std::isfinite(e)) scale = std::max(scale, std::fabs(e));
    }
    size_t wrong = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] == expected[i]) continue;
      const double allowed =
          tolerance.relative * std::fabs(expected[i]) + tolerance.absolute * scale;
      // Written so that a NaN fails.
      if (std::fabs(found[i] - expected[i]) <= allowed) continue;
      if (++wrong <= 4) {
        ADD_FAILURE() << what << "[" << i << "]: " << found[i] << " instead of " << expected[i];
      }
    }
    EXPECT_EQ(wrong, 0u) << what << " of " << found.size() << " elements";
  }

 private:
  static double Element(planner::DType dtype, const std::byte* at, size_t i) {
    if (dtype == planner::DType::kBf16) {
      uint16_t bits = 0;
      std::memcpy(&bits, at + 2 * i, 2);
      return FromBf16(bits);
    }
    if (dtype == planner::DType::kF32) {
      float value = 0;
      std::memcpy(&value, at + 4 * i, 4);
      return static_cast<double>(value);
    }
    double value = 0;
    std::memcpy(&value, at + 8 * i, 8);
    return value;
  }
  void AddBoth(const std::string& name, std::vector<int64_t> shape, planner::DType dtype,
               const Values& values) {
    const Values rounded = Rounded(values, dtype);
    cpu.Add(name, shape, rounded);
    AddGpu(name, std::move(shape), dtype, rounded);
  }
  /// Copies the image up, runs f(device memory), copies it back.
  template <typename F>
  Status OnDevice(F f) {
    void* memory = nullptr;
    MW_CUDA_CALL(cudaMalloc(&memory, image_.size()));
    MW_CUDA_CALL(cudaMemcpy(memory, image_.data(), image_.size(), cudaMemcpyHostToDevice));
    MW_CUDA_CALL(cudaDeviceSynchronize());  // the kernel's stream does not wait for the copy
    const Status ran = f(static_cast<std::byte*>(memory));
    if (ran.ok()) {
      MW_CUDA_CALL(cudaDeviceSynchronize());
      MW_CUDA_CALL(cudaMemcpy(image_.data(), memory, image_.size(), cudaMemcpyDeviceToHost));
      CheckGaps();
    }
    MW_CUDA_CALL(cudaFree(memory));
    return ran;
  }
  void CheckGaps() const {
    int64_t end = 0;
    size_t touched = 0;
    const auto gap = [&](int64_t begin, int64_t stop) {
      for (int64_t i = begin; i < stop; ++i) {
        if (image_[static_cast<size_t>(i)] != std::byte{0xFF}) ++touched;
      }
    };
    for (const planner::TensorView& view : block_.tensors) {  // in order, aliases repeat
      if (view.offset < end) continue;
      gap(end, view.offset);
      end = view.offset + view.bytes();
    }
    gap(end, static_cast<int64_t>(image_.size()));
    EXPECT_EQ(touched, 0u) << "bytes written outside of tensors";
  }
  size_t Index(const std::string& name) const {
    for (size_t i = block_.tensors.size(); i-- > 0;) {
      if (block_.tensors[i].name == name) return i;
    }
    ADD_FAILURE() << "no tensor " << name;
    std::abort();
  }
  const planner::TensorView& View(const std::string& name) const {
    return block_.tensors[Index(name)];
  }
  std::byte* At(const std::string& name) { return image_.data() + View(name).offset; }

  CudaDevice& device_;
  planner::DType compute_;
  planner::Block block_;
  std::vector<std::byte> image_;
};

#define MW_ASSERT_OK(expression)                         \
  do {                                                   \
    const ::meshwright::Status mw_tested = (expression); \
    ASSERT_TRUE(mw_tested.ok()) << mw_tested.message();  \
  } while (false)

/// Tests over the dtypes of the GPU; skipped where there is none.
class CudaKernelTest : public testing::TestWithParam<planner::DType> {
 protected:
  void SetUp() override {
    if (const std::string why = NoGpu(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
};
#define MW_CUDA_KERNEL_TESTS(name)                                                       \
  INSTANTIATE_TEST_SUITE_P(DTypes, name,                                                 \
                           testing::Values(planner::DType::kBf16, planner::DType::kF32), \
                           [](const auto& tested) { return planner::ToString(tested.param); })

}  // namespace meshwright::runtime::cuda

// What shapes, precisions and kernels do to prices on GPUs.
#include <gtest/gtest.h>

#include "cost_models/cost_model.h"
#include "cost_models/op_time.h"

namespace meshwright::cost {
namespace {

CostModel Gpu(const std::string& name, Precision precision = Precision::kBf16) {
  Result<DeviceProfile> profile = LoadDeviceProfile(name);
  MW_CHECK(profile.ok());
  Result<CostModel> model = CostModel::Make(*profile, {{precision}});
  MW_CHECK(model.ok());
  return *model;
}

Work Product(int64_t m, int64_t n, int64_t k, Precision precision, int64_t element_bytes) {
  Work work;
  work.kind = WorkKind::kGemm;
  work.precision = precision;
  work.m = m;
  work.n = n;
  work.k = k;
  work.flops =
      Flops(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
  work.read = Bytes(element_bytes * (m * k + k * n));
  work.written = Bytes(element_bytes * m * n);
  return work;
}

double TflopsOf(const CostModel& model, const Work& work) {
  return work.flops.value() / ToSeconds(model.PriceOp(work)).value() * 1e-12;
}

Work Attention(int64_t length, int64_t head_dim, bool backward, bool causal = true) {
  Work work;
  work.kind = WorkKind::kAttention;
  work.precision = Precision::kBf16;
  work.head_dim = head_dim;
  work.kv_length = length;
  work.causal = causal;
  work.backward = backward;
  work.flops = Flops(1e13);  // long, so that the launch does not count
  return work;
}

TEST(GpuOps, RowsThatStartAtOddPlacesAreSlow) {
  const CostModel a100 = Gpu("a100-80");
  auto slowdown = [&](int64_t n, int64_t k) {
    return ToSeconds(a100.PriceOp(Product(8192, n, k, Precision::kBf16, 2))).value() /
           ToSeconds(a100.PriceOp(Product(8192, 51200, 14336, Precision::kBf16, 2))).value();
  };
  // ELEUTHER-VOCAB: 72 to 74 TFLOP/s at odd sizes, 137 to 173 at even ones, 255 at multiples of 64.
  EXPECT_NEAR(slowdown(51201, 14336), 3.5, 0.3);
  EXPECT_NEAR(slowdown(51200, 14337), 3.5, 0.3);
  EXPECT_NEAR(slowdown(51202, 14336), 1.6, 0.3);
  EXPECT_NEAR(slowdown(51216, 14336), 1.0, 0.02);
  // Tokens may be odd; in a weight gradient they are summed over and the rows are those of m and n.
  EXPECT_NEAR(ToSeconds(a100.PriceOp(Product(8193, 4096, 4096, Precision::kBf16, 2))) /
                  ToSeconds(a100.PriceOp(Product(8192, 4096, 4096, Precision::kBf16, 2))),
              1.0, 0.1);
  GemmShape gradient{4096, 4096, 8193, 1, Precision::kBf16, true};
  EXPECT_EQ(AlignmentShare(gradient, a100.profile().gpu->gemm), 1);
  gradient.m = 50257;
  EXPECT_LT(AlignmentShare(gradient, a100.profile().gpu->gemm), 0.3);
  // In fp8 the same number of elements is half the bytes.
  GemmShape shape{4096, 4096, 8 * 3, 1, Precision::kBf16, false};
  GemmFit fit;
  fit.alignment = {{8, {0.5, {}}, {1.0, {}}}};
  EXPECT_EQ(AlignmentShare(shape, fit), 1);
  shape.precision = Precision::kFp8;
  EXPECT_EQ(AlignmentShare(shape, fit), 0.5);
}

TEST(GpuOps, PrecisionsHaveTheirOwnFits) {
  const CostModel h100 = Gpu("h100-sxm", Precision::kFp8);
  // DEEPGEMM-0016: 1520 TFLOP/s on H800.
  EXPECT_NEAR(TflopsOf(h100, Product(4096, 7168, 16384, Precision::kFp8, 1)), 1520, 80);
  const CostModel gb300 = Gpu("gb300", Precision::kFp4);
  const CostModel gb300_8 = Gpu("gb300", Precision::kFp8);
  EXPECT_GT(TflopsOf(gb300, Product(16384, 16384, 16384, Precision::kFp4, 1)),
            1.5 * TflopsOf(gb300_8, Product(16384, 16384, 16384, Precision::kFp8, 1)));
}

TEST(GpuOps, SumsInFp32CostTraffic) {
  const CostModel a100 = Gpu("a100-pcie-80");
  Work work = Product(8192, 8192, 1024, Precision::kBf16, 2);
  const Seconds plain = a100.ExplainOp(work).arithmetic;
  work.accumulate = true;
  const double traffic = 8.0 * 8192 * 8192 / 1.935e12;
  EXPECT_NEAR(a100.ExplainOp(work).arithmetic.value() - plain.value(),
              traffic * a100.profile().gpu->gemm.accumulation.value, 1e-9);
}

TEST(GpuOps, KernelsHaveTheirOwnBandwidth) {
  const CostModel gb200 = Gpu("gb200");
  Work work;
  work.read = Bytes(int64_t{1} << 30);
  auto rate = [&](const char* kernel) {
    work.kernel = kernel;
    return static_cast<double>(work.read.value()) / gb200.ExplainOp(work).memory.value();
  };
  EXPECT_NEAR(rate("norm_grad.rms_norm@torch"), 0.28 * 8e12, 0.05 * 8e12);
  EXPECT_NEAR(rate("norm_grad.rms_norm@cudnn"), 0.70 * 8e12, 0.05 * 8e12);
  EXPECT_NEAR(rate("norm_grad.rms_norm"), 0.89 * 8e12, 0.05 * 8e12);  // none of its own
}

TEST(GpuOps, FewBlocksOfAttentionTakeAsLongAsTheLongest) {
  const CostModel h200 = Gpu("h200-sxm");
  const auto time = [&](double heads, bool backward) {
    Work work;
    work.kind = WorkKind::kAttention;
    work.precision = Precision::kBf16;
    work.head_dim = 64;
    work.kv_length = 1024;
    work.causal = true;
    work.backward = backward;
    work.flops = Flops(heads * (backward ? 10 : 4) * 1024.0 * 1024 * 64 / 2);
    return h200.ExplainOp(work).arithmetic.value() * 1e6;
  };
  // GPT-2's 12 heads, a sequence: 14.2 and 40 us measured in a run with launches, of which the
  // backward pass has three (cost_models/h200_runs.md).
  EXPECT_NEAR(time(12, false), 13, 1);
  EXPECT_NEAR(time(12, true), 33, 2);
  EXPECT_DOUBLE_EQ(time(1, false), time(12, false)) << "fewer blocks are not faster";
  EXPECT_GT(time(48, false), 1.9 * time(12, false)) << "more than one a unit: work counts";
  EXPECT_NEAR(time(192, false) / time(96, false), 2, 1e-9);
}

TEST(GpuOps, FewHeadsLeaveUnitsIdle) {
  const CostModel b200 = Gpu("b200");
  // SIMUMAX-B200-0623, -0647: 64 and 4 heads, 4096 tokens, 980 and 188 TFLOP/s.
  auto rate = [&](int64_t heads) {
    Work work = Attention(4096, 128, false);
    work.flops = Flops(2.0 * 4096 * 4096 * 128 * static_cast<double>(heads));
    return work.flops.value() / b200.ExplainOp(work).arithmetic.value() * 1e-12;
  };
  EXPECT_NEAR(rate(64), 980, 150);
  EXPECT_NEAR(rate(4), 188, 30);
}

TEST(GpuOps, AttentionByPrecisionAndOrderOfSums) {
  const CostModel gb200 = Gpu("gb200");
  const CostModel gb200_8 = Gpu("gb200", Precision::kFp8);
  Work work = Attention(8192, 128, true);
  const double plain = TflopsOf(gb200, work);
  work.deterministic = true;
  EXPECT_LT(TflopsOf(gb200, work), plain);
  EXPECT_EQ(TflopsOf(Gpu("h200-sxm"), work),
            TflopsOf(Gpu("h200-sxm"), Attention(8192, 128, true)));  // not measured apart
  work.precision = Precision::kFp8;
  EXPECT_GT(TflopsOf(gb200_8, work), plain);
}

}  // namespace
}  // namespace meshwright::cost

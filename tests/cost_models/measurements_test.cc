// The shipped constants of ops against the measurements that they were fitted to. The tables may
// not be committed, so these tests need the shared folder beside the checkout.
#include "tests/cost_models/measurements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "cost_models/cost_model.h"
#include "cost_models/op_time.h"

namespace meshwright::cost {
namespace {

constexpr double kProductMemoryEfficiency = 0.78;  // as fit_gemm.py has it

// Rows of the published GEMM table that fit_gemm.py reads for a device.
struct ProductSet {
  const char* profile;
  Precision precision;
  std::vector<std::string> ids;
  std::string op;     // empty: all
  std::string dtype;  // beginning
  double least_seconds;
  double bandwidth;  // bytes/s
};

double MeasuredSeconds(const Work& work, const std::string& tflops) {
  return work.flops.value() / (std::stod(tflops) * 1e12);
}

// Time as CostModel::ExplainOp has it, without the launch.
double ProductSeconds(const Work& work, const GpuModel& gpu, FlopsPerSecond peak,
                      double bandwidth) {
  const GemmShape shape{work.m, work.n, work.k, work.batch, work.precision, work.accumulate};
  const double bytes = static_cast<double>(work.batch) *
                       (static_cast<double>(BitsOf(work.precision)) / 8 *
                            static_cast<double>(work.m * work.k + work.k * work.n) +
                        2.0 * static_cast<double>(work.m * work.n));
  return std::max(GpuGemmTime(shape, gpu, peak, BytesPerSecond(bandwidth)).value(),
                  bytes / (bandwidth * kProductMemoryEfficiency));
}

Work ProductOf(Row& row, Precision precision) {
  Work work;
  work.kind = WorkKind::kGemm;
  work.precision = precision;
  work.m = std::stoll(row["m"]);
  work.n = std::stoll(row["n"]);
  work.k = std::stoll(row["k"]);
  work.batch = row["batch"].empty() ? 1 : std::stoll(row["batch"]);
  work.accumulate = row["accumulate"] == "True" && row["out_dtype"] == "fp32";
  work.flops = Flops(2.0 * static_cast<double>(work.m) * static_cast<double>(work.n) *
                     static_cast<double>(work.k) * static_cast<double>(work.batch));
  return work;
}

Residuals OfProducts(const std::vector<Row>& rows, const ProductSet& set) {
  const DeviceProfile profile = Load(set.profile);
  Residuals residuals;
  for (Row row : rows) {
    if (!StartsWithAny(row["id"], set.ids) || !row["dtype"].starts_with(set.dtype)) continue;
    if (!set.op.empty() && row["op"] != set.op) continue;
    const Work work = ProductOf(row, set.precision);
    const double measured = MeasuredSeconds(work, row["measured_tflops"]);
    if (measured < set.least_seconds) continue;
    residuals.Add(
        ProductSeconds(work, *profile.gpu, *PeakOf(profile, set.precision), set.bandwidth),
        measured);
  }
  return residuals;
}

// The residuals in the profile are those that the C++ model has: fit and model are one formula.
void ExpectFit(Residuals residuals, const GemmFit& fit, const std::string& name) {
  ASSERT_EQ(static_cast<int64_t>(residuals.size()), fit.fit_rows.value) << name;
  EXPECT_NEAR(residuals.Median(), fit.fit_median.value, 0.001) << name;
  EXPECT_NEAR(residuals.P90(), fit.fit_p90.value, 0.002) << name;
}

TEST(Measurements, ProductsOnH200) {
  const std::vector<Row> rows = ReadCsv("h200/h200_gemm_bf16.csv");
  if (rows.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  const DeviceProfile profile = Load("h200-sxm");
  Residuals residuals;
  for (Row row : rows) {
    const double seconds = std::stod(row["seconds"]);
    if (seconds < 40e-6) continue;
    const GemmShape shape{std::stoll(row["m"]), std::stoll(row["n"]), std::stoll(row["k"])};
    residuals.Add(GpuGemmTime(shape, *profile.gpu, *PeakOf(profile, Precision::kBf16),
                              profile.memory_bandwidth.value)
                      .value(),
                  seconds);
  }
  ExpectFit(residuals, profile.gpu->gemm, "h200-sxm");
}

TEST(Measurements, ProductsOnPublishedDevices) {
  const std::vector<Row> rows = ReadCsv("published/gemm.csv");
  if (rows.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  const ProductSet sets[] = {
      {"a100-40",
       Precision::kFp16,
       {"ELEUTHER-A100-", "ELEUTHER-VOCAB-"},
       "",
       "",
       100e-6,
       1.555e12},
      {"a100-pcie-80", Precision::kBf16, {"SIMUMAX-A100PCIE-"}, "matmul", "", 0, 1.935e12},
      {"b200", Precision::kBf16, {"SIMUMAX-B200-"}, "matmul", "", 0, 7.7e12},
      {"v100-32", Precision::kFp16, {"ELEUTHER-V100-"}, "", "", 100e-6, 0.9e12},
      {"h100-sxm", Precision::kFp8, {"DEEPGEMM-", "VLLM49363-"}, "gemm", "fp8", 0, 3.35e12},
  };
  for (const ProductSet& set : sets) {
    const DeviceProfile profile = Load(set.profile);
    ExpectFit(OfProducts(rows, set), FitFor(*profile.gpu, set.precision), set.profile);
  }
}

// Not fitted: the constants of H200 on H100. Short ones ran faster there than sustained ones.
TEST(Measurements, ProductsOnH100) {
  const std::vector<Row> rows = ReadCsv("published/gemm.csv");
  if (rows.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  Residuals residuals;
  const DeviceProfile profile = Load("h100-sxm");
  for (Row row : rows) {
    if (row["gpu"] != "H100 80GB HBM3 (SXM)" && row["gpu"] != "H100 SXM") continue;
    const Work work = ProductOf(row, Precision::kBf16);
    const double measured = MeasuredSeconds(work, row["measured_tflops"]);
    if (measured < 1e-3) continue;
    residuals.Add(ProductSeconds(work, *profile.gpu, *PeakOf(profile, Precision::kBf16),
                                 profile.memory_bandwidth.value.value()),
                  measured);
  }
  residuals.ExpectNoWorse("h100", 5, 0.057, 0.132);
}

int64_t Number(const std::string& text, const std::string& name) {
  std::smatch found;
  const std::regex pattern(name + "=(\\d+)");
  MW_CHECK(std::regex_search(text, found, pattern));
  return std::stoll(found[1]);
}

// Attention work of `heads` heads in all of one length; rates count causal work as half.
Work AttentionOf(int64_t length, int64_t head_dim, int64_t value_dim, int64_t heads, bool causal,
                 bool backward) {
  Work work;
  work.kind = WorkKind::kAttention;
  work.head_dim = head_dim;
  work.kv_length = length;
  work.causal = causal;
  work.backward = backward;
  const double pairs = static_cast<double>(heads) * static_cast<double>(length) *
                       static_cast<double>(length) * (causal ? 0.5 : 1.0);
  work.flops = Flops((backward ? 10 : 4) * pairs * static_cast<double>(head_dim + value_dim) / 2);
  return work;
}

Residuals OfAttention(const std::vector<Row>& kernels, const std::string& profile_name,
                      const std::string& gpu, const std::string& backend) {
  const DeviceProfile profile = Load(profile_name);
  Residuals residuals;
  for (Row row : kernels) {
    if (row["kernel"] != "attention" || row["gpu"] != gpu || row["backend"] != backend) continue;
    if (row["notes"].find("window") != std::string::npos || row["q_seq"] != row["kv_seq"]) continue;
    if (row["dtype"] != "bfloat16" && row["dtype"] != "fp8") continue;
    Work work = AttentionOf(std::stoll(row["q_seq"]), std::stoll(row["head_dim_qk"]),
                            std::stoll(row["head_dim_vo"]),
                            std::stoll(row["batch"]) * std::stoll(row["heads"]),
                            row["mask"] == "causal", row["pass"] == "bwd");
    work.deterministic = row["deterministic"] == "True";
    work.precision = row["dtype"] == "fp8" ? Precision::kFp8 : Precision::kBf16;
    residuals.Add(GpuAttentionTime(work, *profile.gpu).value(),
                  MeasuredSeconds(work, row["measured_tflops"]));
  }
  return residuals;
}

TEST(Measurements, AttentionOnPublishedDevices) {
  const std::vector<Row> kernels = ReadCsv("published/kernels.csv");
  if (kernels.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  OfAttention(kernels, "a100-80", "A100 80GB PCIe", "flash_attention")
      .ExpectNoWorse("a100", 18, 0.027, 0.079);
  OfAttention(kernels, "gb200", "GB200", "cudnn").ExpectNoWorse("gb200", 215, 0.037, 0.091);
  OfAttention(kernels, "gb300", "GB300", "cudnn").ExpectNoWorse("gb300", 215, 0.028, 0.076);
  // h200-sxm has the rates of training steps, at the clock that a GPU keeps at its power limit; the
  // published rows are of kernels alone (cost_models/h200_runs.md).
}

TEST(Measurements, AttentionByNumberOfHeads) {
  const std::vector<Row> rows = ReadCsv("published/gemm.csv");
  if (rows.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  auto residuals_of = [&](const std::string& profile_name, const std::string& ids) {
    const DeviceProfile profile = Load(profile_name);
    Residuals residuals;
    for (Row row : rows) {
      if (!row["id"].starts_with(ids) || !row["op"].starts_with("sdp_")) continue;
      const std::string& key = row["source_table"];
      const Work work = AttentionOf(
          Number(key, "seq_len"), Number(key, "qk_head_dim"), Number(key, "v_head_dim"),
          Number(key, "batch") * Number(key, "[^v]_?head_num"), true, row["op"] == "sdp_bwd");
      // The table counts causal work as the whole square.
      residuals.Add(GpuAttentionTime(work, *profile.gpu).value(),
                    2 * MeasuredSeconds(work, row["measured_tflops"]));
    }
    return residuals;
  };
  residuals_of("a100-pcie-80", "SIMUMAX-A100PCIE-").ExpectNoWorse("a100-pcie", 24, 0.008, 0.023);
  residuals_of("b200", "SIMUMAX-B200-").ExpectNoWorse("b200", 64, 0.029, 0.154);
}

TEST(Measurements, NormsOnPublishedDevices) {
  const std::vector<Row> kernels = ReadCsv("published/kernels.csv");
  if (kernels.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  const std::map<std::string, std::string> libraries = {
      {"cudnn", "cudnn"}, {"pytorch", "torch"}, {"torch_compile", "torch_compile"}};
  auto residuals_of = [&](const std::string& profile_name, const std::string& gpu) {
    const Result<CostModel> model = CostModel::Make(Load(profile_name), {});
    MW_CHECK(model.ok());
    Residuals residuals;
    for (Row row : kernels) {
      if (row["kernel"] != "rms_norm" || row["gpu"] != gpu || std::stoll(row["cols"]) < 1024)
        continue;
      const bool backward = row["pass"] == "bwd";
      Work work;
      work.kind = WorkKind::kReduction;
      work.kernel = std::string(backward ? "norm_grad" : "norm") + ".rms_norm@" +
                    libraries.at(row["backend"]);
      work.read = Bytes((backward ? 3 : 2) * 2 * std::stoll(row["rows"]) * std::stoll(row["cols"]));
      residuals.Add(
          ToSeconds(model->PriceOp(work)).value(),
          static_cast<double>(work.read.value()) / (std::stod(row["measured_gbps"]) * 1e9));
    }
    return residuals;
  };
  residuals_of("h200-sxm", "H200").ExpectNoWorse("h200", 60, 0.034, 0.173);
  residuals_of("gb200", "GB200").ExpectNoWorse("gb200", 60, 0.042, 0.230);
  residuals_of("gb300", "GB300").ExpectNoWorse("gb300", 60, 0.037, 0.189);
}

}  // namespace
}  // namespace meshwright::cost

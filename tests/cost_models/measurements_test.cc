// The shipped constants against the measurements that they were fitted to. The tables may not be
// committed, so these tests need the shared folder beside the checkout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cost_models/cost_model.h"
#include "cost_models/op_time.h"

namespace meshwright::cost {
namespace {

using Row = std::map<std::string, std::string>;

std::vector<std::string> SplitCsv(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

// Empty when the shared folder is not there.
std::vector<Row> ReadCsv(const std::string& name) {
  std::ifstream file(std::string(MESHWRIGHT_SHARED_DIR) + "/data/" + name);
  std::vector<Row> rows;
  std::string line;
  if (!std::getline(file, line)) return rows;
  const std::vector<std::string> header = SplitCsv(line);
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = SplitCsv(line);
    Row row;
    for (size_t i = 0; i < std::min(header.size(), cells.size()); ++i) row[header[i]] = cells[i];
    rows.push_back(std::move(row));
  }
  return rows;
}

DeviceProfile Load(const std::string& name) {
  Result<DeviceProfile> profile = LoadDeviceProfile(name);
  MW_CHECK(profile.ok());
  return *profile;
}

struct Sample {
  GemmShape shape;
  double seconds = 0;
};

std::vector<Sample> PublishedProducts(const std::vector<Row>& rows, const std::string& gpu,
                                      const std::string& op, const std::string& dtype) {
  std::vector<Sample> samples;
  for (Row row : rows) {
    if (row["gpu"] != gpu || row["op"] != op || row["dtype"] != dtype) continue;
    const GemmShape shape{std::stoll(row["m"]), std::stoll(row["n"]), std::stoll(row["k"]),
                          row["batch"].empty() ? 1 : std::stoll(row["batch"])};
    const double flops = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                         static_cast<double>(shape.k) * static_cast<double>(shape.batch);
    samples.push_back({shape, flops / (std::stod(row["measured_tflops"]) * 1e12)});
  }
  return samples;
}

// The residuals in the profile are those that the C++ model has: fit and model are the same
// formula.
void ExpectFit(const std::string& profile_name, Precision precision,
               const std::vector<Sample>& samples, BytesPerSecond bandwidth) {
  const DeviceProfile profile = Load(profile_name);
  const GpuModel& gpu = *profile.gpu;
  std::vector<double> errors;
  for (const Sample& sample : samples) {
    const double time =
        GpuGemmTime(sample.shape, gpu, *PeakOf(profile, precision), bandwidth).value();
    errors.push_back(std::abs(time / sample.seconds - 1));
  }
  std::sort(errors.begin(), errors.end());
  ASSERT_EQ(static_cast<int64_t>(errors.size()), gpu.gemm.fit_rows.value) << profile_name;
  EXPECT_NEAR(errors[errors.size() / 2], gpu.gemm.fit_median.value, 0.001) << profile_name;
  EXPECT_NEAR(errors[errors.size() * 9 / 10], gpu.gemm.fit_p90.value, 0.002) << profile_name;
}

TEST(Measurements, ProductsOnH200) {
  const std::vector<Row> rows = ReadCsv("h200/h200_gemm_bf16.csv");
  if (rows.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  std::vector<Sample> samples;
  for (Row row : rows) {
    const double seconds = std::stod(row["seconds"]);
    if (seconds < 40e-6) continue;
    samples.push_back(
        {{std::stoll(row["m"]), std::stoll(row["n"]), std::stoll(row["k"]), 1}, seconds});
  }
  ExpectFit("h200-sxm", Precision::kBf16, samples, BytesPerSecond(4.8e12));
}

TEST(Measurements, ProductsOnPublishedDevices) {
  const std::vector<Row> rows = ReadCsv("published/gemm.csv");
  if (rows.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  // The A100 of the table has the PCIe card's memory.
  ExpectFit("a100-80", Precision::kBf16,
            PublishedProducts(rows, "A100-PCIe-80GB", "matmul", "bf16"), BytesPerSecond(1.935e12));
  ExpectFit("b200", Precision::kBf16, PublishedProducts(rows, "B200-SXM", "matmul", "bf16"),
            BytesPerSecond(7.75e12));
  ExpectFit("v100-32", Precision::kFp16, PublishedProducts(rows, "V100", "gemm", "fp16"),
            BytesPerSecond(0.9e12));
}

TEST(Measurements, CollectivesOfTwoH200) {
  const std::vector<Row> rows = ReadCsv("h200/h200x2_nccl.csv");
  if (rows.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  const Result<CostModel> model = CostModel::Make(Load("h200-sxm"), {{Precision::kBf16}});
  ASSERT_TRUE(model.ok());
  PathFacts path;
  path.ranks = path.ranks_per_host = 2;
  path.local_bandwidth = BytesPerSecond(450e9);
  int checked = 0;
  for (Row row : rows) {
    const std::optional<CollectiveKind> kind = ParseCollectiveKind(row["op"]);
    const int64_t bytes = std::stoll(row["bytes"]);
    if (!kind || bytes < (1 << 24)) continue;  // shorter rows show the host's launch
    const double time = ToSeconds(model->PriceCollective({*kind, Bytes(bytes)}, path)).value();
    EXPECT_NEAR(time / std::stod(row["seconds"]), 1, 0.1) << row["op"] << ' ' << bytes;
    ++checked;
  }
  EXPECT_EQ(checked, 6 * 7);
}

// Held out: never used in a fit.
TEST(Measurements, AllReduceOfSixteenGpusOnTwoHosts) {
  const std::vector<Row> rows = ReadCsv("published/comm.csv");
  if (rows.empty()) GTEST_SKIP() << "needs the shared measurements beside the checkout";
  const Result<CostModel> model = CostModel::Make(Load("h100-sxm"), {{Precision::kBf16}});
  ASSERT_TRUE(model.ok());
  PathFacts path;
  path.ranks = 16;
  path.hosts = 2;
  path.ranks_per_host = 8;
  path.local_bandwidth = BytesPerSecond(450e9);
  path.network_bandwidth = BytesPerSecond(400e9);
  int checked = 0;
  for (Row row : rows) {
    if (!row["id"].starts_with("AWS-P5-") || std::stoll(row["bytes"]) < (int64_t{1} << 26))
      continue;
    const double time =
        ToSeconds(model->PriceCollective(
                      {CollectiveKind::kAllReduce, Bytes(std::stoll(row["bytes"]))}, path))
            .value();
    EXPECT_NEAR(time / (std::stod(row["time_us"]) * 1e-6), 1, 0.5) << row["bytes"];
    ++checked;
  }
  EXPECT_GE(checked, 5);
}

}  // namespace
}  // namespace meshwright::cost

#include "cost_models/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cost_models/op_time.h"
#include "tests/cost_models/cpu_profile.h"

namespace meshwright::cost {
namespace {

using ::testing::HasSubstr;

CostModel Gpu(const std::string& name, Precision precision = Precision::kBf16) {
  Result<DeviceProfile> profile = LoadDeviceProfile(name);
  MW_CHECK(profile.ok());
  Result<CostModel> model = CostModel::Make(*profile, {{precision}});
  MW_CHECK(model.ok());
  return *model;
}

CostModel Cpu() {
  Result<CostModel> model = CostModel::Make(InventedCpu(), {{Precision::kFp32, Precision::kFp64}});
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

TEST(CostModel, MakeRefusesWhatTheDeviceLacks) {
  const Result<DeviceProfile> v100 = LoadDeviceProfile("v100-32");
  ASSERT_TRUE(v100.ok());
  const Result<CostModel> model = CostModel::Make(*v100, {{Precision::kBf16}});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(CostModel::Make(InventedCpu(), {{Precision::kBf16}}).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(CostModel::Make(DeviceProfile{}, {}).status().code(), StatusCode::kInvalidInput);
}

TEST(CostModel, LargeProductsRunNearTheirMeasuredRate) {
  const CostModel h200 = Gpu("h200-sxm");
  // 16384 x 8192 x 8192 was measured at 684 TFLOP/s, 1024 x 8192 x 8192 at 801.
  EXPECT_NEAR(TflopsOf(h200, Product(16384, 8192, 8192, Precision::kBf16, 2)), 700, 40);
  EXPECT_NEAR(TflopsOf(Gpu("a100-80"), Product(8192, 8192, 8192, Precision::kBf16, 2)), 250, 30);
}

TEST(CostModel, SmallProductsAreLessEfficient) {
  const CostModel h200 = Gpu("h200-sxm");
  const double small = TflopsOf(h200, Product(256, 256, 256, Precision::kBf16, 2));
  const double medium = TflopsOf(h200, Product(2048, 2048, 2048, Precision::kBf16, 2));
  const double large = TflopsOf(h200, Product(8192, 8192, 8192, Precision::kBf16, 2));
  EXPECT_LT(small, 0.1 * large);
  EXPECT_LT(medium, large);
  EXPECT_LT(large, 989.4);
}

TEST(CostModel, ProductsNeverBeatThePeakAndGrowWithTheirSize) {
  for (const std::string& name : ShippedProfileNames()) {
    const Precision precision = name.starts_with("v100") ? Precision::kFp16 : Precision::kBf16;
    const CostModel model = Gpu(name, precision);
    const double peak = PeakOf(model.profile(), precision)->value() * 1e-12;
    for (const int64_t m : {1, 100, 1000, 20'000}) {
      // Rows that start at 32 bytes: an odd size costs more than the even one above it.
      for (const int64_t n : {16, 384, 5008}) {
        for (const int64_t k : {16, 128, 9008}) {
          const Work work = Product(m, n, k, precision, 2);
          EXPECT_LT(TflopsOf(model, work), peak) << name << m << 'x' << n << 'x' << k;
          EXPECT_LE(model.PriceOp(work), model.PriceOp(Product(m, n, 2 * k, precision, 2)));
          EXPECT_LE(model.PriceOp(work), model.PriceOp(Product(2 * m, n, k, precision, 2)));
        }
      }
    }
  }
}

TEST(CostModel, MemoryBoundOpsMoveTheirBytes) {
  const CostModel h200 = Gpu("h200-sxm");
  Work work;
  work.kind = WorkKind::kReduction;
  work.precision = Precision::kBf16;
  work.read = Bytes(int64_t{3} << 30);
  work.written = Bytes(int64_t{1} << 30);
  const OpPrice price = h200.ExplainOp(work);
  const double efficiency = h200.profile().memory_efficiency.value;
  EXPECT_NEAR(efficiency, 0.89, 0.01) << "4.27 of 4.8 TB/s";
  EXPECT_DOUBLE_EQ(price.memory.value(), 4.0 * (1 << 30) / (4.8e12 * efficiency));
  EXPECT_EQ(price.arithmetic, Seconds(0));
  EXPECT_EQ(price.time, ToNanoseconds(price.memory + price.overhead));
  EXPECT_EQ(price.memory_milli, static_cast<int32_t>(std::ceil(efficiency * 1000)));
}

TEST(CostModel, ThinProductsAreBoundByMemory) {
  const OpPrice price = Gpu("h200-sxm").ExplainOp(Product(1, 65536, 8192, Precision::kBf16, 2));
  EXPECT_GT(price.memory, price.arithmetic * 0.5);
  EXPECT_GE(price.time, ToNanoseconds(price.memory));
}

TEST(CostModel, HostOpsTakeTheLaunchOnly) {
  Work work;
  work.kind = WorkKind::kHost;
  work.read = Bytes(1 << 30);
  const CostModel h200 = Gpu("h200-sxm");
  EXPECT_EQ(h200.PriceOp(work), ToNanoseconds(h200.profile().launch_overhead.value));
  EXPECT_GT(h200.PriceOp(work), Nanoseconds(1000));
  EXPECT_LT(h200.PriceOp(work), Nanoseconds(4000));
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

TEST(CostModel, AttentionRunsAtItsMeasuredRates) {
  const CostModel h200 = Gpu("h200-sxm");
  // Of training steps at this length: 459 and 360 TFLOP/s at d 128 (h200_runs.md).
  const double d128 = TflopsOf(h200, Attention(4096, 128, false));
  const double d64 = TflopsOf(h200, Attention(4096, 64, false));
  EXPECT_NEAR(d128, 459, 46);
  EXPECT_NEAR(TflopsOf(h200, Attention(4096, 128, true)), 360, 36);
  EXPECT_LT(d64, d128);
  // Between measured head sizes in between, beyond them the nearest.
  const double d80 = TflopsOf(h200, Attention(4096, 80, false));
  EXPECT_NEAR(d80, (d64 + TflopsOf(h200, Attention(4096, 96, false))) / 2, 1);
  EXPECT_EQ(h200.PriceOp(Attention(4096, 32, false)), h200.PriceOp(Attention(4096, 64, false)));
  EXPECT_EQ(h200.PriceOp(Attention(4096, 512, false)), h200.PriceOp(Attention(4096, 256, false)));
  // A full mask has rows as long as a causal one of twice the length.
  EXPECT_EQ(h200.PriceOp(Attention(4096, 128, false, false)),
            h200.PriceOp(Attention(8192, 128, false, true)));
}

PathFacts Nvlink(int64_t ranks) {
  PathFacts path;
  path.ranks = ranks;
  path.ranks_per_host = ranks;
  path.local_bandwidth = BytesPerSecond(450e9);
  return path;
}

PathFacts TwoHosts(double network) {
  PathFacts path = Nvlink(16);
  path.hosts = 2;
  path.ranks_per_host = 8;
  path.network_bandwidth = BytesPerSecond(network);
  return path;
}

TEST(CostModel, CollectivesOfOneRankAreFree) {
  EXPECT_EQ(
      Gpu("h200-sxm").PriceCollective({CollectiveKind::kAllReduce, Bytes(1 << 30)}, Nvlink(1)),
      Nanoseconds(0));
  EXPECT_EQ(Cpu().PriceCollective({CollectiveKind::kSend, Bytes(1 << 30)}, Nvlink(1)),
            Nanoseconds(0));
}

TEST(CostModel, SmallCollectivesTakeTheLatency) {
  const CostModel h200 = Gpu("h200-sxm");
  const CollectivePrice price =
      h200.ExplainCollective({CollectiveKind::kAllReduce, Bytes(1024)}, Nvlink(2));
  EXPECT_NEAR(ToSeconds(price.time).value(), 11e-6, 0.1e-6);
  EXPECT_GT(h200.PriceCollective({CollectiveKind::kAllReduce, Bytes(1024)}, Nvlink(8)), price.time);
}

TEST(CostModel, SwitchReductionIsUsedOnlyWhereAllowed) {
  const CostModel h100 = Gpu("h100-sxm");
  const CollectiveWork work{CollectiveKind::kAllReduce, Bytes(int64_t{1} << 33)};
  PathFacts path = Nvlink(8);
  EXPECT_EQ(h100.ExplainCollective(work, path).algorithm, CollectiveAlgorithm::kRing);
  const Nanoseconds ring = h100.PriceCollective(work, path);
  path.in_switch_reduction = true;
  EXPECT_EQ(h100.ExplainCollective(work, path).algorithm, CollectiveAlgorithm::kInSwitch);
  EXPECT_LT(h100.PriceCollective(work, path), ring);
  EXPECT_EQ(Gpu("a100-80").ExplainCollective(work, path).algorithm, CollectiveAlgorithm::kRing);
}

TEST(CostModel, AcrossHostsTheSlowerPartCounts) {
  const CostModel h100 = Gpu("h100-sxm");
  const CollectiveWork work{CollectiveKind::kAllReduce, Bytes(int64_t{1} << 30)};
  const CollectivePrice slow = h100.ExplainCollective(work, TwoHosts(12.5e9));
  EXPECT_EQ(slow.algorithm, CollectiveAlgorithm::kHierarchical);
  EXPECT_GT(slow.network, slow.local);
  const double efficiency = h100.profile().gpu->network_efficiency.value;
  EXPECT_DOUBLE_EQ(slow.network.value(), (1 << 30) / (12.5e9 * efficiency));
  const CollectivePrice fast = h100.ExplainCollective(work, TwoHosts(1e13));
  EXPECT_GT(fast.local, fast.network);
  EXPECT_LT(fast.time, slow.time);
}

TEST(CostModel, FabricsDiffer) {
  const CostModel a100 = Gpu("a100-80");
  const CollectiveWork work{CollectiveKind::kAllReduce, Bytes(int64_t{1} << 24)};
  PathFacts path = TwoHosts(50e9);
  const CollectivePrice usual = a100.ExplainCollective(work, path);
  path.fabric = FabricOf("infiniband-hdr");
  EXPECT_EQ(path.fabric, Fabric::kInfiniBand);
  EXPECT_EQ(a100.ExplainCollective(work, path).time, usual.time);
  path.fabric = FabricOf("efa");
  const CollectivePrice efa = a100.ExplainCollective(work, path);
  // AWS-P4DE-0022: 1192 us; the transfer alone takes 336 us.
  EXPECT_NEAR(ToSeconds(efa.time).value(), 1192e-6, 150e-6);
  EXPECT_GT(efa.overhead, usual.overhead);
  EXPECT_EQ(FabricOf("carrier-pigeon"), Fabric::kUsual);
}

TEST(CostModel, SwitchesReduceInsideTheHostsOfATree) {
  const CostModel h100 = Gpu("h100-sxm");
  const CollectiveWork work{CollectiveKind::kAllReduce, Bytes(int64_t{1} << 33)};
  PathFacts path = TwoHosts(400e9);
  const Nanoseconds ring = h100.PriceCollective(work, path);
  path.in_switch_reduction = true;
  EXPECT_LT(h100.PriceCollective(work, path), ring);
}

TEST(CostModel, FewRanksReachLess) {
  DeviceProfile profile = *LoadDeviceProfile("a100-80");
  for (CollectiveFit& fit : profile.gpu->collectives) fit.rank_loss.value = 0.4;
  const CostModel lossy = *CostModel::Make(profile, {{Precision::kBf16}});
  for (CollectiveFit& fit : profile.gpu->collectives) fit.rank_loss.value = 0;
  const CostModel whole = *CostModel::Make(profile, {{Precision::kBf16}});
  const CollectiveWork work{CollectiveKind::kAllGather, Bytes(int64_t{1} << 30)};
  EXPECT_NEAR(lossy.ExplainCollective(work, Nvlink(2)).local.value(),
              whole.ExplainCollective(work, Nvlink(2)).local.value() / 0.8, 1e-9);
  EXPECT_NEAR(lossy.ExplainCollective(work, Nvlink(8)).local.value(),
              whole.ExplainCollective(work, Nvlink(8)).local.value() / 0.95, 1e-9);
}

TEST(CostModel, MoreBytesNeverTakeLess) {
  for (const std::string& name : ShippedProfileNames()) {
    const CostModel model =
        Gpu(name, name.starts_with("v100") ? Precision::kFp16 : Precision::kBf16);
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
          CollectiveKind::kAllToAll, CollectiveKind::kBroadcast, CollectiveKind::kSend}) {
      PathFacts efa = TwoHosts(50e9);
      efa.fabric = Fabric::kEfa;
      for (const PathFacts& path : {Nvlink(2), Nvlink(8), TwoHosts(50e9), efa}) {
        Nanoseconds last;
        for (int64_t bytes = 1; bytes < int64_t{1} << 36; bytes = bytes * 3 / 2 + 1) {
          const Nanoseconds time = model.PriceCollective({kind, Bytes(bytes)}, path);
          EXPECT_GE(time, last) << name << ' ' << ToString(kind) << ' ' << bytes;
          last = time;
        }
      }
    }
  }
}

TEST(CostModel, CpuProductsUseMeasuredRates) {
  const CostModel cpu = Cpu();
  EXPECT_DOUBLE_EQ(cpu.ExplainOp(Product(512, 512, 512, Precision::kFp32, 4)).arithmetic.value(),
                   2.0 * 512 * 512 * 512 / 40e9);
  EXPECT_DOUBLE_EQ(cpu.ExplainOp(Product(64, 64, 64, Precision::kFp32, 4)).arithmetic.value(),
                   2.0 * 64 * 64 * 64 / 10e9);
  EXPECT_DOUBLE_EQ(cpu.ExplainOp(Product(64, 64, 64, Precision::kFp64, 8)).arithmetic.value(),
                   2.0 * 64 * 64 * 64 / 20e9);
  // Between two measured shapes: between their rates, nearer to the nearer one.
  const CpuModel& model = *cpu.profile().cpu;
  const double between = CpuGemmRateOf({128, 128, 128, 1}, Precision::kFp32, model).value();
  EXPECT_GT(between, 10e9);
  EXPECT_LT(between, 25e9);
}

TEST(CostModel, CpuKernelsUseTheirRateOrTheBandwidthOfACore) {
  const CostModel cpu = Cpu();
  Work work;
  work.kind = WorkKind::kReduction;
  work.read = Bytes(1'000'000);
  work.written = Bytes(1'000'000);
  EXPECT_EQ(cpu.PriceOp(work), Nanoseconds(200'000 + 1000));
  EXPECT_EQ(cpu.ExplainOp(work).memory_milli, 500);  // 10 of the machine's 20 GB/s
  work.kernel = "softmax";
  EXPECT_EQ(cpu.PriceOp(work), Nanoseconds(1'000'000 + 1000));
  EXPECT_EQ(cpu.ExplainOp(work).memory_milli, 100);
  work.precision = Precision::kFp64;  // not measured: the bandwidth
  EXPECT_EQ(cpu.PriceOp(work), Nanoseconds(200'000 + 1000));
}

TEST(CostModel, CpuAttentionUsesItsRateOrThatOfAProduct) {
  const CostModel cpu = Cpu();
  Work work;
  work.kind = WorkKind::kAttention;
  work.flops = Flops(1e6);
  work.kv_length = work.head_dim = 512;
  EXPECT_EQ(cpu.PriceOp(work), Nanoseconds(25'000 + 1000));  // 40 GFLOP/s
  work.kernel = "attention";
  EXPECT_EQ(cpu.PriceOp(work), Nanoseconds(200'000 + 1000));  // 5 GFLOP/s
}

TEST(CostModel, CpuCollectivesByThreads) {
  const CostModel cpu = Cpu();
  PathFacts path;
  path.ranks = path.ranks_per_host = 4;
  path.local_bandwidth = BytesPerSecond(1);  // not used: the profile's is measured
  const CollectivePrice price =
      cpu.ExplainCollective({CollectiveKind::kAllReduce, Bytes(4000)}, path);
  EXPECT_EQ(price.wire.local_bytes, Bytes(6000));
  EXPECT_EQ(price.time, Nanoseconds(5000 + 5 * 1000 + 1500));
}

TEST(CostModel, HugeWorkStaysInRange) {
  Work work;
  work.read = Bytes(int64_t{1} << 61);
  work.written = Bytes(int64_t{1} << 61);
  EXPECT_GT(Cpu().PriceOp(work), Nanoseconds(0));
  work = Product(int64_t{1} << 30, int64_t{1} << 30, 1, Precision::kFp32, 0);
  work.flops = Flops(1e300);
  // Cut off at 2^60 ns, so that sums of prices still fit.
  EXPECT_NEAR(static_cast<double>(Cpu().PriceOp(work).value()), 0x1p60, 1e10);
}

TEST(CostModelDeathTest, UnlistedPrecisionsAndCollectivesAreBugs) {
  const CostModel h200 = Gpu("h200-sxm");
  EXPECT_DEATH((void)h200.PriceOp(Product(8, 8, 8, Precision::kFp8, 1)), "invariant broken");
  Work work;
  work.kind = WorkKind::kCollective;
  EXPECT_DEATH((void)h200.PriceOp(work), "invariant broken");
}

}  // namespace
}  // namespace meshwright::cost

#include "cost_models/device_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/cost_models/cpu_profile.h"

namespace meshwright::cost {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

DeviceProfile Load(const std::string& name) {
  Result<DeviceProfile> profile = LoadDeviceProfile(name);
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return profile.ok() ? *profile : DeviceProfile{};
}

double Peak(const DeviceProfile& profile, Precision precision) {
  const Result<FlopsPerSecond> peak = PeakOf(profile, precision);
  return peak.ok() ? peak->value() : 0;
}

// `text` with the first `from` replaced.
std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

Status Refusal(const std::string& text) {
  const Result<DeviceProfile> profile = ParseDeviceProfile(text, "p.yaml");
  EXPECT_FALSE(profile.ok());
  return profile.ok() ? Status::Ok() : profile.status();
}

TEST(DeviceProfile, ShippedOnesLoadAndRoundTrip) {
  EXPECT_THAT(ShippedProfileNames(), ElementsAre("a100-40", "a100-80", "a100-pcie-80", "b200",
                                                 "gb200", "gb300", "h100-hbm2e", "h100-sxm",
                                                 "h200-sxm", "h800", "l40s", "v100-16", "v100-32"));
  for (const std::string& name : ShippedProfileNames()) {
    const DeviceProfile profile = Load(name);
    EXPECT_EQ(profile.name, name);
    EXPECT_TRUE(Validate(profile).ok());
    const Result<DeviceProfile> again = ParseDeviceProfile(ToYaml(profile), "again");
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(*again, profile) << name;
  }
}

TEST(DeviceProfile, DensePeaksAndSizes) {
  const DeviceProfile h200 = Load("h200-sxm");
  EXPECT_DOUBLE_EQ(Peak(h200, Precision::kBf16), 989.4e12);
  EXPECT_EQ(h200.memory.value, Bytes(int64_t{143771} << 20));
  EXPECT_DOUBLE_EQ(h200.memory_bandwidth.value.value(), 4.8e12);
  EXPECT_EQ(h200.gpu->multiprocessors.value, 132);
  // 527 MiB as people read them.
  EXPECT_NEAR(static_cast<double>(h200.gpu->context_memory.value.value()) / (1 << 20), 527, 0.5);
  EXPECT_DOUBLE_EQ(Peak(Load("a100-80"), Precision::kBf16), 312e12);
  EXPECT_DOUBLE_EQ(Peak(Load("b200"), Precision::kBf16), 2250e12);
  EXPECT_DOUBLE_EQ(Peak(Load("v100-32"), Precision::kFp16), 125e12);
  // fp8 is twice bf16 where it exists: a sparse figure in either would break this.
  for (const char* name : {"h100-sxm", "h200-sxm", "b200", "l40s"}) {
    const DeviceProfile profile = Load(name);
    EXPECT_NEAR(Peak(profile, Precision::kFp8) / Peak(profile, Precision::kBf16), 2, 0.03) << name;
  }
}

TEST(DeviceProfile, MissingPrecisionIsNamed) {
  const Result<FlopsPerSecond> peak = PeakOf(Load("v100-32"), Precision::kBf16);
  ASSERT_FALSE(peak.ok());
  EXPECT_EQ(peak.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(peak.status().message(),
              HasSubstr("no peak rate for bf16; it has: fp64, fp32, fp16"));
}

TEST(DeviceProfile, AssumptionsAreListed) {
  EXPECT_THAT(
      Assumptions(Load("l40s")),
      ::testing::Contains(HasSubstr("gpu.gemm.max_efficiency: the constants fitted on A100")));
  EXPECT_THAT(Assumptions(Load("h200-sxm")),
              Not(::testing::Contains(HasSubstr("gpu.gemm.max_efficiency"))));
  EXPECT_THAT(Assumptions(InventedCpu()), IsEmpty());
}

TEST(DeviceProfile, MissingProfilesSayWhatToDo) {
  const Status cpu = LoadDeviceProfile("cpu").status();
  EXPECT_EQ(cpu.code(), StatusCode::kNotFound);
  EXPECT_THAT(cpu.message(), HasSubstr("meshwright calibrate"));
  const Status other = LoadDeviceProfile("h300").status();
  EXPECT_EQ(other.code(), StatusCode::kNotFound);
  EXPECT_THAT(other.message(), HasSubstr("h200-sxm"));
  EXPECT_EQ(LoadDeviceProfile("/no/such.yaml").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(LoadDeviceProfile("/").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(LoadDeviceProfile("").status().code(), StatusCode::kNotFound);
}

TEST(DeviceProfile, CpuProfileIsWrittenAndFoundInTheDataFolder) {
  const std::filesystem::path data = std::filesystem::path(testing::TempDir()) / "mw-profile-test";
  std::filesystem::create_directories(data / "profiles");
  std::ofstream(data / "profiles" / "cpu.yaml") << ToYaml(InventedCpu());
  ASSERT_EQ(setenv("MESHWRIGHT_DATA_DIR", data.c_str(), 1), 0);
  const DeviceProfile cpu = Load("cpu");
  EXPECT_THAT(ShippedProfileNames(), ElementsAre("cpu"));
  unsetenv("MESHWRIGHT_DATA_DIR");
  EXPECT_EQ(cpu, InventedCpu());
  EXPECT_EQ(Load(data / "profiles" / "cpu.yaml"), InventedCpu());
  std::filesystem::remove_all(data);
}

TEST(DeviceProfile, OddTextSurvivesTheRoundTrip) {
  DeviceProfile profile = InventedCpu();
  profile.description = "quote \" backslash \\ tab \t colon: # hash 'x' {y} \xC3\xA9 - null";
  profile.memory.source.text = "line one\nline two";
  profile.cpu->kernels[0].kernel = "true";
  profile.launch_overhead.value = Seconds(1.0 / 3 * 1e-6);
  const Result<DeviceProfile> again = ParseDeviceProfile(ToYaml(profile), "again");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, profile);
}

TEST(DeviceProfile, BadFieldsAreRefusedWithLineAndField) {
  const std::string good = ToYaml(InventedCpu());
  ASSERT_TRUE(ParseDeviceProfile(good, "p.yaml").ok());
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } cases[] = {
      {"version: 1", "version: 2", "allowed: 'meshwright-device-profile' version 1"},
      {"name: \"test-cpu\"\n", "", "name: found nothing"},
      {"kind: cpu", "kind: tpu", "kind: found 'tpu'"},
      {"kind: cpu", "kind: gpu", "needed: the section of its kind"},
      {"unit: GiB", "unit: Gib", "found the unit 'Gib'; allowed: GiB, GB"},
      {"value: 8, unit: GiB", "value: -8, unit: GiB", "memory: found -8 GiB"},
      {"value: 8, unit: GiB", "value: nan, unit: GiB", "memory.value: found 'nan'"},
      {"value: 8, unit: GiB", "value: 1e300, unit: GiB", "memory: found 1e+300"},
      {"value: 8, unit: GiB", "value: 8x, unit: GiB", "found '8x'; allowed: a number"},
      {"value: 4, unit: count", "value: 4.5, unit: count", "cores: found 4.5"},
      {"value: 8, unit: GiB, source: s1", "value: 8, unit: GiB, source: s9", "the source 's9'"},
      {"memory_efficiency:", "memory_eficiency:", "memory_efficiency: found nothing"},
      {"  collective_latency", "  colour: red\n  collective_latency", "unknown field 'colour'"},
      {"m: 512", "m: 0", "cpu.gemm[1].m: found 0"},
      {"precision: fp64", "precision: fp32", "cpu.gemm: found no rate for fp64"},
      {"m: 64\n      n: 64\n      k: 64", "m: 512\n      n: 512\n      k: 512", "shape twice"},
      {"format: meshwright-device-profile", "format: [1, 2]", "format: found no plain value"},
      {"sources:\n", "sources: 7\nother:\n", "sources: found no mapping"},
      {"origin: measured", "origin: rumour", "sources.s1.origin: found 'rumour'"},
      {"kind: cpu", "kind: cpu\nkind: cpu", "found 'kind' twice"},
      {"  gemm:", "  gemm: 3\n  nothing:", "cpu.gemm: found no list"},
  };
  for (const auto& c : cases) {
    const Status status = Refusal(With(good, c.from, c.to));
    EXPECT_EQ(status.code(), StatusCode::kInvalidInput) << c.to;
    EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.to;
    EXPECT_THAT(status.message(), HasSubstr("p.yaml:")) << c.to;
  }
}

TEST(DeviceProfile, TextThatIsNoProfileIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("a: b: c"), std::string("{"),
        std::string("\xFF\xFE"), std::string("x\0y", 3), std::string("- - - -"),
        std::string("a: &x [1]\nb: *x"), std::string(200, '['), std::string("? {a: 1}\n: 2"),
        std::string("!!binary abc"), std::string("format: meshwright-device-profile")}) {
    EXPECT_EQ(Refusal(text).code(), StatusCode::kInvalidInput) << text;
  }
}

TEST(DeviceProfile, CutAndChangedTextNeverCrashes) {
  const std::string good = ToYaml(Load("h200-sxm"));
  for (size_t cut = 0; cut < good.size(); cut += 397) {
    EXPECT_FALSE(ParseDeviceProfile(good.substr(0, cut), "cut").ok()) << cut;
  }
  int refused = 0;
  for (size_t at = 0; at < good.size(); at += 331) {
    for (const char c : {'{', '}', ':', '-', '\n', '"', '9'}) {
      std::string text = good;
      text[at] = c;
      refused += ParseDeviceProfile(text, "changed").ok() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 40);
}

TEST(DeviceProfile, PeaksOfNewDevices) {
  EXPECT_DOUBLE_EQ(Peak(Load("gb300"), Precision::kFp4), 15e15);
  EXPECT_DOUBLE_EQ(Peak(Load("gb200"), Precision::kFp4), 10e15);
  EXPECT_DOUBLE_EQ(Peak(Load("b200"), Precision::kFp4), 9e15);
  EXPECT_DOUBLE_EQ(Peak(Load("gb200"), Precision::kBf16), 2.5e15);
  EXPECT_DOUBLE_EQ(Peak(Load("h800"), Precision::kFp64), 1e12);
  EXPECT_DOUBLE_EQ(Peak(Load("h800"), Precision::kFp8), Peak(Load("h100-sxm"), Precision::kFp8));
  EXPECT_EQ(PeakOf(Load("h200-sxm"), Precision::kFp4).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(Load("gb200").gpu->multiprocessors.value, 152);
  EXPECT_DOUBLE_EQ(Load("a100-pcie-80").memory_bandwidth.value.value(), 1.935e12);
}

TEST(DeviceProfile, OptionalFieldsMayBeLeftOut) {
  DeviceProfile profile = Load("gb200");
  ASSERT_FALSE(profile.gpu->gemm_precisions.empty());
  ASSERT_FALSE(profile.gpu->networks.empty());
  ASSERT_FALSE(profile.gpu->kernels.empty());
  profile.memory_fixed = {};
  profile.gpu->gemm.alignment.clear();
  profile.gpu->gemm.accumulation = {};
  profile.gpu->gemm_precisions.clear();
  profile.gpu->kernels.clear();
  profile.gpu->networks.clear();
  std::erase_if(profile.gpu->attention, [](const AttentionRate& rate) {
    return rate.deterministic || rate.precision != Precision::kBf16;
  });
  for (AttentionRate& rate : profile.gpu->attention) rate.tail = {};
  for (CollectiveFit& fit : profile.gpu->collectives) fit.rank_loss = {};
  const std::string text = ToYaml(profile);
  for (const char* field : {"memory_fixed", "alignment", "accumulation", "gemm_precisions",
                            "kernels", "networks", "deterministic", "tail", "rank_loss"}) {
    EXPECT_THAT(text, Not(HasSubstr(std::string(field) + ":"))) << field;
  }
  const Result<DeviceProfile> again = ParseDeviceProfile(text, "again");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, profile);
}

TEST(DeviceProfile, BadOptionalFieldsAreRefused) {
  const std::string good = ToYaml(Load("gb200"));
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } cases[] = {
      {"- bytes: 2", "- bytes: 3", "gpu.gemm.alignment: found 3 bytes in place 1; allowed: powers"},
      {"- bytes: 4", "- bytes: 2", "gpu.gemm.alignment: found 2 bytes in place 2"},
      {"- fabric: efa", "- fabric: pigeons", "fabric: found 'pigeons'"},
      {"- precision: fp4\n      max", "- precision: fp8\n      max", "found one precision, kernel"},
      {"precision: fp8\n      rate", "precision: fp9\n      rate", "precision: found 'fp9'"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Refusal(With(good, c.from, c.to)).message(), HasSubstr(c.message)) << c.to;
  }
}

TrafficFit Traffic64(CollectiveKind kind, Traffic traffic, Carrier carrier, int64_t ctas) {
  const topologies::Source source{topologies::Origin::kMeasured, "a test"};
  TrafficFit fit{{.kind = kind, .traffic = traffic, .carrier = carrier, .ctas = ctas}};
  fit.latency = {Seconds(12e-6), source};
  fit.curve = {{1 << 20, {0.3, source}}, {1 << 26, {0.5, source}}};
  fit.beside = {0.9, source};
  fit.fit_rows = {9, source};
  fit.fit_median = {0.01, source};
  fit.fit_p90 = {0.05, source};
  return fit;
}

DeviceProfile WithTraffic() {
  DeviceProfile profile = Load("h200-sxm");
  profile.gpu->traffic = {
      Traffic64(CollectiveKind::kAllReduce, Traffic::kTensor, Carrier::kNccl, 32),
      Traffic64(CollectiveKind::kAllReduce, Traffic::kTensor, Carrier::kCopyEngines, 0),
      Traffic64(CollectiveKind::kSend, Traffic::kEdge, Carrier::kNccl, 1)};
  return profile;
}

TEST(DeviceProfile, MeasuredTrafficRoundTrips) {
  DeviceProfile profile = WithTraffic();
  profile.gpu->traffic[2].beside = {};  // optional
  const Result<DeviceProfile> again = ParseDeviceProfile(ToYaml(profile), "again");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, profile);
  EXPECT_THAT(ToYaml(Load("h100-sxm")), Not(HasSubstr("traffic:")));
}

TEST(DeviceProfile, BadTrafficIsRefused) {
  const std::string good = ToYaml(WithTraffic());
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } cases[] = {
      {"carrier: copy_engines", "carrier: pigeons", "carrier: found 'pigeons'"},
      {"carrier: copy_engines", "carrier: nccl", "found one kind, class, carrier"},
      {"ctas: 0", "ctas: 4", "gpu.traffic[1], all_reduce of tensor traffic: found copy_engines"},
      {"carrier: copy_engines", "carrier: kernels", "found kernels with 2 ranks and 0 ctas"},
      {"traffic: edge", "traffic: data", "gpu.traffic[2], send of data traffic: found 2 ranks"},
      {"traffic: tensor", "traffic: gossip", "traffic: found 'gossip'"},
      {"ranks: 2", "ranks: 1", "ranks: found 1; allowed: a whole number from 2"},
      {"ctas: 32", "ctas: -1", "ctas: found -1"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Refusal(With(good, c.from, c.to)).message(), HasSubstr(c.message)) << c.to;
  }
  DeviceProfile empty = WithTraffic();
  empty.gpu->traffic[0].curve.clear();
  EXPECT_THAT(Validate(empty).message(), HasSubstr("gpu.traffic[0], all_reduce"));
  DeviceProfile fast = WithTraffic();
  fast.gpu->traffic[0].beside.value = 1.5;
  EXPECT_THAT(Validate(fast).message(), HasSubstr("gpu.traffic[0].beside: found 1.5"));
}

TEST(DeviceProfile, GpuSectionsMustBeComplete) {
  const DeviceProfile good = Load("a100-80");
  auto broken = [&](auto change) {
    DeviceProfile profile = good;
    change(&profile);
    return Validate(profile).message();
  };
  EXPECT_THAT(broken([](DeviceProfile* p) { p->peaks.clear(); }), HasSubstr("peaks"));
  EXPECT_THAT(broken([](DeviceProfile* p) { p->peaks.push_back(p->peaks[0]); }),
              HasSubstr("twice"));
  EXPECT_THAT(broken([](DeviceProfile* p) { p->gpu->attention.resize(1); }),
              HasSubstr("backward: true"));
  EXPECT_THAT(broken([](DeviceProfile* p) { p->gpu->collectives.pop_back(); }),
              HasSubstr("none of kind send"));
  EXPECT_THAT(broken([](DeviceProfile* p) { p->gpu->collectives[0].curve.clear(); }),
              HasSubstr("curve of all_reduce"));
  EXPECT_THAT(broken([](DeviceProfile* p) {
                auto& curve = p->gpu->collectives[0].curve;
                std::swap(curve[0], curve[1]);
              }),
              HasSubstr("do not rise"));
  EXPECT_THAT(broken([](DeviceProfile* p) { p->gpu->gemm.max_efficiency.value = 1.5; }),
              HasSubstr("gpu.gemm.max_efficiency: found 1.5"));
}

}  // namespace
}  // namespace meshwright::cost

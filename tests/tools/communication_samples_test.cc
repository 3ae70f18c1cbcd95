// Measurements of communication as JSON, and with those of one GPU in a file and a profile.
#include "tools/communication_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/cost_models/communication_truth.h"
#include "tools/gpu_samples.h"
#include "topologies/text.h"

namespace meshwright::tools {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CommunicationSamples, ReadBackAsWritten) {
  const json written = CommunicationJson(cost::TwoGpus());
  const auto read = ParseCommunication(written, "x.json");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(CommunicationJson(*read), written);
  EXPECT_EQ(read->times.size(), 4u * 8u);
  EXPECT_EQ(read->times.back().key.kind, cost::CollectiveKind::kSend);
}

TEST(CommunicationSamples, GarbageIsRefusedWithItsPlace) {
  const auto refusal = [](const std::function<void(json&)>& change) {
    json d = CommunicationJson(cost::TwoGpus());
    change(d);
    const auto read = ParseCommunication(d, "x.json");
    EXPECT_FALSE(read.ok());
    if (read.ok()) return std::string();
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidInput);
    EXPECT_THAT(read.status().message(), AllOf(HasSubstr("x.json"), HasSubstr("measure again")));
    return read.status().message();
  };
  EXPECT_THAT(refusal([](json& d) { d = json::array(); }), HasSubstr("another form"));
  EXPECT_THAT(refusal([](json& d) { d = json::parse("{", nullptr, false); }),
              HasSubstr("another form"));
  EXPECT_THAT(refusal([](json& d) { d.erase("times"); }), HasSubstr("times"));
  EXPECT_THAT(refusal([](json& d) { d["times"] = 3; }), HasSubstr(".times: found no list"));
  EXPECT_THAT(refusal([](json& d) { d["gpus"] = 1; }), HasSubstr("gpus: found 1; allowed"));
  EXPECT_THAT(refusal([](json& d) { d["link_bytes_per_s"] = "fast"; }), HasSubstr("\"fast\""));
  EXPECT_THAT(refusal([](json& d) { d["times"][2]["seconds"] = -1; }),
              HasSubstr("communication.times[2]: seconds: found -1; allowed: a number above 0"));
  EXPECT_THAT(refusal([](json& d) { d["times"][2]["bytes"] = 1.5; }), HasSubstr("whole number"));
  EXPECT_THAT(refusal([](json& d) { d["times"][2]["ranks"] = 1; }), HasSubstr("from 2 to"));
  EXPECT_THAT(refusal([](json& d) { d["times"][2]["carrier"] = "pigeons"; }),
              HasSubstr("carrier: found \"pigeons\""));
  EXPECT_THAT(refusal([](json& d) { d["times"][2].erase("held_out"); }), HasSubstr("held_out"));
  EXPECT_THAT(refusal([](json& d) { d["products_beside"][0]["alone_s"] = 0; }),
              HasSubstr("products_beside[0]: alone_s"));
}

runtime::CommunicationMeasurement Measured() {
  runtime::CommunicationMeasurement m;
  m.device = "NVIDIA H200";
  m.library = "NCCL 2.32.9";
  m.gpus = 2;
  m.nvlink = m.peers = true;
  for (const auto& c : runtime::CommunicationGrid(2, true)) {
    m.samples.push_back({c, 10e-6 + static_cast<double>(c.bytes) / 100e9});
  }
  for (const auto& c : runtime::BesideGrid(2, true)) m.beside.push_back({c, 1.5e-3, 1.7e-3});
  return m;
}

TEST(CommunicationSamples, ComeFromAMeasurementWithTheLinksOfTheModel) {
  const auto h200 = topologies::GpuModelOfSmiName("NVIDIA H200");
  ASSERT_TRUE(h200.has_value());
  runtime::CommunicationMeasurement measured = Measured();
  auto samples = ToCommunicationSamples(measured, *h200);
  ASSERT_TRUE(samples.ok());
  EXPECT_DOUBLE_EQ(samples->link.value(), 450e9);
  EXPECT_EQ(samples->times.size(), measured.samples.size());
  const auto fitted = cost::FitCommunication(*samples, "a test");
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  EXPECT_EQ(fitted->traffic.size(), 17u);
  EXPECT_EQ(fitted->lines.back().rows, 33);
  measured.nvlink = false;
  samples = ToCommunicationSamples(measured, *h200);
  ASSERT_TRUE(samples.ok());
  EXPECT_DOUBLE_EQ(samples->link.value(), 63e9);
  measured.nvlink = true;
  const auto l40s = topologies::GpuModelOfSmiName("NVIDIA L40S");
  ASSERT_TRUE(l40s.has_value());
  EXPECT_THAT(ToCommunicationSamples(measured, *l40s).status().message(),
              HasSubstr("--communication off"));
}

TEST(CommunicationSamples, GoIntoTheFileAndTheProfile) {
  const auto text = topologies::ReadTextFile(MESHWRIGHT_H200_SAMPLES, size_t{1} << 24);
  ASSERT_TRUE(text.ok());
  auto samples = ParseGpuSamples(*text, "samples");
  ASSERT_TRUE(samples.ok() && samples->communication);
  const auto shipped = cost::LoadDeviceProfile("h200-sxm");
  ASSERT_TRUE(shipped.ok());
  const auto refitted = cost::FitGpu(*shipped, *samples, "a test");
  ASSERT_TRUE(refitted.ok()) << refitted.status().message();
  const auto& traffic = shipped->gpu->traffic;
  ASSERT_EQ(traffic.size(), refitted->profile.gpu->traffic.size());
  for (size_t i = 0; i < traffic.size(); ++i) {
    const cost::TrafficFit& again = refitted->profile.gpu->traffic[i];
    EXPECT_EQ(traffic[i].latency.value, again.latency.value);
    ASSERT_EQ(traffic[i].curve.size(), again.curve.size());
    for (size_t k = 0; k < again.curve.size(); ++k) {
      EXPECT_EQ(traffic[i].curve[k].efficiency.value, again.curve[k].efficiency.value);
    }
  }
  samples->communication = cost::TwoGpus();
  const json written = GpuSamplesJson(*samples);
  const auto read = ParseGpuSamples(written.dump(), "again");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(GpuSamplesJson(*read), written);
  const auto base = cost::LoadDeviceProfile("h200-sxm");
  ASSERT_TRUE(base.ok());
  const auto fitted = cost::FitGpu(*base, *read, "a test");
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  const cost::GpuModel& gpu = *fitted->profile.gpu;
  EXPECT_EQ(gpu.traffic.size(), 4u);
  EXPECT_NEAR(gpu.beside_communication.value, 0.9, 1e-3);
  EXPECT_EQ(gpu.collectives, base->gpu->collectives) << "those of libraries without our limits";
  const auto profile = cost::ParseDeviceProfile(cost::ToYaml(fitted->profile), "mine.yaml");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(*profile, fitted->profile);
  json bad = written;
  bad["communication"]["times"][0]["kind"] = "gossip";
  EXPECT_THAT(ParseGpuSamples(bad.dump(), "bad.json").status().message(),
              AllOf(HasSubstr("bad.json"), HasSubstr("times[0]: kind: found \"gossip\"")));
}

}  // namespace
}  // namespace meshwright::tools

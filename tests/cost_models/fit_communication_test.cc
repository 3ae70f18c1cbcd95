// Fits of communication find what made the measurements, and the cost model prices by them.
#include "cost_models/fit_communication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cost_models/cost_model.h"
#include "tests/cost_models/communication_truth.h"

namespace meshwright::cost {
namespace {

using ::testing::HasSubstr;

DeviceProfile ProfileWith(const FittedCommunication& fitted) {
  Result<DeviceProfile> profile = LoadDeviceProfile("h200-sxm");
  MW_CHECK(profile.ok());
  profile->gpu->traffic = fitted.traffic;
  return *profile;
}

PathFacts Pair() {
  PathFacts path;
  path.ranks = path.ranks_per_host = 2;
  path.local_bandwidth = BytesPerSecond(450e9);
  path.local_latency = Seconds(0.5e-6);
  return path;
}

TEST(FitCommunication, RecoversWhatTheMeasurementsWereMadeWith) {
  const auto fitted = FitCommunication(TwoGpus(), "a test");
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  ASSERT_EQ(fitted->traffic.size(), 4u);
  const TrafficFit& tensor = fitted->traffic[0];
  EXPECT_EQ(tensor.carrier, Carrier::kNccl);
  EXPECT_EQ(tensor.ctas, 32);
  EXPECT_NEAR(tensor.latency.value.value(), 12e-6, 0.1e-6);
  EXPECT_NEAR(tensor.curve.back().efficiency.value, 200.0 / 450.0, 0.002);
  EXPECT_NEAR(tensor.beside.value, 0.8, 1e-3);
  EXPECT_EQ(tensor.latency.source.text, "a test");
  EXPECT_EQ(tensor.fit_rows.value, 8);
  for (const TrafficFit& fit : fitted->traffic) EXPECT_LT(fit.fit_p90.value, 0.01);
  EXPECT_EQ(fitted->traffic[1].carrier, Carrier::kCopyEngines);
  // The median of NCCL's 0.8, 0.9 and 0.99; copy engines are not in it.
  EXPECT_NEAR(fitted->beside_communication.value, 0.9, 1e-3);
  ASSERT_EQ(fitted->lines.size(), 5u);
  EXPECT_EQ(fitted->lines[0].what, "all_reduce of 2, tensor, nccl");
  EXPECT_THAT(fitted->lines.back().what, HasSubstr("held out"));
  EXPECT_EQ(fitted->lines.back().rows, 4);
}

TEST(FitCommunication, NoiseDoesNotMakeMoreBytesTakeLess) {
  CommunicationSamples samples = TwoGpus();
  samples.times[4].time = samples.times[3].time * 0.9;  // 16 MiB faster than 4 MiB
  samples.beside[0].beside = Seconds(1.4e-3);           // faster in company
  const auto fitted = FitCommunication(samples, "a test");
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  EXPECT_TRUE(Validate(ProfileWith(*fitted)).ok());
  EXPECT_EQ(fitted->traffic[0].beside.value, 1.0);
  EXPECT_GT(fitted->lines[0].p90, 0.5) << "what the curve leaves out shows in the residuals";
}

TEST(FitCommunication, TheModelPricesOurTrafficByIt) {
  const auto fitted = FitCommunication(TwoGpus(), "a test");
  ASSERT_TRUE(fitted.ok());
  const auto model = CostModel::Make(ProfileWith(*fitted), {{Precision::kBf16}});
  ASSERT_TRUE(model.ok()) << model.status().message();
  CollectiveWork work{CollectiveKind::kAllReduce, Bytes(int64_t{64} << 20)};
  const CollectivePrice library = model->ExplainCollective(work, Pair());
  work.traffic = Traffic::kTensor;
  const CollectivePrice nccl = model->ExplainCollective(work, Pair());
  const double bytes = static_cast<double>(work.bytes.value());
  EXPECT_NEAR(ToSeconds(nccl.time).value(), 12e-6 + bytes / 200e9, 2e-6);
  EXPECT_NEAR(nccl.beside, 0.8, 1e-3);
  work.carrier = Carrier::kCopyEngines;
  const CollectivePrice copies = model->ExplainCollective(work, Pair());
  EXPECT_NEAR(ToSeconds(copies.time).value(), 20e-6 + bytes / 380e9, 2e-6);
  EXPECT_NEAR(copies.beside, 0.96, 1e-3);
  // No entry for such traffic, a larger group, two hosts: as libraries do it.
  work.carrier = Carrier::kNccl;
  work.traffic = Traffic::kData;
  EXPECT_EQ(model->PriceCollective(work, Pair()), library.time);
  EXPECT_EQ(library.beside, model->profile().gpu->beside_communication.value);
  work.traffic = Traffic::kTensor;
  PathFacts four = Pair();
  four.ranks = four.ranks_per_host = 4;
  CollectiveWork plain = work;
  plain.traffic.reset();
  EXPECT_EQ(model->PriceCollective(work, four), model->PriceCollective(plain, four));
  PathFacts hosts = Pair();
  hosts.hosts = 2;
  hosts.ranks_per_host = 1;
  hosts.local_bandwidth = {};
  hosts.network_bandwidth = BytesPerSecond(50e9);
  EXPECT_EQ(model->PriceCollective(work, hosts), model->PriceCollective(plain, hosts));
}

TEST(FitCommunication, GroupsBetweenTheMeasuredOnesTakeTheNextLarger) {
  CommunicationSamples samples = TwoGpus();
  AddTruth({CollectiveKind::kAllReduce, Traffic::kTensor, Carrier::kNccl, 8, 32},
           {30e-6, 300e9, 0.8}, &samples);
  const auto fitted = FitCommunication(samples, "a test");
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  const auto model = CostModel::Make(ProfileWith(*fitted), {{Precision::kBf16}});
  ASSERT_TRUE(model.ok());
  PathFacts path = Pair();
  path.ranks = path.ranks_per_host = 4;
  CollectiveWork work{CollectiveKind::kAllReduce, Bytes(int64_t{64} << 20)};
  work.traffic = Traffic::kTensor;
  const double sent = 1.5 * static_cast<double>(work.bytes.value());
  EXPECT_NEAR(ToSeconds(model->PriceCollective(work, path)).value(), 30e-6 + sent / 300e9, 3e-6);
}

TEST(FitCommunication, RefusesWhatItCannotFit) {
  const auto refusal = [](const std::function<void(CommunicationSamples&)>& change) {
    CommunicationSamples samples = TwoGpus();
    change(samples);
    const auto fitted = FitCommunication(samples, "a test");
    EXPECT_FALSE(fitted.ok());
    return fitted.ok() ? std::string() : fitted.status().message();
  };
  using S = CommunicationSamples;
  EXPECT_THAT(refusal([](S& s) { s.link = {}; }), HasSubstr("links of 0"));
  EXPECT_THAT(refusal([](S& s) { s.times[1].time = Seconds(NAN); }),
              HasSubstr("all_reduce of 2, tensor, nccl: found"));
  EXPECT_THAT(refusal([](S& s) { s.times[1].time = {}; }), HasSubstr("above 0"));
  EXPECT_THAT(refusal([](S& s) { s.times[1].bytes = s.times[0].bytes; }), HasSubstr("twice"));
  EXPECT_THAT(refusal([](S& s) { s.times.erase(s.times.begin(), s.times.begin() + 5); }),
              HasSubstr("found 2 sizes to fit to, needed: 3"));
  EXPECT_THAT(refusal([](S& s) {
                for (TrafficSample& t : s.times) t.time = Seconds(1e-5);
              }),
              HasSubstr("rise with the size"));
  EXPECT_THAT(refusal([](S& s) { s.beside[0].alone = {}; }), HasSubstr("products beside"));
  EXPECT_THAT(refusal([](S& s) { s.beside[0].key.ranks = 4; }), HasSubstr("products beside"));
}

}  // namespace
}  // namespace meshwright::cost

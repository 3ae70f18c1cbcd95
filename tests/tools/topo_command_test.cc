#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/tools/cli.h"

namespace meshwright::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using TopoTest = CliTest;

/// Every field of the expected facts, with equal value.
void ExpectFacts(const std::string& name, const nlohmann::json& document) {
  nlohmann::json expected = nlohmann::json::parse(ReadFile(kTopos + name + ".expected.json"));
  expected.erase("verdict");
  for (const auto& [field, value] : expected.items()) {
    ASSERT_TRUE(document.contains(field)) << name << ": " << field;
    EXPECT_EQ(document[field], value) << name << ": " << field;
  }
}

TEST_F(TopoTest, JsonOfCapturesHasTheExpectedFields) {
  for (const char* stem :
       {"041-h100-8gpu-12nic-fused-PIXNODE", "037-dgx1-v100-cubemesh-nv1-nv2-tabs",
        "044-p40-8gpu-pix-pxb-soc-nic", "069-2gpu-nv2-with-gpu-numa-id-markdown"}) {
    const std::string name = stem;
    const CliResult file = Meshwright("topo --json " + kTopos + name + ".txt");
    ASSERT_EQ(file.exit, 0) << file.err;
    ExpectFacts(name, file.Json());
    const CliResult pipe = Shell(Binary() + " topo - --json < " + kTopos + name + ".txt");
    EXPECT_EQ(pipe.exit, 0) << pipe.err;
    EXPECT_EQ(pipe.Json(), file.Json());
  }
}

TEST_F(TopoTest, OtherToolsTablesAreRefusedWithTheLine) {
  for (const char* name :
       {"073-ascend-npu-smi-topo-negative.txt", "075-mthreads-gpustack-table-negative.txt"}) {
    const CliResult result = Meshwright("topo " + kTopos + name);
    EXPECT_EQ(result.exit, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr(name), HasSubstr("line ")));
  }
}

TEST_F(TopoTest, TextShowsIslandsNicsAndNuma) {
  const CliResult result = Meshwright("topo " + kH100Capture + " --gpu H100-SXM");
  ASSERT_EQ(result.exit, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("8 GPUs and 12 NICs"), HasSubstr("every pair joined"),
                                HasSubstr("NV18 x28"), HasSubstr("NIC11"), HasSubstr("0-191"),
                                HasSubstr("NVLink island of 8")));
}

TEST_F(TopoTest, ShippedClustersAndYamlAreDescribed) {
  const CliResult shipped = Meshwright("topo dgx-h100 --nodes 4 --json");
  ASSERT_EQ(shipped.exit, 0) << shipped.err;
  const nlohmann::json document = shipped.Json();
  EXPECT_EQ(document["gpus"], 32);
  EXPECT_EQ(document["host_count"], 4);
  EXPECT_EQ(document["hosts"][0]["nvlink_islands"][0].size(), 8U);
  const CliResult yaml = Meshwright("topo " + kSource + "/topologies/clusters/l40s-8.yaml");
  EXPECT_EQ(yaml.exit, 0) << yaml.err;
  EXPECT_THAT(yaml.out, HasSubstr("8 devices on 1 hosts"));
}

TEST_F(TopoTest, DotIsAGraph) {
  const CliResult dot = Meshwright("topo dgx-h100 --dot");
  EXPECT_EQ(dot.exit, 0) << dot.err;
  EXPECT_THAT(dot.out, AllOf(HasSubstr("graph"), HasSubstr("gpu7")));
  const CliResult unknown =
      Meshwright("topo --dot " + kTopos + "047-8gpu-pix-phb-sys-no-affinity.txt");
  EXPECT_EQ(unknown.exit, 2);
  EXPECT_THAT(unknown.err, HasSubstr("H100-SXM")) << "lists the models";
}

TEST_F(TopoTest, LocalAsksNvidiaSmi) {
  const CliResult none = Shell("PATH=" + Path("") + " " + Binary() + " topo --local");
  EXPECT_EQ(none.exit, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("nvidia-smi"), HasSubstr("cpu")));

  WriteFile(Path("nvidia-smi"), "#!/bin/sh\nif [ \"$1\" = topo ]; then exec /bin/cat " +
                                    kH100Capture +
                                    "; fi\nfor i in 0 1 2 3 4 5 6 7; do echo \"GPU $i: NVIDIA H100 "
                                    "80GB HBM3 (UUID: x)\"; done\n");
  std::filesystem::permissions(Path("nvidia-smi"), std::filesystem::perms::owner_all);
  const std::string with_smi = "PATH=" + Path("") + ":$PATH " + Binary();
  const CliResult local = Shell(with_smi + " topo --local");
  EXPECT_EQ(local.exit, 0) << local.err;
  EXPECT_THAT(local.out,
              AllOf(HasSubstr("NVIDIA H100 80GB HBM3"), HasSubstr("NVLink island of 8")));
  const CliResult estimate =
      Shell(with_smi + " estimate --cluster local --model gpt2 --global-batch 8 --json");
  EXPECT_EQ(estimate.exit, 0) << estimate.err;
  EXPECT_EQ(estimate.Json()["split"]["dp"], 8);
}

// Bug report B56: a matrix that looks ideal hides peer access that does not work.
TEST_F(TopoTest, PciePairsAreToBeTestedNotTrusted) {
  const std::string capture = kTopos + "059-4gpu-pxb-sys-pix-nccl-hang.txt";
  const CliResult result = Meshwright("topo " + capture);
  EXPECT_EQ(result.exit, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("peer access"), HasSubstr("ACS"), HasSubstr("GPU0-GPU1 (P")));
  const nlohmann::json notes = Meshwright("topo --json " + capture).Json()["notes"];
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0].get<std::string>(), StartsWith("the matrix does not prove"));
  EXPECT_TRUE(Meshwright("topo --json " + kH100Capture).Json()["notes"].empty())
      << "NVLink needs no note";
}

TEST_F(TopoTest, NamesOneSource) {
  EXPECT_EQ(Meshwright("topo --local dgx-h100").exit, 2);
}

}  // namespace
}  // namespace meshwright::tools

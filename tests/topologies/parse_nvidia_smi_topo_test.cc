#include "topologies/parse_nvidia_smi_topo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/topologies/test_files.h"

namespace meshwright::topologies {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

std::string ErrorOf(std::string_view text) {
  const Result<TopoReport> report = ParseNvidiaSmiTopo(text);
  EXPECT_FALSE(report.ok());
  EXPECT_TRUE(report.ok() || report.status().code() == StatusCode::kInvalidInput);
  return report.ok() ? "" : report.status().message();
}

TopoReport Parsed(std::string_view text) {
  const Result<TopoReport> report = ParseNvidiaSmiTopo(text);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? *report : TopoReport{};
}

json Facts(const TopoReport& report) {
  json facts = ToJson(report);
  for (const char* ours : {"links", "nic_legend", "gpu_names", "warnings"}) facts.erase(ours);
  return facts;
}

// Refused captures (those whose expectation is a verdict alone) and all facts of the others.
void CheckCapture(const std::filesystem::path& path) {
  SCOPED_TRACE(path.filename().string());
  std::filesystem::path expectation = path;
  expectation.replace_extension(".expected.json");
  json expected = json::parse(ReadAll(expectation));
  expected.erase("verdict");
  const Result<TopoReport> report = ParseNvidiaSmiTopo(ReadAll(path));
  if (expected.empty()) {
    ASSERT_FALSE(report.ok());
    EXPECT_THAT(report.status().message(), HasSubstr("line "));
    return;
  }
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(json::diff(expected, Facts(*report)), json::array());
}

TEST(CapturesTest, CommittedOnesGiveTheExpectedFacts) {
  const auto paths = Captures(kCommittedTopos);
  ASSERT_GE(paths.size(), 27U);
  for (const auto& path : paths) CheckCapture(path);
}

TEST(CapturesTest, SharedOnesGiveTheExpectedFacts) {
  const auto paths = Captures(kSharedTopos);
  if (paths.empty()) GTEST_SKIP() << "no folder " << kSharedTopos << " beside the checkout";
  for (const auto& path : paths) CheckCapture(path);
}

// A synthetic capture: NVSwitch host with NICs, like drivers of today print it.
std::string SwitchHost(int gpus, int nics, int links) {
  std::string text = "\t";
  for (int i = 0; i < gpus; ++i) text += "GPU" + std::to_string(i) + "\t";
  for (int i = 0; i < nics; ++i) text += "NIC" + std::to_string(i) + "\t";
  text += "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\n";
  const int n = gpus + nics;
  for (int i = 0; i < n; ++i) {
    text += i < gpus ? "GPU" + std::to_string(i) : "NIC" + std::to_string(i - gpus);
    for (int j = 0; j < n; ++j) {
      const bool nvlink = i < gpus && j < gpus;
      const bool near = (i < gpus ? i : i - gpus) / 2 == (j < gpus ? j : j - gpus) / 2;
      text += i == j ? "\t X " : nvlink ? "\tNV" + std::to_string(links) : near ? "\tPIX" : "\tSYS";
    }
    text += i < gpus ? "\t0-31\t0\t\tN/A\n" : "\t\t\t\t\n";
  }
  return text + "\nLegend:\n\n  X    = Self\n";
}

// The same facts in other clothes.
TEST(MutationsTest, LayoutDoesNotChangeTheFacts) {
  for (const auto& path : Captures(kCommittedTopos)) {
    const std::string text = ReadAll(path);
    const Result<TopoReport> plain = ParseNvidiaSmiTopo(text);
    if (!plain.ok()) continue;
    SCOPED_TRACE(path.filename().string());
    const json facts = Facts(*plain);
    EXPECT_EQ(Facts(Parsed(Replaced(text, "\n", "\r\n"))), facts);
    EXPECT_EQ(Facts(Parsed("\xEF\xBB\xBF" + text)), facts);
    EXPECT_EQ(Facts(Parsed("\x1b[1mbanner\x1b[0m\n```\n" + text + "\n```\n$ exit\n")), facts);
    EXPECT_EQ(Facts(Parsed("[INFO] found GPU0 and mlx5_0\n\n" +
                           Replaced(text, "GPU1\t", "\x1b[4mGPU1\x1b[0m\t"))),
              facts);
    EXPECT_EQ(Facts(Parsed(Replaced(text, "\n", "\n\n"))), facts);
    std::string prefixed =
        "2024-09-23T09:34:37Z node1 " + Replaced(text, "\n", "\n2024-09-23T09:34:37Z node1 ");
    EXPECT_EQ(Facts(Parsed(prefixed)), facts);
    EXPECT_EQ(Facts(Parsed(text + "\n" + text)), facts);
  }
}

TEST(MutationsTest, TabsMayBecomeSpaces) {
  const std::string text = SwitchHost(8, 8, 18);
  EXPECT_EQ(Facts(Parsed(Replaced(text, "\t", "    "))), Facts(Parsed(text)));
}

TEST(MutationsTest, LinesBrokenByATerminalComeTogether) {
  const std::string text = Replaced(SwitchHost(8, 8, 18), "\t", "    ");
  std::string broken;
  int column = 0;
  for (const char c : text) {
    if (c == '\n') column = -1;
    if (column == 80) {
      broken += '\n';
      column = 0;
    }
    broken += c;
    ++column;
  }
  EXPECT_EQ(Facts(Parsed(broken)), Facts(Parsed(text)));
}

TEST(SeveralBlocksTest, FirstCompleteOneIsRead) {
  const std::string whole = SwitchHost(2, 0, 4);
  const std::string cut = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tNV4\n\n";
  const TopoReport report = Parsed(cut + whole + SwitchHost(4, 0, 4));
  EXPECT_EQ(report.gpus, 2);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("incomplete matrix was skipped")));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("another matrix, which was not read")));
}

TEST(DetailsTest, LegendNamesAndOldWords) {
  const TopoReport legend = Parsed(Capture("054-"));
  EXPECT_EQ(legend.nic_legend, (std::map<std::string, std::string>{{"NIC0", "mlx5_0"}}));
  EXPECT_EQ(ToString(Parsed(Capture("044-")).LinkBetween(0, 8)), "SOC");
  const TopoReport names =
      Parsed("GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n" + SwitchHost(2, 0, 12));
  EXPECT_EQ(names.gpu_names, (std::vector<std::string>{"", "NVIDIA A100-SXM4-80GB"}));
}

TEST(DetailsTest, EmptyCellsAndAbsentColumns) {
  const TopoReport windows =
      Parsed("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\t\t\tN/A\n");
  ASSERT_TRUE(windows.cpu_affinity && windows.numa && windows.gpu_numa_id);
  EXPECT_EQ((*windows.cpu_affinity)[0], std::nullopt);
  EXPECT_EQ((*windows.numa)[0], std::nullopt);
  EXPECT_EQ((*windows.gpu_numa_id)[0], "N/A");
  const TopoReport none = Parsed("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n");
  EXPECT_FALSE(none.cpu_affinity || none.numa || none.gpu_numa_id);
  EXPECT_TRUE(ToJson(none)["numa"].is_null());
}

TEST(WarningsTest, LinksThatMayBeDown) {
  EXPECT_THAT(Parsed(Capture("062-")).warnings, Contains(HasSubstr("one link may be down")));
  std::string text = SwitchHost(8, 0, 18);
  text = ReplacedOnce(text, "GPU0\t X \tNV18", "GPU0\t X \tNV17");
  text = ReplacedOnce(text, "GPU1\tNV18", "GPU1\tNV17");
  EXPECT_THAT(Parsed(text).warnings, Contains(HasSubstr("counts of one switch differ")));
  EXPECT_THAT(Parsed(SwitchHost(8, 8, 18)).warnings, IsEmpty());
}

TEST(WarningsTest, SplitCellsAndMissingNicRowsAreNamed) {
  EXPECT_THAT(Parsed(Capture("041-")).warnings,
              Contains(AllOf(HasSubstr("row GPU5"), HasSubstr("split"))));
  const TopoReport glued = Parsed(Capture("080-"));
  EXPECT_THAT(glued.warnings, Contains(HasSubstr("'NIC11NIC12' was split into 2 names")));
  EXPECT_THAT(glued.warnings, Contains(HasSubstr("rows of 13 of 13 NICs are missing")));
  EXPECT_FALSE(glued.nic_links_known);
}

TEST(RefusalsTest, OtherToolsAreNamed) {
  EXPECT_THAT(
      ErrorOf("       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n"),
      AllOf(HasSubstr("line 2"), HasSubstr("AMD"), HasSubstr("rocm-smi")));
  EXPECT_THAT(ErrorOf(Capture("073-")), AllOf(HasSubstr("line 1"), HasSubstr("Ascend")));
  EXPECT_THAT(ErrorOf(Capture("075-")), AllOf(HasSubstr("line 1"), HasSubstr("Moore Threads")));
  EXPECT_THAT(ErrorOf("        GPU0    GPU1\n GPU0   X       CNS\n GPU1   CNS     X\n"),
              AllOf(HasSubstr("line 2, row GPU0"), HasSubstr("'CNS'"), HasSubstr("peer-to-peer")));
  EXPECT_THAT(ErrorOf("\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n"), HasSubstr("peer-to-peer"));
}

TEST(RefusalsTest, NoOrPartialMatrix) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("no matrix"));
  EXPECT_THAT(ErrorOf("ERROR: Option -m is missing its value.\n"),
              AllOf(HasSubstr("no matrix"), HasSubstr("line 1"), HasSubstr("missing its value")));
  EXPECT_THAT(
      ErrorOf("            GPU0  ... NIC5  CPU Affinity\n        GPU0  X   ... SYS   0-71\n"),
      AllOf(HasSubstr("line 1"), HasSubstr("elided")));
  EXPECT_THAT(ErrorOf("\tGPU0\tGPU1\nGPU0\t X \t...\nGPU1\tNV4\t X\n"),
              AllOf(HasSubstr("line 2, row GPU0"), HasSubstr("elided")));
  EXPECT_THAT(ErrorOf(Capture("078-")), HasSubstr("rows are missing: GPU5, GPU6, GPU7"));
  EXPECT_THAT(
      ErrorOf("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\nGPU1\tNV4\t X \tNV4\nGPU2\tNV4\tNV4\t X \n"),
      AllOf(HasSubstr("line 2, row GPU0: 2 cells under 3 columns"), HasSubstr("GPU2")));
  EXPECT_THAT(ErrorOf("\tGPU0\tGPU2\nGPU0\t X \tNV4\nGPU2\tNV4\t X \n"),
              AllOf(HasSubstr("line 1"), HasSubstr("GPU2 stands where GPU1 belongs")));
  EXPECT_THAT(ErrorOf("\tGPU0N\nGPU0N\t X \n"), HasSubstr("'GPU0N' stands where GPU0 belongs"));
  EXPECT_THAT(ErrorOf("\tGPU0\tGPU1\nGPU0\t X \tNV4\tNV4\nGPU1\tNV4\t X \tNV4\n"),
              HasSubstr("more link words than the 2 columns"));
}

TEST(RefusalsTest, ContradictoryMatrices) {
  const std::string good = SwitchHost(4, 2, 4);
  EXPECT_THAT(ErrorOf(ReplacedOnce(good, "NV4", "NV2")),
              AllOf(HasSubstr("line 2, row GPU0: NV2 under GPU1"), HasSubstr("row GPU1 (line 3)"),
                    HasSubstr("symmetric")));
  EXPECT_THAT(ErrorOf(ReplacedOnce(good, " X ", "NV4")), HasSubstr("under itself stands NV4"));
  EXPECT_THAT(ErrorOf(ReplacedOnce(good, "NV4", " X ")), HasSubstr("X (itself) stands under GPU1"));
  EXPECT_THAT(ErrorOf(Replaced(good, "NV4", "NV0")),
              HasSubstr("NV0 under GPU1 is no number of links"));
  EXPECT_THAT(ErrorOf(ReplacedOnce(good, "NV4", "NV40000000000000000000")),
              HasSubstr("no number of links"));
  EXPECT_THAT(ErrorOf(Replaced(good, "PIX", "PEX")),
              AllOf(HasSubstr("'PEX'"), HasSubstr("link words are")));
  EXPECT_THAT(ErrorOf(Replaced(good, "PIX", "NV1")), HasSubstr("NVLink joins GPUs only"));
  EXPECT_THAT(ErrorOf(ReplacedOnce(good, "\nGPU3", "\nGPU2")), HasSubstr("row GPU2 stands twice"));
  EXPECT_THAT(ErrorOf(ReplacedOnce(good, "GPU3", "GPU2")),
              HasSubstr("line 1, header: GPU2 stands twice"));
  EXPECT_THAT(ErrorOf(ReplacedOnce(good, "NIC1", "NIC0")), HasSubstr("NIC0 stands twice"));
  EXPECT_THAT(ErrorOf(Replaced(good, "0-31\t0\t\tN/A", "0-31\t0\t1\tN/A")),
              HasSubstr("4 values after the links but 3 affinity columns"));
}

TEST(HostileTest, EncodingsAndSizes) {
  EXPECT_THAT(ErrorOf("abc\n\xC3("), AllOf(HasSubstr("line 2"), HasSubstr("0xC3 is not UTF-8")));
  EXPECT_THAT(ErrorOf(std::string("\xFF\xFEG\0P\0", 6)), HasSubstr("UTF-16"));
  EXPECT_THAT(ErrorOf(std::string("GPU0\0GPU1", 9)), HasSubstr("zero byte"));
  EXPECT_THAT(ErrorOf(std::string((size_t{4} << 20) + 1, ' ')), HasSubstr("at most"));
  std::string wide;
  for (int i = 0; i < 2000; ++i) wide += "\tGPU" + std::to_string(i);
  EXPECT_THAT(ErrorOf(wide), HasSubstr("more than 1024 columns"));
}

TEST(HostileTest, EveryPrefixOfACaptureIsAnswered) {
  const std::string text = Capture("037-");
  int refused = 0;
  for (size_t size = 0; size < text.size(); size += 7) {
    refused += ParseNvidiaSmiTopo(std::string_view(text).substr(0, size)).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 50);
}

// 2^30 maximal cliques (a cocktail-party graph) must not be listed.
TEST(HostileTest, TooManyCliquesAreLeftOut) {
  const int n = 60;
  std::string text = "\t";
  for (int i = 0; i < n; ++i) text += "GPU" + std::to_string(i) + "\t";
  for (int i = 0; i < n; ++i) {
    text += "\nGPU" + std::to_string(i);
    for (int j = 0; j < n; ++j) text += i == j ? "\tX" : i / 2 == j / 2 ? "\tPIX" : "\tNV1";
  }
  const TopoReport report = Parsed(text);
  EXPECT_EQ(report.gpus, n);
  EXPECT_FALSE(report.maximal_nvlink_cliques);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("maximal NVLink cliques")));
}

}  // namespace
}  // namespace meshwright::topologies

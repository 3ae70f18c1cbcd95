#include "topologies/process_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/topologies/test_files.h"

namespace meshwright::topologies {
namespace {

using nlohmann::json;
using Groups = std::vector<RankGroup>;
using Names = std::vector<std::string>;

ProcessGrid Grid(std::vector<int64_t> shape, Names names, int64_t offset = 0) {
  auto grid = ProcessGrid::Make(std::move(shape), std::move(names), offset, 1 << 20);
  EXPECT_TRUE(grid.ok()) << grid.status().message();
  return *grid;
}

Groups Of(const ProcessGrid& grid, const Names& dims, std::string_view view = {}) {
  const auto groups = grid.Enumerate(dims, view);
  EXPECT_TRUE(groups.ok()) << groups.status().message();
  return groups.ok() ? *groups : Groups{};
}

void ExpectError(const Status& status, GridError kind, const std::string& part) {
  EXPECT_EQ(GridErrorOf(status), kind) << status.message();
  EXPECT_THAT(status.message(), testing::HasSubstr(part));
}

TEST(ProcessGridTest, GoldenRanks) {
  const json golden =
      json::parse(ReadAll(MESHWRIGHT_SOURCE_DIR "/tests/data/golden/golden_ranks.json"));
  ASSERT_EQ(golden.size(), 6U);
  int checked = 0;
  for (const json& entry : golden) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    ProcessGrid grid = Grid(entry["shape"], entry["names"], entry["offset"]);
    for (const auto& [key, groups] : entry["groups"].items()) {
      Names dims;
      std::string rest = key;
      for (size_t dash = rest.find('-'); dash != std::string::npos; dash = rest.find('-')) {
        dims.insert(dims.begin(), rest.substr(0, dash));  // any order: requests are canonicalised
        rest = rest.substr(dash + 1);
      }
      dims.insert(dims.begin(), rest);
      EXPECT_EQ(grid.KeyFor(dims)->ToString(), key);
      EXPECT_EQ(Of(grid, dims), groups.get<Groups>()) << key;
      ++checked;
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(ProcessGridTest, WorkedExamples) {
  const ProcessGrid a = Grid({2, 1, 3, 1}, {"tp", "cp", "pp", "dp"}, 2);
  EXPECT_EQ(Of(a, {"tp"}), (Groups{{2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Of(a, {"cp"}), (Groups{{2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(Of(a, {"pp"}), (Groups{{2, 4, 6}, {3, 5, 7}}));
  EXPECT_EQ(Of(a, {"tp", "pp"}), (Groups{{2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(*a.EnumerateRaw({"tp", "cp", "pp"}), (Groups{{2, 4, 6, 3, 5, 7}}));
  const ProcessGrid b = Grid({2, 2, 1, 2}, {"tp", "cp", "pp", "dp"});
  EXPECT_EQ(Of(b, {"tp"}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Of(b, {"cp"}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(Of(b, {"dp"}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(Of(b, {"dp", "cp"}), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(*b.EnumerateRaw({"tp", "cp"}), (Groups{{0, 2, 1, 3}, {4, 6, 5, 7}}));
  const ProcessGrid c = Grid({2, 1, 2, 2}, {"tp", "cp", "pp", "dp"});
  EXPECT_EQ(Of(c, {"pp"}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(Of(c, {"dp"}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(Of(c, {"tp", "pp"}), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  const ProcessGrid d = Grid({2, 1, 1, 2, 2}, {"tp", "gtp", "cp", "dp", "pp"}, 4);
  EXPECT_EQ(Of(d, {"dp"}), (Groups{{4, 6}, {5, 7}, {8, 10}, {9, 11}}));
  EXPECT_EQ(Of(d, {"pp"}), (Groups{{4, 8}, {5, 9}, {6, 10}, {7, 11}}));
  EXPECT_EQ(Of(d, {"tp", "pp"}), (Groups{{4, 5, 8, 9}, {6, 7, 10, 11}}));
  const ProcessGrid e = Grid({2, 1, 1, 2, 4}, {"tp", "cp", "ep", "dp", "pp"});
  EXPECT_EQ(Of(e, {"tp"})[1], (RankGroup{2, 3}));
  EXPECT_EQ(Of(e, {"dp"}),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(Of(e, {"pp"}), (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  const ProcessGrid f = Grid({2, 4}, {"tp", "dp"});
  EXPECT_EQ(Of(f, {"dp"}), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  const ProcessGrid g = Grid({4, 2}, {"tp", "dp"});
  EXPECT_EQ(Of(g, {"tp"}), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(Of(g, {"dp"}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(ProcessGridTest, RawOrderKeepsTheRequest) {
  const ProcessGrid grid = Grid({2, 2, 2}, {"x", "y", "z"});
  EXPECT_EQ(*grid.EnumerateRaw({"x", "y"}), (Groups{{0, 2, 1, 3}, {4, 6, 5, 7}}));
  EXPECT_EQ(Of(grid, {"x", "y"}), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(ProcessGridTest, CoordinatesInvertRanks) {
  const ProcessGrid grid = Grid({2, 3, 4}, {"tp", "pp", "dp"}, 5);
  for (int64_t rank = 5; rank < 29; ++rank) {
    const auto coordinates = *grid.Coordinates(rank);
    EXPECT_EQ(*grid.RankAt(coordinates), rank);
    EXPECT_EQ(coordinates[0], (rank - 5) % 2);
  }
  EXPECT_FALSE(grid.Contains(4));
  EXPECT_TRUE(grid.Contains(5));
  EXPECT_TRUE(grid.Contains(28));
  EXPECT_FALSE(grid.Contains(29));
  ExpectError(grid.Coordinates(29).status(), GridError::kValue, "outside");
  ExpectError(grid.RankAt({0, 3, 0}).status(), GridError::kValue, "axis pp");
  ExpectError(grid.RankAt({0}).status(), GridError::kValue, "coordinates");
}

TEST(ProcessGridTest, MisuseOfTheBaseGrid) {
  const auto make = [](std::vector<int64_t> shape, Names names, int64_t offset,
                       std::optional<int64_t> world) {
    return ProcessGrid::Make(std::move(shape), std::move(names), offset, world).status();
  };
  ExpectError(make({2, 2}, {"tp"}, 0, 8), GridError::kValue, "2 sizes");
  ExpectError(make({}, {}, 0, 8), GridError::kValue, "no axes");
  ExpectError(make({2}, {"tp"}, -1, 8), GridError::kValue, "offset -1");
  ExpectError(make({2, 4}, {"tp", "dp"}, 1, 8), GridError::kRuntime, "over-sized");
  ExpectError(make({2}, {"tp"}, 9, 8), GridError::kRuntime, "over-sized");
  ExpectError(make({int64_t{1} << 40, int64_t{1} << 40}, {"tp", "dp"}, 0, 8), GridError::kRuntime,
              "over-sized");
  ExpectError(make({2}, {"tp"}, 0, std::nullopt), GridError::kRuntime, "world size is unknown");
  ExpectError(make({2, 2}, {"tp", "tp"}, 0, 8), GridError::kValue, "used twice");
  ExpectError(make({2, 0}, {"tp", "dp"}, 0, 8), GridError::kValue, "axis dp has size 0");
  ExpectError(make({-2}, {"tp"}, 0, 8), GridError::kValue, "axis tp has size -2");
  ExpectError(make({2}, {""}, 0, 8), GridError::kValue, "axis name");
  ExpectError(make({2}, {"a-b"}, 0, 8), GridError::kValue, "axis name");
}

TEST(ProcessGridTest, MisuseOfGroups) {
  ProcessGrid grid = Grid({2, 2}, {"tp", "dp"}, 2);
  ExpectError(grid.Get({"tp"}).status(), GridError::kKey, "group tp was not created");
  ASSERT_TRUE(grid.Create({"tp", "dp"}).ok());
  EXPECT_EQ(*grid.Get({"dp", "tp"}), (Groups{{2, 3, 4, 5}}));
  ExpectError(grid.Create({"dp", "tp"}).status(), GridError::kKey, "group dp-tp exists");
  ExpectError(grid.Enumerate({"ep"}).status(), GridError::kValue, "'ep' is not in the base grid");
  ExpectError(grid.Create({"ep"}).status(), GridError::kValue, "'ep'");
  ExpectError(grid.Enumerate({}).status(), GridError::kValue, "no axis");
  ExpectError(grid.Enumerate({"tp", "tp"}).status(), GridError::kValue, "named twice");
  ExpectError(grid.Enumerate({"tp"}, "expert").status(), GridError::kKey, "no view 'expert'");
  ExpectError(grid.Get({"tp"}, "expert").status(), GridError::kKey, "no view 'expert'");
}

TEST(ProcessGridTest, DestroyGivesEachCommunicatorOnce) {
  ProcessGrid grid = Grid({2, 2}, {"tp", "dp"}, 2);
  ASSERT_TRUE(grid.Create({"tp"}).ok());
  ASSERT_TRUE(grid.Create({"dp"}).ok());
  ProcessGrid other = grid;
  EXPECT_EQ(grid.Destroy(3).size(), 2U);
  EXPECT_TRUE(grid.Destroy(3).empty());
  ExpectError(grid.Get({"tp"}).status(), GridError::kKey, "not created");
  EXPECT_TRUE(other.Destroy(0).empty());  // rank 0 is outside
}

TEST(ProcessGridTest, ExpertView) {
  // tp2 gtp1 cp1 dp2 pp2 with experts etp1 ep2 egtp1 edp2: production order.
  ProcessGrid grid = Grid({2, 1, 1, 2, 2}, {"tp", "gtp", "cp", "dp", "pp"});
  ASSERT_TRUE(
      grid.RegisterView("expert",
                        {{1, 2, 1, 2, 2}, {"expt_tp", "ep", "expt_gtp", "expt_dp", "pp"}, {"pp"}})
          .ok());
  EXPECT_EQ(Of(grid, {"ep"}, "expert"), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(grid.KeyFor({"pp"}, "expert")->ToString(), "pp");
  EXPECT_EQ(grid.KeyFor({"ep", "pp"}, "expert")->ToString(), "expert/pp-ep");
  ASSERT_TRUE(grid.Create({"pp"}).ok());
  EXPECT_EQ(*grid.Get({"pp"}, "expert"), Of(grid, {"pp"}));
  ExpectError(grid.Create({"pp"}, "expert").status(), GridError::kKey, "group pp exists");
  ExpectError(grid.Enumerate({"tp"}, "expert").status(), GridError::kValue, "view 'expert'");
  EXPECT_EQ(*grid.AxisSize("ep", "expert"), 2);
  EXPECT_EQ(*grid.Coordinates(5, "expert"), (std::vector<int64_t>{0, 1, 0, 0, 1}));
}

TEST(ProcessGridTest, MisuseOfViews) {
  ProcessGrid grid = Grid({2, 2, 2}, {"tp", "pp", "dp"});
  const auto reg = [&](GridView view) { return grid.RegisterView("expert", std::move(view)); };
  ExpectError(grid.RegisterView("", {{8}, {"ep"}, {}}), GridError::kValue, "without a name");
  ExpectError(reg({{2, 4}, {"ep"}, {}}), GridError::kValue, "2 sizes");
  ExpectError(reg({{2, 4}, {"ep", "ep"}, {}}), GridError::kValue, "used twice");
  ExpectError(reg({{0, 8}, {"ep", "edp"}, {}}), GridError::kValue, "size 0");
  ExpectError(reg({{2, 2}, {"ep", "edp"}, {}}), GridError::kValue, "not the grid's 8 ranks");
  ExpectError(reg({{4, 2}, {"ep", "dp"}, {"dp", "dp"}}), GridError::kValue, "listed twice");
  ExpectError(reg({{4, 2}, {"ep", "dp"}, {"ep"}}), GridError::kValue, "missing in the base grid");
  ExpectError(reg({{4, 2}, {"ep", "edp"}, {"dp"}}), GridError::kValue, "missing in the view");
  ExpectError(reg({{2, 4}, {"pp", "ep"}, {"pp"}}), GridError::kValue, "other groups");
  // Each alone agrees (sizes 1), together the order differs.
  ProcessGrid wide = Grid({2, 2, 2}, {"tp", "pp", "dp"});
  ExpectError(wide.RegisterView("v", {{2, 2, 2}, {"ep", "dp", "pp"}, {"dp", "pp"}}),
              GridError::kValue, "other groups");
  EXPECT_TRUE(wide.views().empty());
  ASSERT_TRUE(reg({{4, 2}, {"ep", "dp"}, {"dp"}}).ok());
  ExpectError(reg({{4, 2}, {"ep", "dp"}, {"dp"}}), GridError::kValue, "registered already");
}

TEST(ModuleGridsTest, GroupRequestsAndEmbeddingGroups) {
  ProcessGrid grid = Grid({2, 1, 3, 1}, {"tp", "cp", "pp", "dp"}, 2);
  EXPECT_EQ(*EmbeddingGroups(grid), (Groups{{2, 6}, {3, 7}}));
  EXPECT_EQ(*PositionEmbeddingGroups(grid), (Groups{{2}, {3}}));
  EXPECT_EQ(*EmbeddingGroups(Grid({2, 1}, {"tp", "pp"})), (Groups{{0}, {1}}));
  ASSERT_TRUE(
      grid.RegisterView("expert", {{2, 1, 3, 1}, {"expt_tp", "ep", "pp", "expt_dp"}, {"pp"}}).ok());
  std::vector<std::string> keys;
  for (const GroupRequest& request : ModuleGroupRequests(grid)) {
    const auto key = grid.Create(request.dims, request.view);
    ASSERT_TRUE(key.ok()) << key.status().message();
    keys.push_back(key->ToString());
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"tp", "cp", "pp", "dp", "dp-cp", "cp-tp", "pp-tp",
                                            "dp-tp", "dp-cp-tp", "dp-pp-cp-tp", "expert/ep",
                                            "expert/expt_tp", "expert/expt_dp", "expert/ep-expt_tp",
                                            "expert/pp-ep-expt_tp"}));
}

TEST(ModuleGridsTest, LayoutRules) {
  const ProcessGrid encoder = Grid({2}, {"dp"}, 0);
  const ProcessGrid language = Grid({2, 3}, {"tp", "pp"}, 2);
  const std::map<std::string, ProcessGrid> apart = {{"images", encoder}, {"language", language}};
  EXPECT_EQ(*CheckLayout(apart, {"images"}, 8), GridLayout::kDisjoint);
  EXPECT_EQ(*ModulesOf(apart, 1), (Names{"images"}));
  ExpectError(ModulesOf(apart, 8).status(), GridError::kRuntime, "rank 8 is in no module");
  ExpectError(CheckLayout(apart, {"images"}, 9).status(), GridError::kValue, "end at rank 8");
  ExpectError(CheckLayout(apart, {"audio"}, 8).status(), GridError::kValue,
              "keyed [images, language]");
  ExpectError(CheckLayout({{"images", encoder}}, {"images"}, 2).status(), GridError::kValue,
              "language");
  const std::map<std::string, ProcessGrid> gap = {{"images", encoder},
                                                  {"language", Grid({4}, {"tp"}, 4)}};
  ExpectError(CheckLayout(gap, {"images"}, 8).status(), GridError::kValue,
              "ranks [2, 4) are in no grid");
  const std::map<std::string, ProcessGrid> overlap = {{"images", Grid({4}, {"dp"})},
                                                      {"language", language}};
  ExpectError(CheckLayout(overlap, {"images"}, 8).status(), GridError::kValue, "overlap");
  const std::map<std::string, ProcessGrid> same = {{"images", Grid({8}, {"dp"})},
                                                   {"language", Grid({2, 4}, {"tp", "dp"})}};
  EXPECT_EQ(*CheckLayout(same, {"images"}, 8), GridLayout::kColocated);
  EXPECT_EQ(ModulesOf(same, 0)->size(), 2U);
  ExpectError(CheckLayout(same, {"images"}, 16).status(), GridError::kValue, "co-located");
}

}  // namespace
}  // namespace meshwright::topologies

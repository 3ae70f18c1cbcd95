#include "runtime/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/slurm_lists.h"

namespace meshwright::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Variables = std::map<std::string, std::string>;

Result<LaunchFacts> Detect(const Variables& variables) {
  return DetectLaunch([&](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional<std::string>(at->second);
  });
}

/// What a variable is set to, or std::nullopt to take it away.
Variables With(Variables variables, const std::string& name, std::optional<std::string> value) {
  variables.erase(name);
  if (value) variables[name] = *value;
  return variables;
}

Variables operator+(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

std::string ErrorOf(const Variables& variables) {
  const auto facts = Detect(variables);
  EXPECT_FALSE(facts.ok());
  if (facts.ok()) return "";
  EXPECT_EQ(facts.status().code(), StatusCode::kInvalidInput);
  return facts.status().message();
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "x7"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                            {"PMIX_NAMESPACE", "1116602369"},
                            {"PMIX_RANK", "1"}};
const Variables kPmi = {
    {"PMI_RANK", "0"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "8"}};
const Variables kSlurmStep = {{"SLURM_PROCID", "5"},
                              {"SLURM_STEP_NUM_TASKS", "7"},
                              {"SLURM_LOCALID", "1"},
                              {"SLURM_NODEID", "2"},
                              {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                              {"SLURM_STEP_NODELIST", "gpu[003-005,9]"},
                              {"SLURM_JOB_NODELIST", "other"},
                              {"SLURM_JOB_ID", "77"},
                              {"SLURM_STEP_ID", "3"}};

TEST(DetectLaunch, AProcessAlone) {
  const LaunchFacts facts = Detect({{"HOME", "/root"}, {"MASTER_PORT", "1"}}).value();
  EXPECT_EQ(facts.launcher, Launcher::kNone);
  EXPECT_EQ(facts.rank, 0);
  EXPECT_EQ(facts.world, 1);
  EXPECT_THAT(facts.notes, IsEmpty());
  EXPECT_THAT(Describe(facts), HasSubstr("no launcher"));
}

TEST(DetectLaunch, Torchrun) {
  const LaunchFacts facts = Detect(kTorchrun).value();
  EXPECT_EQ(facts.launcher, Launcher::kTorchrun);
  EXPECT_EQ(facts.rank, 3);
  EXPECT_EQ(facts.world, 4);
  EXPECT_EQ(facts.local_rank, 1);
  EXPECT_EQ(facts.local_world, 2);
  EXPECT_EQ(facts.node, 1);
  EXPECT_EQ(facts.master_address, "node0");
  EXPECT_EQ(facts.store_port, 29501);
  EXPECT_EQ(facts.run_id, "torchrun-x7-2");
  EXPECT_EQ(Describe(facts),
            "rank 3 of 4 (local rank 1 of 2 on node 1), started by torchrun, run 'torchrun-x7-2', "
            "store at node0 port 29501");
}

TEST(DetectLaunch, OpenMpi) {
  const LaunchFacts facts = Detect(kOpenMpi).value();
  EXPECT_EQ(facts.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(facts.rank, 1);
  EXPECT_EQ(facts.world, 2);
  EXPECT_EQ(facts.node, -1);  // OMPI_COMM_WORLD_NODE_RANK is a rank on the node
  EXPECT_EQ(facts.master_address, "127.0.0.1");
  EXPECT_EQ(facts.run_id, "Open MPI-1116602369");
  EXPECT_GE(facts.store_port, 20000);
  EXPECT_LT(facts.store_port, 32000);
  EXPECT_THAT(facts.notes, IsEmpty());
  // The same on every rank, another one for another job.
  EXPECT_EQ(Detect(With(kOpenMpi, "OMPI_COMM_WORLD_RANK", "0")).value().store_port,
            facts.store_port);
  EXPECT_NE(Detect(With(kOpenMpi, "PMIX_NAMESPACE", "1116602370")).value().store_port,
            facts.store_port);
}

TEST(DetectLaunch, PmiWithItsOwnOrWithSlurmsLocalRanks) {
  const LaunchFacts hydra = Detect(kPmi).value();
  EXPECT_EQ(hydra.launcher, Launcher::kPmi);
  EXPECT_EQ(hydra.world, 8);
  const Variables step = With(kSlurmStep, "SLURM_PROCID", std::nullopt);
  const LaunchFacts pmi2 =
      Detect(step + Variables{{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}, {"MASTER_ADDR", "h"}}).value();
  EXPECT_EQ(pmi2.launcher, Launcher::kPmi);
  EXPECT_EQ(pmi2.local_rank, 1);
  EXPECT_EQ(pmi2.local_world, 2);
  const LaunchFacts pmix =
      Detect(step + Variables{{"PMIX_RANK", "4"}, {"MASTER_ADDR", "h"}}).value();
  EXPECT_EQ(pmix.launcher, Launcher::kPmi);
  EXPECT_EQ(pmix.rank, 4);
  EXPECT_EQ(pmix.world, 7);
}

TEST(DetectLaunch, SlurmStep) {
  const LaunchFacts facts = Detect(kSlurmStep).value();
  EXPECT_EQ(facts.launcher, Launcher::kSlurm);
  EXPECT_EQ(facts.rank, 5);
  EXPECT_EQ(facts.world, 7);
  EXPECT_EQ(facts.local_rank, 1);
  EXPECT_EQ(facts.local_world, 2);
  EXPECT_EQ(facts.node, 2);
  EXPECT_EQ(facts.master_address, "gpu003");
  EXPECT_EQ(facts.run_id, "Slurm-77.3");
}

TEST(DetectLaunch, ABatchScriptIsNoRank) {
  const LaunchFacts facts =
      Detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "0"}}).value();
  EXPECT_EQ(facts.launcher, Launcher::kNone);
  EXPECT_EQ(facts.world, 1);
  EXPECT_THAT(facts.notes, ElementsAre(HasSubstr("SLURM_PROCID is set, but this is no step")));
}

TEST(DetectLaunch, TheFirstLauncherWinsAndTheOthersAreNamed) {
  const LaunchFacts all = Detect(kTorchrun + kOpenMpi + kPmi + kSlurmStep).value();
  EXPECT_EQ(all.launcher, Launcher::kTorchrun);
  EXPECT_THAT(all.notes,
              ElementsAre(HasSubstr("OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2: not used"),
                          HasSubstr("PMI_RANK=0"), HasSubstr("PMIX_RANK=1"),
                          HasSubstr("SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=7")));
  EXPECT_EQ(Detect(kOpenMpi + kSlurmStep).value().launcher, Launcher::kOpenMpi);
  EXPECT_EQ(Detect(kPmi + kSlurmStep).value().launcher, Launcher::kPmi);
  // Partly set and beaten by a complete one.
  const LaunchFacts mpi = Detect(kOpenMpi + Variables{{"RANK", "9"}}).value();
  EXPECT_EQ(mpi.launcher, Launcher::kOpenMpi);
  EXPECT_THAT(mpi.notes, ElementsAre("RANK is set, but WORLD_SIZE is not: not used"));
}

TEST(DetectLaunch, PartlySetVariablesAreNamed) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    const std::string error = ErrorOf(With(kTorchrun, name, std::nullopt));
    EXPECT_THAT(error, HasSubstr(std::string("but ") + name + " is not")) << error;
    EXPECT_THAT(error, HasSubstr("torchrun"));
  }
  EXPECT_THAT(ErrorOf({{"OMPI_COMM_WORLD_SIZE", "2"}}),
              HasSubstr("OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK is not"));
  EXPECT_THAT(ErrorOf({{"PMI_RANK", "2"}}), HasSubstr("PMI_SIZE is not"));
  EXPECT_THAT(ErrorOf({{"PMIX_RANK", "2"}}), HasSubstr("SLURM_STEP_NUM_TASKS is not"));
  EXPECT_THAT(ErrorOf(With(kSlurmStep, "SLURM_LOCALID", std::nullopt)),
              HasSubstr("SLURM_LOCALID is not"));
  EXPECT_THAT(ErrorOf(With(kSlurmStep, "SLURM_PROCID", std::nullopt)),
              HasSubstr("SLURM_PROCID is not"));
}

TEST(DetectLaunch, ValuesAreChecked) {
  for (const char* bad : {"", "-1", "1.5", "two", "1 ", "99999999999999999999", "4294967296"}) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT"}) {
      EXPECT_THAT(ErrorOf(With(kTorchrun, name, bad)), HasSubstr(std::string(name) + "='" + bad));
    }
  }
  EXPECT_THAT(ErrorOf(With(kTorchrun, "RANK", "4")), HasSubstr("RANK=4 and WORLD_SIZE=4"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, "LOCAL_RANK", "2")),
              HasSubstr("LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, "LOCAL_WORLD_SIZE", "5")),
              HasSubstr("LOCAL_WORLD_SIZE=5 and WORLD_SIZE=4"));
  EXPECT_THAT(ErrorOf(With(kTorchrun, "MASTER_PORT", "65535")), HasSubstr("MASTER_PORT='65535'"));
  EXPECT_THAT(ErrorOf(With(kSlurmStep, "SLURM_STEP_TASKS_PER_NODE", "2(x")),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE"));
  EXPECT_THAT(ErrorOf(kTorchrun + Variables{{"MESHWRIGHT_RUN_ID", ""}}),
              HasSubstr("MESHWRIGHT_RUN_ID"));
}

TEST(DetectLaunch, OfSeveralHostsSomebodyMustSayWhereRankZeroIs) {
  const Variables two_hosts = With(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "4");
  EXPECT_THAT(ErrorOf(two_hosts), HasSubstr("MASTER_ADDR"));
  EXPECT_EQ(Detect(two_hosts + Variables{{"MASTER_ADDR", "h7"}}).value().master_address, "h7");
  const LaunchFacts files =
      Detect(two_hosts + Variables{{"MESHWRIGHT_STORE_DIR", "/shared"}}).value();
  EXPECT_EQ(files.store_directory, "/shared");
  EXPECT_THAT(Describe(files), HasSubstr("store in /shared"));
}

TEST(DetectLaunch, MeetingPlaceAndRunIdCanBeGiven) {
  const LaunchFacts facts = Detect(kOpenMpi + Variables{{"MASTER_ADDR", "::1"},
                                                        {"MASTER_PORT", "4000"},
                                                        {"MESHWRIGHT_RUN_ID", "mine"}})
                                .value();
  EXPECT_EQ(facts.master_address, "::1");
  EXPECT_EQ(facts.store_port, 4001);
  EXPECT_EQ(facts.run_id, "mine");
}

TEST(SlurmLists, FirstHost) {
  EXPECT_EQ(FirstSlurmHost("login1").value(), "login1");
  EXPECT_EQ(FirstSlurmHost("a,b").value(), "a");
  EXPECT_EQ(FirstSlurmHost("gpu[003-006,9]-x,login1").value(), "gpu003-x");
  EXPECT_EQ(FirstSlurmHost("r[1,2]n[07]").value(), "r1n07");
  for (const char* bad : {"", ",a", "gpu[003", "["}) EXPECT_FALSE(FirstSlurmHost(bad).ok()) << bad;
}

TEST(SlurmLists, TasksOfANode) {
  EXPECT_EQ(SlurmTasksOfNode("4", 0).value(), 4);
  EXPECT_EQ(SlurmTasksOfNode("4(x2),3", 1).value(), 4);
  EXPECT_EQ(SlurmTasksOfNode("4(x2),3", 2).value(), 3);
  EXPECT_EQ(SlurmTasksOfNode("4(x2)", -1).value(), 4);
  EXPECT_FALSE(SlurmTasksOfNode("4(x2),3", -1).ok());
  EXPECT_FALSE(SlurmTasksOfNode("4(x2),3", 3).ok());
  for (const char* bad :
       {"", ",", "4,", "x", "4(x", "4(x2", "4(2)", "-4", "0", "4 ", "9999999999"}) {
    EXPECT_FALSE(SlurmTasksOfNode(bad, 0).ok()) << bad;
  }
}

TEST(DeviceOrdinal, IsTheLocalRankModuloWhatIsVisible) {
  LaunchFacts facts;
  facts.local_rank = 5;
  EXPECT_EQ(DeviceOrdinal(facts, 8).value(), 5);
  EXPECT_EQ(DeviceOrdinal(facts, 1).value(), 0);
  EXPECT_THAT(DeviceOrdinal(facts, 0).status().message(), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(OpenStore, AProcessAloneHasOne) {
  LaunchFacts facts = Detect({}).value();
  auto store = OpenStore(facts);
  ASSERT_TRUE(store.ok()) << store.status().message();
  EXPECT_TRUE((*store)->Barrier("alone", 10).ok());
}

}  // namespace
}  // namespace meshwright::runtime

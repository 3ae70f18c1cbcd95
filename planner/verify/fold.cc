#include "planner/verify/fold.h"

#include <algorithm>
#include <map>

namespace meshwright::planner {
namespace {

bool Alike(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.region == b.region && a.shape == b.shape && a.name == b.name;
}

bool Alike(const Block& a, const Block& b) {
  return a.name == b.name && a.phase == b.phase && a.saved_bytes == b.saved_bytes &&
         a.scratch_bytes == b.scratch_bytes && a.ops == b.ops &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const TensorView& x, const TensorView& y) { return Alike(x, y); });
}

/// Equal but for the offsets of views.
bool Alike(const RankProgram& a, const RankProgram& b) {
  return a.module == b.module && a.stage == b.stage && a.events == b.events &&
         a.streams == b.streams && a.communicators == b.communicators &&
         a.parameters == b.parameters && a.buckets == b.buckets && a.arena == b.arena &&
         a.tasks == b.tasks &&
         std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin(), b.blocks.end(),
                    [](const Block& x, const Block& y) { return Alike(x, y); });
}

/// group -> for each position: the class-local communicator under which that member lists the
/// group.
using ListedAs = std::vector<std::vector<int32_t>>;

ListedAs ListGroups(const Programs& programs) {
  ListedAs listed(programs.groups.size());
  std::vector<std::map<int32_t, int32_t>> names(programs.ranks.size());
  for (size_t r = 0; r < programs.ranks.size(); ++r) {
    const auto& groups = programs.ranks[r].groups;
    for (size_t c = 0; c < groups.size(); ++c) {
      names[r].emplace(groups[c], static_cast<int32_t>(c));
    }
  }
  for (size_t g = 0; g < programs.groups.size(); ++g) {
    for (int32_t rank : programs.groups[g].ranks) {
      const auto& own = names[static_cast<size_t>(rank)];
      const auto it = own.find(static_cast<int32_t>(g));
      listed[g].push_back(it == own.end() ? -1 : it->second);
    }
  }
  return listed;
}

/// Numbers distinct keys in the order in which they first appear.
class Numbering {
 public:
  int32_t Of(const std::vector<int32_t>& key) {
    return numbers_.emplace(key, static_cast<int32_t>(numbers_.size())).first->second;
  }
  int32_t size() const { return static_cast<int32_t>(numbers_.size()); }

 private:
  std::map<std::vector<int32_t>, int32_t> numbers_;
};

/// Position of the rank in an edge group: which end it is. Other kinds treat members alike.
int32_t EndOf(const Group& group, int32_t rank) {
  if (group.kind != CommunicatorKind::kEdge) return 0;
  const auto it = std::find(group.ranks.begin(), group.ranks.end(), rank);
  return static_cast<int32_t>(it - group.ranks.begin());
}

std::vector<int32_t> Refine(const Programs& programs, const ListedAs& listed,
                            const std::vector<int32_t>& color, int32_t* count) {
  Numbering group_colors;
  std::vector<int32_t> group_color(programs.groups.size());
  std::vector<int32_t> key;
  for (size_t g = 0; g < programs.groups.size(); ++g) {
    const std::vector<int32_t>& ranks = programs.groups[g].ranks;
    key.clear();
    for (size_t i = 0; i < ranks.size(); ++i) {
      key.push_back(color[static_cast<size_t>(ranks[i])]);
      key.push_back(listed[g][i]);
    }
    group_color[g] = group_colors.Of(key);
  }
  Numbering rank_colors;
  std::vector<int32_t> next(color.size());
  for (size_t r = 0; r < color.size(); ++r) {
    key = {color[r]};
    for (int32_t g : programs.ranks[r].groups) {
      key.push_back(group_color[static_cast<size_t>(g)]);
      key.push_back(EndOf(programs.groups[static_cast<size_t>(g)], static_cast<int32_t>(r)));
    }
    next[r] = rank_colors.Of(key);
  }
  *count = rank_colors.size();
  return next;
}

RankClasses ClassesOf(std::vector<int32_t> color, int32_t count) {
  RankClasses classes;
  classes.members.resize(static_cast<size_t>(count));
  for (size_t r = 0; r < color.size(); ++r) {
    classes.members[static_cast<size_t>(color[r])].push_back(static_cast<int32_t>(r));
  }
  classes.class_of = std::move(color);
  return classes;
}

}  // namespace

std::vector<int32_t> AlikePrograms(const Programs& programs) {
  std::vector<int32_t> first;
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    size_t like = 0;
    while (like < p && !(first[like] == static_cast<int32_t>(like) &&
                         Alike(programs.programs[like], programs.programs[p]))) {
      ++like;
    }
    first.push_back(static_cast<int32_t>(like));
  }
  return first;
}

RankClasses FoldRanks(const Programs& programs) {
  const std::vector<int32_t> alike = AlikePrograms(programs);
  std::vector<int32_t> color;
  for (const RankBinding& r : programs.ranks) {
    color.push_back(alike[static_cast<size_t>(r.program)]);
  }
  return FoldColors(programs, std::move(color));
}

RankClasses FoldColors(const Programs& programs, std::vector<int32_t> color) {
  const ListedAs listed = ListGroups(programs);
  Numbering colors;
  for (int32_t& c : color) c = colors.Of({c});
  int32_t count = colors.size();
  while (true) {
    int32_t next_count = 0;
    std::vector<int32_t> next = Refine(programs, listed, color, &next_count);
    color = std::move(next);
    if (next_count == count) break;
    count = next_count;
  }
  return ClassesOf(std::move(color), count);
}

RankClasses SeparateRanks(const Programs& programs) {
  std::vector<int32_t> color(programs.ranks.size());
  for (size_t r = 0; r < color.size(); ++r) color[r] = static_cast<int32_t>(r);
  const auto count = static_cast<int32_t>(color.size());
  return ClassesOf(std::move(color), count);
}

Channels ChannelsOf(const Programs& programs, const RankClasses& classes) {
  const ListedAs listed = ListGroups(programs);
  Channels result;
  result.of.resize(classes.members.size());
  for (int32_t c = 0; c < classes.size(); ++c) {
    const RankBinding& binding = programs.ranks[static_cast<size_t>(classes.representative(c))];
    result.of[static_cast<size_t>(c)].assign(binding.groups.size(), -1);
  }
  for (int32_t c = 0; c < classes.size(); ++c) {
    const RankBinding& binding = programs.ranks[static_cast<size_t>(classes.representative(c))];
    for (size_t local = 0; local < binding.groups.size(); ++local) {
      if (result.of[static_cast<size_t>(c)][local] >= 0) continue;
      const auto g = static_cast<size_t>(binding.groups[local]);
      std::vector<std::pair<int32_t, int32_t>> members = {{c, static_cast<int32_t>(local)}};
      for (size_t i = 0; i < programs.groups[g].ranks.size(); ++i) {
        if (listed[g][i] < 0) continue;
        const auto rank = static_cast<size_t>(programs.groups[g].ranks[i]);
        members.emplace_back(classes.class_of[rank], listed[g][i]);
      }
      std::sort(members.begin(), members.end());
      members.erase(std::unique(members.begin(), members.end()), members.end());
      Channel channel;
      for (const auto& [cls, communicator] : members) {
        channel.participants.push_back({cls, communicator});
        result.of[static_cast<size_t>(cls)][static_cast<size_t>(communicator)] =
            static_cast<int32_t>(result.channels.size());
      }
      result.channels.push_back(std::move(channel));
    }
  }
  return result;
}

}  // namespace meshwright::planner

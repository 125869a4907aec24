#include "engine/plan/rehearsal.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/train/rank_state.h"

namespace trivet {
namespace {

// What of a rank decides what it queues: its stage, and the shards that its optimizer owns.
using Class = std::vector<int64_t>;

Class class_of(const Config& config, const Layout& layout, const MeshPosition& at) {
  const std::unique_ptr<Device> device = create_planning_device();
  const RankState state(config, layout, at, *device);
  Class mine{at[Axis::pp]};
  for (const OwnedShard& shard : state.flat.owned) {
    const Param& param = *shard.param;
    mine.insert(mine.end(), {shard.weight.numel(), param.first_copy, param.spec.weight_decay, param.spec.decoupled_lr,
                             param.summed_over.has(Axis::tp), param.summed_over.has(Axis::pp)});
  }
  return mine;
}

// The groups of ranks that share a tape. A member's position has the coordinates of the rank on the axes on which all
// members of the recorded group agree.
class GroupsOfOthers {
 public:
  GroupsOfOthers(const Tape& tape, const Layout& layout, TapeGroups& groups) : mesh_(layout.mesh), groups_(groups) {
    const MeshPosition recorder = position_of(tape.rank, mesh_);
    for (const int number : tape.groups) {
      Group group{.of = groups[number]};
      for (const AxisInfo& row : kAxes) {
        bool agree = true;
        for (const int rank : group.of.world_ranks)
          agree = agree && position_of(rank, mesh_)[row.axis] == recorder[row.axis];
        if (agree) group.fixed.push_back(row.axis);
      }
      recorded_.push_back(std::move(group));
    }
  }

  std::vector<int> of(int rank) {
    const MeshPosition at = position_of(rank, mesh_);
    std::vector<int> numbers;
    for (Group& group : recorded_) {
      std::vector<int> key;
      for (const Axis axis : group.fixed) key.push_back(at[axis]);
      const auto [known, is_new] = group.known.try_emplace(std::move(key), -1);
      if (is_new) {
        TapeGroups::Group moved = group.of;
        for (int& member : moved.world_ranks) {
          MeshPosition position = position_of(member, mesh_);
          for (const Axis axis : group.fixed) position[axis] = at[axis];
          member = rank_of(position, mesh_);
        }
        known->second = groups_.add(moved);
      }
      numbers.push_back(known->second);
    }
    return numbers;
  }

 private:
  struct Group {
    TapeGroups::Group of;
    std::vector<Axis> fixed = {};
    std::map<std::vector<int>, int> known = {};  // by the coordinates on these axes
  };
  const MeshShape& mesh_;
  TapeGroups& groups_;
  std::vector<Group> recorded_;
};

// Colours of things, from 0 on, refined by what each of them is.
class Numbers {
 public:
  explicit Numbers(size_t count) : colours_(count, 0) {}
  int operator[](size_t i) const { return colours_[i]; }
  // Things keep one colour if they had one and of(i) is the same. Whether there are more colours now.
  template <class F>
  bool refine(F&& of) {
    std::map<std::pair<int, std::vector<int>>, int> next;
    for (size_t i = 0; i < colours_.size(); ++i)
      colours_[i] = next.try_emplace({colours_[i], of(i)}, static_cast<int>(next.size())).first->second;
    return std::exchange(count_, next.size()) != next.size();
  }

 private:
  std::vector<int> colours_;
  size_t count_ = 0;
};

size_t number_of(const std::deque<Tape>& tapes, const Tape* tape) {
  return static_cast<size_t>(std::ranges::find(tapes, tape, [](const Tape& one) { return &one; }) - tapes.begin());
}

// What the cost of a group's calls can depend on: its size, and its members of each node. And what it is for.
std::vector<int> form_of(const TapeGroups::Group& group, int ranks_per_node) {
  std::map<int, int> by_node;
  for (const int rank : group.world_ranks) ++by_node[rank / ranks_per_node];
  std::vector<int> form{static_cast<int>(group.category), group.occurrence};
  for (const auto& [node, ranks] : by_node) form.push_back(ranks);
  std::sort(form.begin() + 2, form.end());
  for (const char c : group.name) form.push_back(-c);
  return form;
}

// Whether members of a larger group send to each other, so that their places matter.
bool has_ring(const Tape& tape, int group) {
  return std::ranges::any_of(tape.calls, [&](const TapeCall& call) {
    return call.group == group && call.kind == CommCall::transfer && call.ahead != 0;
  });
}

}  // namespace

Rehearsal rehearse(const Config& config, const Layout& layout, const TapeOptions& options, bool each_rank) {
  Rehearsal rehearsal;
  std::map<Class, std::pair<const Tape*, std::unique_ptr<GroupsOfOthers>>> classes;
  for (int rank = 0; rank < layout.mesh.world(); ++rank) {
    const Class own = each_rank ? Class{rank} : class_of(config, layout, position_of(rank, layout.mesh));
    auto& [tape, groups] = classes[own];
    if (!tape) {
      tape = &rehearsal.tapes.emplace_back(record_tape(config, layout, rank, rehearsal.groups, options));
      groups = std::make_unique<GroupsOfOthers>(*tape, layout, rehearsal.groups);
      rehearsal.players.push_back({.tape = tape, .rank = rank, .groups = tape->groups});
    } else {
      rehearsal.players.push_back({.tape = tape, .rank = rank, .groups = groups->of(rank)});
    }
    rehearsal.player_of.push_back(rank);
    Player& player = rehearsal.players.back();
    for (const int group : player.groups) {
      const std::vector<int>& members = rehearsal.groups[group].world_ranks;
      player.places.push_back(static_cast<int>(std::ranges::find(members, rank) - members.begin()));
    }
  }
  return rehearsal;
}

void merge_ranks(Rehearsal& rehearsal, int ranks_per_node) {
  const std::vector<Player>& players = rehearsal.players;
  const TapeGroups& groups = rehearsal.groups;
  Numbers ranks(players.size()), of_groups(static_cast<size_t>(groups.size()));
  ranks.refine(
      [&](size_t i) { return std::vector<int>{static_cast<int>(number_of(rehearsal.tapes, players[i].tape))}; });
  of_groups.refine([&](size_t g) { return form_of(groups[static_cast<int>(g)], ranks_per_node); });
  for (bool finer = true; finer;) {
    of_groups.refine([&](size_t g) {
      std::vector<int> colours;
      for (const int member : groups[static_cast<int>(g)].world_ranks)
        colours.push_back(ranks[static_cast<size_t>(member)]);
      std::ranges::sort(colours);
      return colours;
    });
    finer = ranks.refine([&](size_t i) {
      std::vector<int> colours;
      for (size_t g = 0; g < players[i].groups.size(); ++g) {
        colours.push_back(of_groups[static_cast<size_t>(players[i].groups[g])]);
        if (has_ring(*players[i].tape, static_cast<int>(g))) colours.push_back(players[i].places[g]);
      }
      return colours;
    });
  }
  TapeGroups merged_groups;
  std::map<int, int> number;  // by colour
  const auto merged_group = [&](int group) {
    const auto [at, is_new] = number.try_emplace(of_groups[static_cast<size_t>(group)], 0);
    if (is_new) {
      TapeGroups::Group one = groups[group];
      std::set<int> colours;
      for (const int member : one.world_ranks) colours.insert(ranks[static_cast<size_t>(member)]);
      one.arrivals = static_cast<int>(colours.size());
      at->second = merged_groups.add(one);
    }
    return at->second;
  };
  std::vector<Player> merged;
  std::map<int, size_t> player_of;  // by colour
  for (const Player& player : players) {
    const auto [at, is_new] = player_of.try_emplace(ranks[static_cast<size_t>(player.rank)], merged.size());
    rehearsal.player_of[static_cast<size_t>(player.rank)] = static_cast<int>(at->second);
    if (!is_new) {
      ++merged[at->second].ranks;
      continue;
    }
    merged.push_back(player);
    for (int& group : merged.back().groups) group = merged_group(group);
  }
  rehearsal.players = std::move(merged);
  rehearsal.groups = std::move(merged_groups);
}

}  // namespace trivet

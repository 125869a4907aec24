#include "tools/plan/rehearsal.h"

#include <algorithm>
#include <boost/functional/hash.hpp>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/host.h"
#include "base/parallel_for.h"
#include "engine/train/rank_state.h"

namespace trivet {
namespace {

// The values that determine which operations a rank queues: its stage, and the shards that its optimizer owns.
using Class = std::vector<int64_t>;

// [rank]: the number of its class.
std::vector<int> classes_of(const Config& config, const Layout& layout) {
  const bool replicas_are_alike = config.parallel.data_parallel_sharding_strategy == Sharding::no_shard;
  std::map<int, std::vector<int>> replicas;  // ranks with the same part of the model, keyed by the first
  for (int rank = 0; rank < layout.mesh.world(); ++rank) {
    MeshPosition first = position_of(rank, layout.mesh);
    for (const AxisInfo& row : kAxes)
      if (kGradientAxes.has(row.axis)) first[row.axis] = 0;
    replicas[rank_of(first, layout.mesh)].push_back(rank);
  }
  std::vector<int> classes(static_cast<size_t>(layout.mesh.world()));
  std::map<Class, int> numbers;
  const std::unique_ptr<Device> device = create_planning_device();
  for (const auto& [first, ranks] : replicas) {
    const MeshPosition of_first = position_of(first, layout.mesh);
    const GptShape shape = gpt_shape_of(config, layout, of_first);
    ParamList params(layout.mesh, of_first, shape.sequence_parallel);
    const std::deque<GptStage> stages = make_stages(params, shape, config, layout, of_first);
    for (const int rank : ranks) {
      int& number = classes[static_cast<size_t>(rank)];
      if (replicas_are_alike && rank != ranks.front()) {
        number = classes[static_cast<size_t>(ranks.front())];
        continue;
      }
      const MeshPosition at = position_of(rank, layout.mesh);
      Arena weights(*device, "weights"), gradients(*device, "gradients");
      const FlatBuffer flat(params, flat_options_of(config, layout, shape, at, true), weights, gradients);
      Class mine{at[Axis::pp]};
      for (const OwnedShard& shard : flat.owned) {
        const Param& param = *shard.param;
        mine.insert(mine.end(), {shard.weight.numel(), param.first_copy, param.spec.weight_decay,
                                 param.spec.decoupled_lr, param.summed_over.has(Axis::tp),
                                 param.summed_over.has(Axis::pp), flat.options.gathers_fp8 && param.spec.quantised});
      }
      number = numbers.try_emplace(std::move(mine), static_cast<int>(numbers.size())).first->second;
    }
  }
  return classes;
}

// Translates a tape's groups to those of another rank that shares the tape: on the axes on which all members of a
// recorded group agree, each member takes the other rank's coordinates.
class GroupsOfOthers {
 public:
  GroupsOfOthers(const Tape& tape, const Layout& layout, TapeGroups& groups) : mesh_(layout.mesh), groups_(groups) {
    const MeshPosition recorder = position_of(tape.rank, mesh_);
    for (const int number : tape.groups) {
      Group group{.of = groups[number], .free = {}};
      for (const int rank : group.of.world_ranks) {
        const MeshPosition at = position_of(rank, mesh_);
        for (const AxisInfo& row : kAxes)
          if (at[row.axis] != recorder[row.axis]) group.free.add(row.axis);
      }
      recorded_.push_back(std::move(group));
    }
  }

  std::vector<int> of(int rank) {
    const MeshPosition at = position_of(rank, mesh_);
    std::vector<int> numbers;
    for (Group& group : recorded_) {
      const auto [known, is_new] = group.known.try_emplace(rank_of(moved(group, {}, at), mesh_), -1);
      if (is_new) {
        TapeGroups::Group there = group.of;
        for (int& member : there.world_ranks) member = rank_of(moved(group, position_of(member, mesh_), at), mesh_);
        known->second = groups_.add(there);
      }
      numbers.push_back(known->second);
    }
    return numbers;
  }

 private:
  struct Group {
    TapeGroups::Group of;
    AxisSet free;                             // the axes on which its members differ
    std::unordered_map<int, int> known = {};  // by the rank whose coordinates on the free axes are 0
  };
  static MeshPosition moved(const Group& group, MeshPosition member, const MeshPosition& to) {
    for (const AxisInfo& row : kAxes)
      if (!group.free.has(row.axis)) member[row.axis] = to[row.axis];
    return member;
  }

  const MeshShape& mesh_;
  TapeGroups& groups_;
  std::vector<Group> recorded_;
};

// Colours of items, numbered from 0, for colour refinement.
class Colours {
 public:
  explicit Colours(size_t count) : colours_(count, 0) {}
  int operator[](int i) const { return colours_[static_cast<size_t>(i)]; }
  // Two items then share a colour if they did before and write(i, what) appends the same values to `what` for both.
  // Returns true if the number of colours has changed.
  template <class F>
  bool refine(F&& write) {
    std::unordered_map<std::vector<int>, int, boost::hash<std::vector<int>>> next;
    std::vector<int> what;
    for (size_t i = 0; i < colours_.size(); ++i) {
      what.assign(1, colours_[i]);
      write(static_cast<int>(i), what);
      colours_[i] = next.try_emplace(what, static_cast<int>(next.size())).first->second;
    }
    return std::exchange(count_, next.size()) != next.size();
  }

 private:
  std::vector<int> colours_;
  size_t count_ = 0;
};

// Appends everything that can affect the cost of a group's calls: its size, its members per node, and its purpose.
void write_form(const TapeGroups::Group& group, int ranks_per_node, std::vector<int>& what) {
  what.insert(what.end(), {static_cast<int>(group.category), group.occurrence});
  for (const char c : group.name) what.push_back(-c);
  std::map<int, int> by_node;
  for (const int rank : group.world_ranks) ++by_node[rank / ranks_per_node];
  const auto first = static_cast<std::ptrdiff_t>(what.size());
  for (const auto& [node, ranks] : by_node) what.push_back(ranks);
  std::sort(what.begin() + first, what.end());
}

// [group of the tape]: true if the rank sends or receives in the group, so that its index in the group matters.
std::vector<bool> with_transfers(const Tape& tape) {
  std::vector<bool> has(tape.groups.size());
  for (const TapeCall& call : tape.calls)
    if (call.kind == CommCall::transfer) has[static_cast<size_t>(call.group)] = true;
  return has;
}

// A rank's tape, with its groups numbered in its own TapeGroups.
struct Recorded {
  Tape tape;
  TapeGroups groups;
};
std::vector<Recorded> record_tapes(const Config& config, const Layout& layout, const std::vector<int>& ranks,
                                   const TapeOptions& options) {
  std::vector<Recorded> recorded(ranks.size());
  parallel_for(ranks.size(), static_cast<size_t>(usable_cores()), [&](size_t i) {
    recorded[i].tape = record_tape(config, layout, ranks[i], recorded[i].groups, options);
  });
  return recorded;
}

}  // namespace

Rehearsal rehearse(const Config& config, const Layout& layout, const TapeOptions& options, bool each_rank) {
  const int world = layout.mesh.world();
  std::vector<int> first_ranks;  // [class]
  std::vector<size_t> class_of_rank;
  const std::vector<int> classes = classes_of(config, layout);
  std::map<int, size_t> numbers;
  for (int rank = 0; rank < world; ++rank) {
    const auto [at, is_new] =
        numbers.try_emplace(each_rank ? rank : classes[static_cast<size_t>(rank)], first_ranks.size());
    if (is_new) first_ranks.push_back(rank);
    class_of_rank.push_back(at->second);
  }

  Rehearsal rehearsal;
  for (Recorded& recorded : record_tapes(config, layout, first_ranks, options)) {
    for (int& group : recorded.tape.groups) group = rehearsal.groups.add(recorded.groups[group]);
    rehearsal.tapes.push_back(std::move(recorded.tape));
  }
  struct Shared {
    GroupsOfOthers groups;
    std::vector<bool> has_places;
  };
  std::vector<Shared> shared;
  for (const Tape& tape : rehearsal.tapes)
    shared.push_back({GroupsOfOthers(tape, layout, rehearsal.groups), with_transfers(tape)});
  for (int rank = 0; rank < world; ++rank) {
    const size_t number = class_of_rank[static_cast<size_t>(rank)];
    rehearsal.player_of.push_back(rank);
    Player& player = rehearsal.players.emplace_back(Player{.tape = &rehearsal.tapes[number], .rank = rank});
    player.groups = shared[number].groups.of(rank);
    for (size_t g = 0; g < player.groups.size(); ++g) {
      const std::vector<int>& members = rehearsal.groups[player.groups[g]].world_ranks;
      const auto end = shared[number].has_places[g] ? members.end() : members.begin();
      player.places.push_back(static_cast<int>(std::find(members.begin(), end, rank) - members.begin()));
    }
  }
  return rehearsal;
}

void merge_ranks(Rehearsal& rehearsal, int ranks_per_node) {
  const std::vector<Player>& players = rehearsal.players;
  const TapeGroups& groups = rehearsal.groups;
  std::map<const Tape*, std::pair<int, std::vector<bool>>> tapes;  // number, with_transfers()
  for (const Tape& tape : rehearsal.tapes)
    tapes.try_emplace(&tape, static_cast<int>(tapes.size()), with_transfers(tape));
  Colours ranks(players.size()), of_groups(static_cast<size_t>(groups.size()));
  ranks.refine(
      [&](int i, std::vector<int>& what) { what.push_back(tapes.at(players[static_cast<size_t>(i)].tape).first); });
  of_groups.refine([&](int g, std::vector<int>& what) { write_form(groups[g], ranks_per_node, what); });
  for (bool finer = true; finer;) {
    of_groups.refine([&](int g, std::vector<int>& what) {
      for (const int member : groups[g].world_ranks) what.push_back(ranks[member]);
      std::sort(what.begin() + 1, what.end());
    });
    finer = ranks.refine([&](int i, std::vector<int>& what) {
      const Player& player = players[static_cast<size_t>(i)];
      const auto& [number, places_matter] = tapes.at(player.tape);
      for (size_t g = 0; g < player.groups.size(); ++g) {
        what.push_back(of_groups[player.groups[g]]);
        if (places_matter[g]) what.push_back(player.places[g]);
      }
    });
  }
  TapeGroups merged_groups;
  std::map<int, int> number;  // by colour
  const auto merged_group = [&](int group) {
    const auto [at, is_new] = number.try_emplace(of_groups[group], 0);
    if (is_new) {
      TapeGroups::Group one = groups[group];
      std::set<int> colours;
      for (const int member : one.world_ranks) colours.insert(ranks[member]);
      one.arrivals = static_cast<int>(colours.size());
      at->second = merged_groups.add(one);
    }
    return at->second;
  };
  std::vector<Player> merged;
  std::map<int, size_t> player_of;  // by colour
  for (const Player& player : players) {
    const auto [at, is_new] = player_of.try_emplace(ranks[player.rank], merged.size());
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

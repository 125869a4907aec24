// Transfers, calls on several streams, groups split from groups, and the mesh.
#include <algorithm>
#include <string>

#include "parallel/mesh.h"
#include "tests/support/comm_cases.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

// ---- transfers

float transfer_value(int from, int to, int number, int64_t i) {
  return random_value<float>(from * 16 + to, i + 10000019LL * number);
}
// Sizes change from one transfer to the next, so that a swapped pair is detected.
int64_t transfer_length(int number) {
  constexpr int64_t kLengths[] = {3, 20000, 0, 1, 200000, 990, 991, 992, 5000};
  return kLengths[number % 9];
}

std::vector<float> outgoing(int from, int to, int number) {
  std::vector<float> x(static_cast<size_t>(transfer_length(number)));
  for (size_t i = 0; i < x.size(); ++i) x[i] = transfer_value(from, to, number, static_cast<int64_t>(i));
  return x;
}

void expect_transfer(Communicator& group, int from, int number, Stream& stream) {
  std::vector<float> x(static_cast<size_t>(transfer_length(number)));
  group.recv(tensor_of(x), from, stream);
  expect_elements(
      x, [&](int64_t i) { return transfer_value(from, group.rank(), number, i); },
      "transfer " + std::to_string(number) + " from rank " + std::to_string(from));
}

// Every rank sends everything to all ranks before it receives anything: sends do not block, and messages between two
// ranks keep their order.
void transfers_arrive_in_order(Communicator& world) {
  RankStreams rank;
  constexpr int kTransfers = 9;
  for (int number = 0; number < kTransfers; ++number)
    for (int to = 0; to < world.size(); ++to)
      if (to != world.rank()) {
        std::vector<float> x = outgoing(world.rank(), to, number);
        world.send(tensor_of(x), to, *rank.stream);
        std::fill(x.begin(), x.end(), -1.0f);  // the data may be reused immediately
      }
  for (int from = 0; from < world.size(); ++from)
    for (int number = 0; number < kTransfers; ++number)
      if (from != world.rank()) expect_transfer(world, from, number, *rank.stream);
}

void neighbours_exchange(Communicator& world) {
  if (world.size() == 1) return;
  RankStreams rank;
  const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
  for (int number = 0; number < 18; ++number) {
    std::vector<float> forward = outgoing(world.rank(), next, number);
    world.send(tensor_of(forward), next, *rank.stream);
    if (world.size() > 2) {
      std::vector<float> back = outgoing(world.rank(), previous, number);
      world.send(tensor_of(back), previous, *rank.stream);
    }
    expect_transfer(world, previous, number, *rank.stream);
    if (world.size() > 2) expect_transfer(world, next, number, *rank.stream);
  }
}

// A pipeline's channel: the receive is posted on a worker stream before the rank sends from its compute stream.
void receive_on_a_worker_stream(Communicator& world) {
  if (world.size() == 1) return;
  RankStreams rank;
  const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
  const auto incoming = world.twin("incoming", comm_of("pipeline"));
  const auto worker = rank.device->create_side_stream(StreamPriority::normal);
  const auto received = rank.device->create_event();
  // Even ranks receive over one group and send over the other; odd ranks do the opposite.
  Communicator& to_even = *incoming;
  Communicator& to_odd = world;
  const bool even_ring = world.size() % 2 == 0;
  if (!even_ring) return;
  Communicator& mine = world.rank() % 2 == 0 ? to_even : to_odd;
  Communicator& theirs = world.rank() % 2 == 0 ? to_odd : to_even;
  for (int number = 0; number < 18; ++number) {
    std::vector<float> x(static_cast<size_t>(transfer_length(number)));
    mine.recv(tensor_of(x), previous, *worker);
    worker->record(*received);
    std::vector<float> y = outgoing(world.rank(), next, number);
    theirs.send(tensor_of(y), next, *rank.stream);
    rank.stream->wait(*received);
    expect_elements(
        x, [&](int64_t i) { return transfer_value(previous, world.rank(), number, i); }, "received");
  }
  worker->synchronize();
}

// ---- streams

// Two groups on two worker streams and the world on the compute stream, concurrently. The ranks queue the calls of the
// two groups in different orders; within a group the order is the same.
void groups_proceed_side_by_side(Communicator& world) {
  RankStreams rank;
  const int n = world.size();
  const auto a = world.twin("a", comm_of("data"));
  const auto b = world.split(ranks_from(n - 1, 0), "b", comm_of("tensor"));
  const auto stream_a = rank.device->create_side_stream(StreamPriority::normal);
  const auto stream_b = rank.device->create_side_stream(StreamPriority::high);
  for (int round = 0; round < 10; ++round) {
    auto x = filled<float>(100000, a->rank(), random_value<float>);
    auto y = filled<float>(5000, b->rank(), random_value<float>);
    const auto queue_a = [&] { a->all_reduce(tensor_of(x), Reduce::sum, *stream_a); };
    const auto queue_b = [&] {
      for (int i = 0; i < 5; ++i) b->all_reduce(part_of(y, i * 1000, 1000), Reduce::sum, *stream_b);
    };
    if (world.rank() % 2 == 0) queue_a(), queue_b();
    else queue_b(), queue_a();
    std::vector<int64_t> z = {world.rank()};
    world.all_reduce(tensor_of(z), Reduce::sum, *rank.stream);
    EXPECT_EQ(z[0], n * (n - 1) / 2);
    stream_a->synchronize();
    stream_b->synchronize();
    expect_elements(
        x, [&](int64_t i) { return rank_order_sum<float>(n, i, random_value<float>); }, "sum over a");
    expect_elements(
        y, [&](int64_t i) { return rank_order_sum<float>(n, i, random_value<float>); }, "sum over b");
  }
}

// ---- groups

// A group's world ranks, in group order.
std::vector<int64_t> members(Communicator& group, int world_rank, Stream& stream) {
  std::vector<int64_t> own = {world_rank}, all(static_cast<size_t>(group.size()));
  group.all_gather(tensor_of(own), tensor_of(all), stream);
  EXPECT_EQ(all[static_cast<size_t>(group.rank())], world_rank);
  return all;
}

void split_by_members(Communicator& world) {
  RankStreams rank;
  const int n = world.size(), me = world.rank();
  // Odd and even ranks, the higher ranks first.
  std::vector<int> listed;
  for (int r = n - 1; r >= 0; --r)
    if (r % 2 == me % 2) listed.push_back(r);
  const auto reversed = world.split(listed, "reversed", comm_of("data"));
  std::vector<int64_t> expected(listed.begin(), listed.end());
  EXPECT_EQ(members(*reversed, me, *rank.stream), expected);
  // All ranks.
  const auto same = world.twin("same", comm_of("data"));
  expected.clear();
  for (int r = 0; r < n; ++r) expected.push_back(r);
  EXPECT_EQ(members(*same, me, *rank.stream), expected);
  // Two ranks and no others.
  const auto ends = world.split(n > 1 ? std::vector{n - 1, 0} : std::vector{0}, "ends", comm_of("data"));
  ASSERT_EQ(ends != nullptr, me == 0 || me == n - 1);
  if (ends && n > 1) {
    EXPECT_EQ(members(*ends, me, *rank.stream), (std::vector<int64_t>{n - 1, 0}));
  }
  // Each rank alone.
  const auto alone = world.split({me}, "alone", comm_of("data"));
  EXPECT_EQ(alone->size(), 1);
  auto x = filled<float>(10, me, random_value<float>);
  std::vector<float> copy(10);
  alone->all_reduce(tensor_of(x), Reduce::sum, *rank.stream);
  alone->all_gather(tensor_of(x), tensor_of(copy), *rank.stream);
  expect_elements(
      copy, [&](int64_t i) { return random_value<float>(me, i); }, "copy of the only rank");
  std::fill(copy.begin(), copy.end(), 0.0f);
  alone->reduce_scatter(tensor_of(x), tensor_of(copy), Reduce::sum, *rank.stream);
  alone->broadcast(tensor_of(copy), 0, *rank.stream);
  alone->barrier();
  expect_elements(
      copy, [&](int64_t i) { return random_value<float>(me, i); }, "copy of the only rank");
}

void split_a_split(Communicator& world) {
  RankStreams rank;
  const int n = world.size(), me = world.rank();
  const auto half =
      world.split(me < n / 2 ? ranks_from(0, n / 2 - 1) : ranks_from(n / 2, n - 1), "half", comm_of("data"));
  const int h = half->size();
  const auto quarter = half->split(half->rank() < h / 2 ? ranks_from(h / 2 - 1, 0) : ranks_from(h - 1, h / 2),
                                   "quarter", comm_of("tensor"));
  const auto whole = world.twin("whole", comm_of("data"));  // concurrent with the small groups
  const auto group = members(*quarter, me, *rank.stream);
  EXPECT_TRUE(std::is_sorted(group.rbegin(), group.rend()));
  std::vector<int64_t> x = {1}, y = {1};
  for (int i = 0; i < 3; ++i) {
    quarter->all_reduce(tensor_of(x), Reduce::sum, *rank.stream);
    whole->all_reduce(tensor_of(y), Reduce::sum, *rank.stream);
  }
  const auto cube = [](int64_t k) { return k * k * k; };
  EXPECT_EQ(x[0], cube(quarter->size()));
  EXPECT_EQ(y[0], cube(n));
  // Only some ranks split again: from here on, group numbers differ between ranks.
  if (me < n / 2) half->twin("again", comm_of("data"))->barrier();
  world.twin("last", comm_of("data"))->barrier();
}

void meshes(Communicator& world) {
  RankStreams rank;
  const int n = world.size();
  for (const char* order : {"tp-dp-pp", "tp-pp-dp", "pp-cp-dp-tp"})
    for (int t = 1; t <= n; ++t)
      for (int p = 1; p <= n; ++p) {
        if (n % (t * p) != 0) continue;
        const int d = n / (t * p);
        const MeshShape shape({{Axis::tp, t}, {Axis::pp, p}, {Axis::dp, d}}, parse_axis_order(order).value());
        const Mesh mesh = make_mesh(world, shape);
        ASSERT_EQ(rank_of(mesh.at, shape), world.rank());
        std::vector<int64_t> tensor, data, pipeline, model;
        const auto rank_at = [&](int tp, int pp, int dp) {
          return rank_of({{Axis::tp, tp}, {Axis::pp, pp}, {Axis::dp, dp}}, shape);
        };
        const int mine_tp = mesh.at[Axis::tp], mine_pp = mesh.at[Axis::pp], mine_dp = mesh.at[Axis::dp];
        for (int tp = 0; tp < t; ++tp) tensor.push_back(rank_at(tp, mine_pp, mine_dp));
        for (int dp = 0; dp < d; ++dp) data.push_back(rank_at(mine_tp, mine_pp, dp));
        for (int pp = 0; pp < p; ++pp) pipeline.push_back(rank_at(mine_tp, pp, mine_dp));
        for (int pp = 0; pp < p; ++pp)
          for (int tp = 0; tp < t; ++tp) model.push_back(rank_at(tp, pp, mine_dp));
        std::sort(model.begin(), model.end());  // whichever axis is the inner one
        EXPECT_EQ(members(*mesh.tensor, world.rank(), *rank.stream), tensor);
        EXPECT_EQ(members(*mesh.data, world.rank(), *rank.stream), data);
        EXPECT_EQ(members(*mesh.pipeline, world.rank(), *rank.stream), pipeline);
        EXPECT_EQ(members(*mesh.model, world.rank(), *rank.stream), model);
      }
}

}  // namespace

std::vector<CommCase> group_cases() {
  return {{"transfers_arrive_in_order", transfers_arrive_in_order},
          {"neighbours_exchange", neighbours_exchange},
          {"receive_on_a_worker_stream", receive_on_a_worker_stream},
          {"groups_proceed_side_by_side", groups_proceed_side_by_side},
          {"split_by_members", split_by_members},
          {"split_a_split", split_a_split},
          {"meshes", meshes}};
}

}  // namespace trivet

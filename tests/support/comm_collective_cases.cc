// Collectives: every type, lengths from zero to many chunks, exact integers and bit-exact sums in rank order.
#include <cmath>
#include <limits>

#include "tests/support/comm_cases.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

// Lengths from zero to a few chunks; the length in many_chunks spans many chunks on every back end.
const int64_t kLengths[] = {0, 1, 7, 1000, 50003};

// Calls f.template operator()<T>() for the three types that can be summed.
template <class F>
void for_each_sum_type(F&& f) {
  f.template operator()<float>();
  f.template operator()<bf16>();
  f.template operator()<int64_t>();
}

std::string label(const char* what, const char* dtype, int64_t length) {
  return std::string(what) + " of " + std::to_string(length) + " " + dtype;
}

void all_reduce_sum(Communicator& world) {
  RankStreams rank;
  for_each_sum_type([&]<class T>() {
    for (const int64_t length : kLengths)
      for (const auto value : {small_integer<T>, random_value<T>}) {
        auto x = filled<T>(length, world.rank(), value);
        world.all_reduce(tensor_of(x), Reduce::sum, *rank.stream);
        expect_elements(
            x, [&](int64_t i) { return rank_order_sum<T>(world.size(), i, value); },
            label("sum", name_of(dtype_of<T>()), length));
      }
  });
}

void all_reduce_max(Communicator& world) {
  RankStreams rank;
  for_each_sum_type([&]<class T>() {
    for (const int64_t length : kLengths) {
      auto x = filled<T>(length, world.rank(), random_value<T>);
      world.all_reduce(tensor_of(x), Reduce::max, *rank.stream);
      expect_elements(
          x, [&](int64_t i) { return rank_maximum<T>(world.size(), i, random_value<T>); },
          label("maximum", name_of(dtype_of<T>()), length));
    }
  });
}

void all_reduce_average(Communicator& world) {
  RankStreams rank;
  for (const int64_t length : kLengths) {
    auto x = filled<float>(length, world.rank(), random_value<float>);
    world.all_reduce(tensor_of(x), Reduce::average, *rank.stream);
    const auto n = static_cast<float>(world.size());
    expect_elements(
        x, [&](int64_t i) { return rank_order_sum<float>(world.size(), i, random_value<float>) / n; },
        label("average", "fp32", length));
  }
}

void not_a_number_is_not_lost(Communicator& world) {
  RankStreams rank;
  for (int bad = 0; bad < world.size(); ++bad)
    for (const Reduce op : {Reduce::sum, Reduce::max}) {
      std::vector<float> x(3, 1.0f);
      if (world.rank() == bad) x[1] = std::numeric_limits<float>::quiet_NaN();
      world.all_reduce(tensor_of(x), op, *rank.stream);
      EXPECT_FALSE(std::isnan(x[0]));
      EXPECT_TRUE(std::isnan(x[1])) << "NaN on rank " << bad;
      EXPECT_FALSE(std::isnan(x[2]));
    }
}

void reduce_scatter_in_place(Communicator& world) {
  RankStreams rank;
  for_each_sum_type([&]<class T>() {
    for (const int64_t length : kLengths) {
      auto full = filled<T>(length * world.size(), world.rank(), random_value<T>);
      const int64_t begin = length * world.rank();
      world.reduce_scatter(tensor_of(full), part_of(full, begin, length), Reduce::sum, *rank.stream);
      expect_elements(
          full,
          [&](int64_t i) {
            const bool own = i >= begin && i < begin + length;
            return own ? rank_order_sum<T>(world.size(), i, random_value<T>) : random_value<T>(world.rank(), i);
          },
          label("own slice summed, the rest untouched,", name_of(dtype_of<T>()), length));
    }
  });
}

void reduce_scatter_into_a_shard(Communicator& world) {
  RankStreams rank;
  for_each_sum_type([&]<class T>() {
    for (const int64_t length : kLengths) {
      auto full = filled<T>(length * world.size(), world.rank(), random_value<T>);
      std::vector<T> shard(static_cast<size_t>(length));
      const int64_t begin = length * world.rank();
      world.reduce_scatter(tensor_of(full), tensor_of(shard), Reduce::max, *rank.stream);
      expect_elements(
          shard, [&](int64_t i) { return rank_maximum<T>(world.size(), begin + i, random_value<T>); },
          label("maximum of the slice", name_of(dtype_of<T>()), length));
      expect_elements(
          full, [&](int64_t i) { return random_value<T>(world.rank(), i); },
          label("untouched full", name_of(dtype_of<T>()), length));
    }
  });
}

void all_gather(Communicator& world) {
  RankStreams rank;
  for_each_sum_type([&]<class T>() {
    for (const bool in_place : {true, false})
      for (const int64_t length : kLengths) {
        const auto shard_value = [](int r, int64_t i) { return random_value<T>(r, i); };
        auto shard = filled<T>(length, world.rank(), shard_value);
        std::vector<T> full(static_cast<size_t>(length * world.size()));
        Tensor own = tensor_of(shard);
        if (in_place) {
          own = part_of(full, length * world.rank(), length);
          std::copy(shard.begin(), shard.end(), full.begin() + length * world.rank());
        }
        world.all_gather(own, tensor_of(full), *rank.stream);
        expect_elements(
            full, [&](int64_t i) { return shard_value(static_cast<int>(i / length), i % length); },
            label("gathered", name_of(dtype_of<T>()), length));
        expect_elements(
            shard, [&](int64_t i) { return shard_value(world.rank(), i); }, "own shard");
      }
  });
}

void all_gather_of_bytes(Communicator& world) {
  RankStreams rank;
  std::vector<uint8_t> shard(13, static_cast<uint8_t>(world.rank() + 1)), full(13 * static_cast<size_t>(world.size()));
  world.all_gather(tensor_of(shard), tensor_of(full), *rank.stream);
  expect_elements(
      full, [](int64_t i) { return static_cast<uint8_t>(i / 13 + 1); }, "gathered bytes");
}

void broadcast_from_each_root(Communicator& world) {
  RankStreams rank;
  for_each_sum_type([&]<class T>() {
    for (int root = 0; root < world.size(); ++root)
      for (const int64_t length : kLengths) {
        auto x = filled<T>(length, world.rank(), random_value<T>);
        world.broadcast(tensor_of(x), root, *rank.stream);
        expect_elements(
            x, [&](int64_t i) { return random_value<T>(root, i); }, label("broadcast", name_of(dtype_of<T>()), length));
      }
  });
}

void many_chunks(Communicator& world) {
  RankStreams rank;
  const int64_t n = world.size(), length = 2000000 / n;
  auto full = filled<float>(length * n, world.rank(), random_value<float>);
  const Tensor shard = part_of(full, length * world.rank(), length);
  std::vector<float> sums(full.size());
  for (int64_t i = 0; i < length * n; ++i)
    sums[static_cast<size_t>(i)] = rank_order_sum<float>(world.size(), i, random_value<float>);
  const auto sum = [&](int64_t i) { return sums[static_cast<size_t>(i)]; };
  world.reduce_scatter(tensor_of(full), shard, Reduce::sum, *rank.stream);
  world.all_gather(shard, tensor_of(full), *rank.stream);
  expect_elements(full, sum, "reduce_scatter, all_gather");
  full = filled<float>(length * n, world.rank(), random_value<float>);
  world.all_reduce(tensor_of(full), Reduce::sum, *rank.stream);
  expect_elements(full, sum, "all_reduce");
  std::fill(full.begin(), full.end(), static_cast<float>(world.rank()));
  world.broadcast(tensor_of(full), world.size() - 1, *rank.stream);
  expect_elements(
      full, [n](int64_t) { return static_cast<float>(n - 1); }, "broadcast");
}

// The sum of an element does not depend on the call, chunk or owner that it falls into.
void sums_do_not_depend_on_the_cut(Communicator& world) {
  RankStreams rank;
  const int64_t length = 100000;
  const auto sum_in_pieces = [&](int64_t piece) {
    auto x = filled<float>(length, world.rank(), random_value<float>);
    for (int64_t begin = 0; begin < length; begin += piece)
      world.all_reduce(part_of(x, begin, std::min(piece, length - begin)), Reduce::sum, *rank.stream);
    return x;
  };
  const std::vector<float> whole = sum_in_pieces(length);
  for (const int64_t piece : {int64_t{33333}, int64_t{4321}})
    expect_elements(
        sum_in_pieces(piece), [&](int64_t i) { return whole[static_cast<size_t>(i)]; }, "cut sum");
}

// Like a training step: sizes and kinds alternate, and no call relies on the next one to clean up.
void a_long_sequence_of_calls(Communicator& world) {
  RankStreams rank;
  const int n = world.size();
  for (int call = 0; call < 100; ++call) {
    const auto value = [call](int r, int64_t i) { return random_value<float>(r, i + 1000003LL * call); };
    const auto length = static_cast<int64_t>(mixed(static_cast<uint64_t>(call)) % 1500);
    auto full = filled<float>(length * n, world.rank(), value);
    const Tensor shard = part_of(full, length * world.rank(), length);
    world.reduce_scatter(tensor_of(full), shard, Reduce::sum, *rank.stream);
    world.all_gather(shard, tensor_of(full), *rank.stream);
    expect_elements(
        full, [&](int64_t i) { return rank_order_sum<float>(n, i, value); }, "reduce_scatter, all_gather");
    if (call % 7 == 0) world.barrier();
  }
}

}  // namespace

std::vector<CommCase> collective_cases() {
  return {{"all_reduce_sum", all_reduce_sum},
          {"all_reduce_max", all_reduce_max},
          {"all_reduce_average", all_reduce_average},
          {"not_a_number_is_not_lost", not_a_number_is_not_lost},
          {"reduce_scatter_in_place", reduce_scatter_in_place},
          {"reduce_scatter_into_a_shard", reduce_scatter_into_a_shard},
          {"all_gather", all_gather},
          {"all_gather_of_bytes", all_gather_of_bytes},
          {"broadcast_from_each_root", broadcast_from_each_root},
          {"many_chunks", many_chunks},
          {"sums_do_not_depend_on_the_cut", sums_do_not_depend_on_the_cut},
          {"a_long_sequence_of_calls", a_long_sequence_of_calls}};
}

}  // namespace trivet

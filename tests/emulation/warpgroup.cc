// Warpgroup products. Each warp's 16 rows are computed once it waits for them and no other thread can run.
#include "tests/emulation/warpgroup.h"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "tests/emulation/grid.h"
#include "tests/emulation/order.h"
#include "tests/emulation/sites.h"

namespace trivet::emulation {
namespace {

constexpr int kRows = 16, kDepth = 16;  // a warp's part of a product

struct Started {
  Product lanes[32];
  uint32_t left_registers[32][4];
  std::vector<uint16_t> left, right;  // [kRows][kDepth], [kDepth][columns], as at the start
};

// Sums that pending products will change: their values, [lane][columns / 2], hidden from the program.
struct Held {
  std::vector<float> values;
  int products = 0;
};

struct Warp {
  std::deque<std::vector<Started>> groups{1};  // the last group is open
  std::map<const float*, Held> held;           // keyed by the first lane's sums
  bool fenced = false, waits = false;
  std::vector<Registers> named;  // by fences since the last wait, in the first lane
  size_t calls = 0;
};

struct Warpgroups {
  uint64_t block = 0;
  std::map<size_t, Warp> warps;
  std::map<size_t, std::vector<std::string>> calls;  // per warpgroup, in the order in which each warp makes them
};
thread_local Warpgroups of_this_thread;

Warpgroups& warpgroups() {
  Warpgroups& w = of_this_thread;
  if (w.block != block_number()) {
    w = {};
    w.block = block_number();
  }
  return w;
}
size_t warp_index() { return threadIdx.x / 32; }
Warp& warp() { return warpgroups().warps[warp_index()]; }

// ---- operands

// PTX ISA, "Matrix Descriptor Format".
struct Matrix {
  uint32_t address, leading, stride, swizzle;

  explicit Matrix(uint64_t descriptor)
      : address(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4) {
    constexpr uint32_t kSwizzles[] = {16, 128, 64, 32};
    swizzle = kSwizzles[descriptor >> 62];
    if (descriptor & 0x3FFE'C000'C000'C000u) broken("wgmma: a descriptor with bits where there is nothing");
  }

  // "Canonical Layouts": element (row, k) of a matrix whose k are adjacent, and of a matrix whose rows are adjacent.
  // The swizzle applies to the address.
  uint32_t of_row(int row, int k) const {
    const uint32_t of_eight = static_cast<uint32_t>(row / 8) * stride;
    if (swizzle == 16) return address + of_eight + row % 8 * 16 + static_cast<uint32_t>(k / 8) * leading + k % 8 * 2;
    return swizzled(address + of_eight + static_cast<uint32_t>(row % 8) * swizzle + k * 2, swizzle);
  }
  uint32_t of_column(int row, int k) const {
    const int across = static_cast<int>(swizzle / 2);  // rows side by side
    if (swizzle == 16)
      return address + static_cast<uint32_t>(row / 8) * stride + static_cast<uint32_t>(k / 8) * leading + k % 8 * 16 +
             row % 8 * 2;
    return swizzled(address + static_cast<uint32_t>(row / across) * leading + static_cast<uint32_t>(k / 8) * stride +
                        static_cast<uint32_t>(k % 8) * swizzle + row % across * 2,
                    swizzle);
  }
};

// A product's reads of shared memory, recorded in the pieces that order.h tracks.
class Reader {
 public:
  uint16_t operator()(uint32_t address) {
    uint16_t value;
    std::memcpy(&value, as_async_proxy(address, 2, "wgmma"), 2);
    pieces_[(address - kFirstSharedAddress) / kPiece] = true;
    return value;
  }
  void for_pieces(size_t warp, void (*f)(size_t warp, size_t from)) const {
    for (size_t i = 0; clocks_run && i < pieces_.size(); ++i)
      if (pieces_[i]) f(warp, i * kPiece);
  }

 private:
  static constexpr size_t kPiece = 128;
  std::bitset<(256 << 10) / kPiece> pieces_;
};

float number_of(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

Reader read_operands(const Product& product, int first_row, std::vector<uint16_t>& left, std::vector<uint16_t>& right) {
  Reader element_at;
  const Matrix b(product.right_matrix);
  right.resize(static_cast<size_t>(kDepth) * product.columns);
  for (int k = 0; k < kDepth; ++k)
    for (int n = 0; n < product.columns; ++n)
      right[static_cast<size_t>(k * product.columns + n)] =
          element_at(product.right_by_columns ? b.of_column(n, k) : b.of_row(n, k));
  if (product.left) return element_at;
  const Matrix a(product.left_matrix);
  left.resize(kRows * kDepth);
  for (int row = 0; row < kRows; ++row)
    for (int k = 0; k < kDepth; ++k)
      left[static_cast<size_t>(row * kDepth + k)] = element_at(a.of_row(first_row + row, k));
  return element_at;
}

// "Matrix Fragments for wgmma.mma_async.m64nNk16": a lane's register r: rows g + 8 (r % 2), columns 2t + 8 (r / 2).
void gather_registers(Started& product) {
  product.left.resize(kRows * kDepth);
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 4; ++r)
      for (int e = 0; e < 2; ++e) {
        const int row = lane / 4 + r % 2 * 8, k = lane % 4 * 2 + r / 2 * 8 + e;
        product.left[static_cast<size_t>(row * kDepth + k)] =
            static_cast<uint16_t>(product.left_registers[lane][r] >> 16 * e);
      }
}

// ---- products

bool is_poison(const float* sums, int count) {
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, sums + i, 4);
    if (bits != 0xffffffffu) return false;
  }
  return true;
}

int first_row(size_t warp) { return static_cast<int>(warp % 4) * kRows; }

void compute(Warp& w, size_t warp, Started& product) {
  const Product& first = product.lanes[0];
  const int columns = first.columns, count = columns / 2;
  std::vector<uint16_t> left, right;
  read_operands(first, first_row(warp), left, right).for_pieces(warp, product_has_read);
  if (right != product.right || (!first.left && left != product.left))
    broken("wgmma: an operand in shared memory changes, or arrives, between the product's start and its end");
  for (int lane = 0; first.left && lane < 32; ++lane)
    if (std::memcmp(product.lanes[lane].left, product.left_registers[lane], sizeof product.left_registers[lane]) != 0)
      broken("wgmma: registers of an operand change before the product's end");

  Held& held = w.held.at(first.sums);
  std::vector<float> a(kRows * kDepth), b(right.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] = number_of(product.left[i]);
  for (size_t i = 0; i < b.size(); ++i) b[i] = number_of(right[i]);
  std::vector<float> row_sums(static_cast<size_t>(columns));
  for (int row = 0; row < kRows; ++row) {
    std::fill(row_sums.begin(), row_sums.end(), 0.0f);
    for (int k = 0; k < kDepth; ++k)
      for (int n = 0; n < columns; ++n) row_sums[n] += a[row * kDepth + k] * b[k * columns + n];
    for (int n = 0; n < columns; ++n) {
      const int lane = row % 8 * 4 + n % 8 / 2, i = n / 8 * 4 + row / 8 * 2 + n % 2;
      float& sum = held.values[static_cast<size_t>(lane * count + i)];
      sum = (first.add ? sum : 0.0f) + row_sums[n];
    }
  }
  if (--held.products > 0) return;
  for (int lane = 0; lane < 32; ++lane) {
    if (!is_poison(product.lanes[lane].sums, count)) broken("wgmma: sums are written before the product's end");
    std::memcpy(product.lanes[lane].sums, held.values.data() + lane * count, count * sizeof(float));
  }
  w.held.erase(first.sums);
}

// All lanes of the warp have met; all warps of the warpgroup must make the same calls, though not at the same time.
void agree(const std::string& call) {
  Warp& w = warp();
  std::vector<std::string>& calls = warpgroups().calls[warp_index() / 4];
  if (w.calls == calls.size()) calls.push_back(call);
  if (calls[w.calls++] != call) broken("the warps of a warpgroup differ in their instructions: " + call);
}

void start(void* const (&lanes)[32]) {
  Warp& w = warp();
  Started started;
  for (int lane = 0; lane < 32; ++lane) started.lanes[lane] = *static_cast<const Product*>(lanes[lane]);
  const Product& first = started.lanes[0];
  for (const Product& other : started.lanes)
    if (other.left_matrix != first.left_matrix || other.right_matrix != first.right_matrix)
      broken("wgmma: lanes of a warp have different descriptors");
  agree("wgmma of " + std::to_string(first.columns) + " columns, " + std::to_string(first.left_matrix) + ", " +
        std::to_string(first.right_matrix));
  if (!w.fenced) broken("wgmma: no wgmma.fence since the last wait, or ever");
  const auto named = [&](const void* registers) {
    return std::ranges::any_of(w.named, [&](const Registers& some) {
      const auto* const begin = static_cast<const char*>(some.begin);
      return registers >= begin && registers < begin + some.bytes;
    });
  };
  const auto pending = w.held.find(first.sums);
  if ((first.left && !named(first.left)) || (first.add && pending == w.held.end() && !named(first.sums)))
    broken("wgmma: reads registers that no wgmma.fence since the last wait has named");
  read_operands(first, first_row(warp_index()), started.left, started.right).for_pieces(warp_index(), product_may_read);
  if (first.left) {
    for (int lane = 0; lane < 32; ++lane) std::memcpy(started.left_registers[lane], started.lanes[lane].left, 16);
    gather_registers(started);
  }
  Held& held = w.held[first.sums];
  const size_t count = static_cast<size_t>(first.columns) / 2;
  if (held.products++ == 0)
    for (const Product& lane : started.lanes) {
      held.values.insert(held.values.end(), lane.sums, lane.sums + count);
      std::memset(lane.sums, 0xff, count * sizeof(float));
    }
  w.groups.back().push_back(std::move(started));
}

void meet_all(const char* what, void* mine, void (*all)(void* const (&lanes)[32])) {
  meet_warp(0xffffffffu, what, mine, all);
}

}  // namespace

void start_product(const Product& product) {
  Product mine = product;
  meet_all("wgmma.mma_async", &mine, start);
}

void wgmma_fence(std::initializer_list<Registers> registers) {
  if (skipped("wgmma.fence")) return;
  meet_all("wgmma.fence", &registers, [](void* const(&lanes)[32]) {
    agree("wgmma.fence");
    Warp& w = warp();
    w.fenced = true;
    const auto& named = *static_cast<const std::initializer_list<Registers>*>(lanes[0]);
    w.named.insert(w.named.end(), named.begin(), named.end());
  });
}

void wgmma_commit_group() {
  if (skipped("wgmma.commit_group")) return;
  int nothing = 0;
  meet_all("wgmma.commit_group", &nothing, [](void* const(&)[32]) {
    agree("wgmma.commit_group");
    warp().groups.emplace_back();
  });
}

void wgmma_wait_group(int pending) {
  if (skipped("wgmma.wait_group")) return;
  meet_all("wgmma.wait_group", &pending, [](void* const(&lanes)[32]) {
    Warp& w = warp();
    const auto left = static_cast<size_t>(*static_cast<const int*>(lanes[0]));
    agree("wgmma.wait_group " + std::to_string(left));
    w.fenced = false;
    w.named.clear();
    if (w.groups.size() <= left + 1) return;
    w.waits = true;
    later([&w, left, warp = warp_index()] {
      for (; w.groups.size() > left + 1; w.groups.pop_front())
        for (Started& product : w.groups.front()) compute(w, warp, product);
      w.waits = false;
      wake(&w);
    });
  });
  while (warp().waits) sleep_at(&warp(), "wgmma.wait_group");
}

bool product_pends(const float* sums) {
  for (const auto& [first, held] : warp().held)
    if (held.products > 0 && sums == first) return true;
  return false;
}

}  // namespace trivet::emulation

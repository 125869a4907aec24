#include "tools/draw/context_picture.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

#include "base/svg.h"

namespace trivet {
namespace {

constexpr size_t kPiece = 4096;  // positions: enough that a diagonal is negligible
constexpr double kLeft = 66, kWidth = 700, kRight = 120, kRow = 26, kStep = 31;

// For each of `positions` positions, the start of its document.
std::vector<int64_t> starts_of(const std::vector<int64_t>& documents, int64_t positions) {
  std::vector<int64_t> starts(static_cast<size_t>(positions));
  const auto sum = static_cast<double>(std::accumulate(documents.begin(), documents.end(), int64_t{0}));
  double end = 0;
  int64_t start = 0;
  for (const int64_t length : documents) {
    end += static_cast<double>(length) / sum;
    const auto stop = static_cast<int64_t>(std::llround(end * static_cast<double>(positions)));
    std::fill(starts.begin() + start, starts.begin() + stop, start);
    start = stop;
  }
  return starts;
}

// [rank][owner]: unmasked pairs of a query on the rank and a key on the owner.
std::vector<std::vector<int64_t>> pairs_of(const ContextWork& cut, size_t ranks) {
  std::vector pairs(ranks, std::vector<int64_t>(ranks));
  for (size_t query = 0; query < cut.starts.size(); ++query) {
    const auto start = static_cast<size_t>(cut.starts[query]);
    std::vector<int64_t>& of_rank = pairs[static_cast<size_t>(cut.owners[query / kPiece])];
    for (size_t piece = start / kPiece; piece <= query / kPiece; ++piece)
      of_rank[static_cast<size_t>(cut.owners[piece])] +=
          static_cast<int64_t>(std::min(query + 1, (piece + 1) * kPiece) - std::max(start, piece * kPiece));
  }
  return pairs;
}

std::string color_of(int owner) { return fmt::format("dot s{}", owner % 6); }

// The unmasked keys of each query, in the colour of the query's rank.
double draw_mask(Canvas& canvas, const ContextWork& cut, double top) {
  constexpr size_t kStrips = 128;
  constexpr double kSide = 320, kStrip = kSide / kStrips;
  canvas.text(kLeft, top + 13, "head", "The mask: queries go down, the keys that they see to the right");
  const size_t positions = cut.starts.size();
  for (size_t strip = 0; strip < kStrips; ++strip) {
    const size_t query = (2 * strip + 1) * positions / (2 * kStrips);
    const auto x_of = [&](size_t position) {
      return kLeft + kSide * static_cast<double>(position) / static_cast<double>(positions);
    };
    const double x = x_of(static_cast<size_t>(cut.starts[query]));
    canvas.bar(x, top + 24 + kStrip * static_cast<double>(strip), x_of(query + 1) - x, kStrip,
               color_of(cut.owners[query / kPiece]).c_str(), fmt::format("rank {}", cut.owners[query / kPiece]));
  }
  return top + 24 + kSide;
}

std::string idle_text(const ContextWork& cut, size_t rank) {
  return percent_text(1 - static_cast<double>(cut.of(rank)) / static_cast<double>(cut.most()));
}

std::string pieces_of(const ContextWork& cut, size_t rank) {
  std::string pieces;
  for (size_t piece = 0; piece < cut.owners.size(); ++piece)
    if (cut.owners[piece] == static_cast<int>(rank)) pieces += fmt::format("{}{}", pieces.empty() ? "" : " ", piece);
  return pieces;
}

// Draws one split. Returns the y coordinate below it. scale: pixels per pair.
double draw_cut(Canvas& canvas, const ContextWork& cut, double scale, double top) {
  canvas.text(kLeft, top + 13, "head", cut.title + ": which rank has which piece of the sequence");
  double y = top + 24;
  const double piece = kWidth / static_cast<double>(cut.owners.size());
  for (size_t i = 0; i < cut.owners.size(); ++i) {
    const double x = kLeft + piece * static_cast<double>(i);
    canvas.bar(x, y, piece - 1, kRow, color_of(cut.owners[i]).c_str(), fmt::format("piece {}", i));
    canvas.text(x + piece / 2, y + 17, "paper mid", fmt::format("{}", cut.owners[i]));
  }
  y += kRow + 22;
  canvas.text(kLeft, y, "soft", "its queries meet the keys of rank …; time goes to the right");
  y += 9;
  for (size_t rank = 0; rank < cut.hops.size(); ++rank, y += kStep) {
    canvas.text(kLeft - 8, y + 17, "end", fmt::format("rank {}", rank));
    double x = kLeft;
    for (const ContextHop& hop : cut.hops[rank]) {
      const double width = static_cast<double>(hop.pairs) * scale;
      canvas.bar(x, y, width - 1, kRow, color_of(hop.owner).c_str(), fmt::format("keys of rank {}", hop.owner));
      if (width > 10) canvas.text(x + width / 2, y + 17, "paper mid", fmt::format("{}", hop.owner));
      x += width;
    }
    const double idle = kLeft + static_cast<double>(cut.most()) * scale - x;
    if (idle > 0) canvas.bar(x, y, idle, kRow, "idle", "idle");
    canvas.text(x + idle + 9, y + 17, "soft", idle_text(cut, rank) + " idle");
  }
  return y;
}

}  // namespace

int64_t ContextWork::of(size_t rank) const {
  int64_t sum = 0;
  for (const ContextHop& hop : hops[rank]) sum += hop.pairs;
  return sum;
}

int64_t ContextWork::most() const {
  int64_t most = 0;
  for (size_t rank = 0; rank < hops.size(); ++rank) most = std::max(most, of(rank));
  return most;
}

std::vector<ContextWork> context_work(int ranks, const std::vector<int64_t>& documents) {
  std::vector<ContextWork> cuts;
  for (const bool zigzag : {true, false}) {
    ContextWork& work = cuts.emplace_back(ContextWork{zigzag ? "zigzag" : "plain", {}, {}, {}});
    work.starts = starts_of(documents, 2 * ranks * static_cast<int64_t>(kPiece));
    for (int piece = 0; piece < 2 * ranks; ++piece)
      work.owners.push_back(zigzag ? std::min(piece, 2 * ranks - 1 - piece) : piece / 2);
    const auto pairs = pairs_of(work, static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<ContextHop>& hops = work.hops.emplace_back();
      for (int hop = 0; hop < ranks; ++hop) {
        const int owner = (rank - hop + ranks) % ranks;
        const int64_t met = pairs[static_cast<size_t>(rank)][static_cast<size_t>(owner)];
        if (met > 0) hops.push_back({owner, met});
      }
    }
  }
  return cuts;
}

TextBlock table_of(const std::vector<ContextWork>& cuts) {
  TextBlock table{.title = "",
                  .rows = {{"cut", "rank", "pieces", "meets keys of", "work, of the mean", "idle"}},
                  .align = "lrllrr"};
  for (const ContextWork& cut : cuts) {
    const size_t ranks = cut.hops.size();
    double sum = 0;
    for (size_t rank = 0; rank < ranks; ++rank) sum += static_cast<double>(cut.of(rank));
    for (size_t rank = 0; rank < ranks; ++rank) {
      std::string keys;
      for (const ContextHop& hop : cut.hops[rank]) keys += fmt::format("{}{}", keys.empty() ? "" : " ", hop.owner);
      const double of_mean = static_cast<double>(cut.of(rank)) * static_cast<double>(ranks) / sum;
      table.rows.push_back({cut.title, fmt::format("{}", rank), pieces_of(cut, rank), keys,
                            fmt::format("{:.2f}", of_mean), idle_text(cut, rank)});
    }
  }
  return table;
}

std::string render_context_svg(const std::vector<ContextWork>& cuts) {
  int64_t most = 0;
  for (const ContextWork& cut : cuts) most = std::max(most, cut.most());
  Canvas canvas;
  double y = 8;
  for (const ContextWork& cut : cuts) y = draw_cut(canvas, cut, kWidth / static_cast<double>(most), y) + 18;
  if (cuts.front().starts.back() > 0) y = draw_mask(canvas, cuts.front(), y + 8) + 18;
  return canvas.finish(kLeft + kWidth + kRight, y, "Causal attention of ranks that share a sequence");
}

}  // namespace trivet

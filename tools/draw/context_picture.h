// The chunks of a causal sequence on each rank under context parallelism, and what each rank computes when: the
// engine's zigzag split next to a contiguous split, whose first ranks soon run out of work. The same for packed
// documents, which attend only to themselves: their mask, and ranks that are no longer balanced.

#include <string>
#include <vector>

#include "base/text.h"

namespace trivet {

// A hop of the ring: the rank holds the keys and values of `owner`.
struct ContextHop {
  int owner;
  int64_t pairs;  // unmasked (query, key) pairs
};
struct ContextWork {
  std::string title;
  std::vector<int> owners;                    // the rank of each of the 2c chunks
  std::vector<std::vector<ContextHop>> hops;  // per rank; only hops at which it computes

  std::vector<int64_t> starts;  // start of each position's document; positions are scaled

  int64_t of(size_t rank) const;
  int64_t most() const;
};
// Zigzag and contiguous split. documents: lengths that add up to the sequence length; empty: a single document.
std::vector<ContextWork> context_work(int ranks, const std::vector<int64_t>& documents = {});

TextBlock table_of(const std::vector<ContextWork>& cuts);
std::string render_context_svg(const std::vector<ContextWork>& cuts);

}  // namespace trivet

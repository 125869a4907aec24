// The pieces of a causal sequence on each rank under context parallelism, and which rank computes what when: the
// engine's zigzag cut next to a plain cut, whose first ranks soon run out of work. The same for documents packed into
// the sequence, which attend only to themselves: their mask, and ranks that are no longer balanced.

#include <string>
#include <vector>

#include "base/text.h"

namespace trivet {

// A hop of the ring, at which a rank has the keys and values of `owner`.
struct ContextHop {
  int owner;
  int64_t pairs;  // of a query and a key that it sees
};
struct ContextWork {
  std::string title;
  std::vector<int> owners;                    // the rank of each of the 2c pieces
  std::vector<std::vector<ContextHop>> hops;  // per rank; only hops at which it computes

  std::vector<int64_t> starts;  // start of each position's document; positions are scaled

  int64_t of(size_t rank) const;
  int64_t most() const;
};
// The zigzag cut, and the plain one. documents: lengths, whose sum is the sequence's; empty: the sequence is one.
std::vector<ContextWork> context_work(int ranks, const std::vector<int64_t>& documents = {});

TextBlock table_of(const std::vector<ContextWork>& cuts);
std::string render_context_svg(const std::vector<ContextWork>& cuts);

}  // namespace trivet

// The pieces of a causal sequence on each rank under context parallelism, and who computes what when: the zigzag cut of
// the engine next to a plain cut, whose first ranks soon have nothing to do. The same if documents, which attend to
// themselves only, are packed into the sequence: their mask, and ranks that are no longer equal.

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
  std::vector<int> owners;                    // of each of the 2c pieces
  std::vector<std::vector<ContextHop>> hops;  // of each rank; where it computes

  std::vector<int64_t> starts;  // of the document of each position; positions are scaled

  int64_t of(size_t rank) const;
  int64_t most() const;
};
// The zigzag cut, and the plain one. documents: lengths, of which the sequence is the sum; none: it is one.
std::vector<ContextWork> context_work(int ranks, const std::vector<int64_t>& documents = {});

TextBlock table_of(const std::vector<ContextWork>& cuts);
std::string render_context_svg(const std::vector<ContextWork>& cuts);

}  // namespace trivet

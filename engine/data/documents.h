// The documents of a packed sample: position ids, the first token that each token sees, and labels that do not count.
// Number by number those of Megatron's get_ltor_masks_and_position_ids, where an end-of-document token ends every
// document; here one ends where its sequence of the dataset does, too.
#pragma once

#include <cstdint>
#include <span>

namespace trivet {

// Labels of tokens that have none (the data end there), and of those that eod_mask_loss leaves out.
inline constexpr int32_t kNoLabel = -1, kMaskedLabel = -2;

struct DocumentRules {
  bool reset_position_ids = false;    // count from 0 in each document
  bool reset_attention_mask = false;  // tokens see their own document only
  bool eod_mask_loss = false;         // the prediction made at a document's last token does not count
  int64_t eod = -1;                   // the token that ends a document; -1: unknown

  bool any() const { return reset_position_ids || reset_attention_mask || eod_mask_loss; }
};

// Walks through the tokens of a sample, in order.
class DocumentWalk {
 public:
  // ends: where documents of the dataset end in the sample: indices after their last tokens, ascending. Outlives this.
  DocumentWalk(const DocumentRules& rules, std::span<const int32_t> ends) : rules_(rules), ends_(ends) {}

  // The current token `at` and its label.
  struct Place {
    int32_t position_id, start, label;
  };
  Place next(int32_t at, int32_t token, int32_t label) {
    const Place place{at - start_, start_, label};
    while (!ends_.empty() && ends_.front() <= at) ends_ = ends_.subspan(1);
    const bool last = token == rules_.eod || (!ends_.empty() && ends_.front() == at + 1);
    if (!last) return place;
    start_ = at + 1;
    return {place.position_id, place.start, rules_.eod_mask_loss && label >= 0 ? kMaskedLabel : label};
  }

 private:
  const DocumentRules& rules_;
  std::span<const int32_t> ends_;
  int32_t start_ = 0;  // of the document
};

}  // namespace trivet

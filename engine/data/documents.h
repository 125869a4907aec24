// The documents of a packed sample: position ids, the first token that each token sees, and masked labels. All values
// equal those of Megatron's get_ltor_masks_and_position_ids, where an end-of-document token ends every document; here,
// the end of its sequence in the dataset also ends a document.
#pragma once

#include <cstdint>
#include <span>

namespace trivet {

// The labels of a token without a next token (the data ends there), and of one that eod_mask_loss masks.
inline constexpr int32_t kNoLabel = -1, kMaskedLabel = -2;

struct DocumentRules {
  bool reset_position_ids = false;    // count from 0 in each document
  bool reset_attention_mask = false;  // tokens attend only to their own document
  bool eod_mask_loss = false;         // the prediction made at a document's last token is masked
  int64_t eod = -1;                   // the token that ends a document; -1: unknown

  bool any() const { return reset_position_ids || reset_attention_mask || eod_mask_loss; }
};

// Walks the tokens of a sample in order.
class DocumentWalk {
 public:
  // ends: indices in the sample just past the last token of each dataset document, ascending. Must outlive this.
  DocumentWalk(const DocumentRules& rules, std::span<const int32_t> ends) : rules_(rules), ends_(ends) {}

  // The result of next(): the position id of token `at`, the start of its document, and its label or kMaskedLabel.
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
  int32_t start_ = 0;  // of the current document
};

}  // namespace trivet

// A tokenizer.json: refused with a DataError, or read as a model that survives being written and read again. It encodes
// any text to ids of its vocabulary, which decode to the same text unless it normalises, removes or adds characters.
// A text may be refused only if the model's pattern takes more than linear time.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "engine/data/bpe_tokenizer.h"

namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trivet;
  const std::string file(reinterpret_cast<const char*>(data), size);
  BpeModel model;
  try {
    model = parse_bpe_model(file, "f");
  } catch (const DataError&) {
    return 0;
  }
  const BpeModel again = parse_bpe_model(to_tokenizer_json(model), "again");
  require(again.tokens == model.tokens && again.merges == model.merges && again.vocab == model.vocab &&
          again.splits == model.splits && again.added.size() == model.added.size());
  const auto special = std::ranges::find_if(model.added, [](const auto& added) { return added.special; });
  if (special == model.added.end()) return 0;
  const bool keeps = !model.nfc && std::ranges::all_of(model.splits, [](const BpeSplit& split) {
    return split.keep == BpeSplit::Keep::all && !split.prefix_space;
  });
  // Special tokens in a text are not recognised: the end of document cannot come from text.
  const auto tokenizer = make_bpe(model, {.eod = special->text, .bos = ""}, true);
  for (const std::string& text :
       {std::string("a bc  The end.\r\n 12345 \xc3\xa9\xe6\x97\xa5 'll"), file.substr(0, 300)})
    try {
      const std::vector<int32_t> ids = tokenizer->encode(text);
      for (const int32_t id : ids) require(0 <= id && id < tokenizer->vocab_size());
      if (keeps) require(tokenizer->decode(ids) == text);
    } catch (const DataError& error) {
      require(std::string(error.what()).find("too often") != std::string::npos);
    }
  return 0;
}

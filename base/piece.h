// Sizes of pieces: blocks of threads, chunks, windows, buffers and caches that determine speed, and of a result at most
// the last bits of a sum. A build for tests (-DTRIVET_SMALL_PIECES=ON) makes them small: what takes one piece at the
// sizes of tests then takes several, as it does at the sizes of training.
#pragma once

#include <type_traits>

namespace trivet {

template <class T>
constexpr T piece([[maybe_unused]] T size, [[maybe_unused]] std::type_identity_t<T> small) {
#ifdef TRIVET_SMALL_PIECES
  return small;
#else
  return size;
#endif
}

}  // namespace trivet

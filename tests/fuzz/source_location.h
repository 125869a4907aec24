// std::source_location for clang 14, which uses GCC's header but lacks the builtin that it needs, so the header defines
// nothing. Included before everything else in the fuzz targets, and only there.
#pragma once

#include <source_location>

#ifndef __cpp_lib_source_location
#include <cstdint>

namespace std {

class source_location {
 public:
  static constexpr source_location current(const char* file = __builtin_FILE(),
                                           const char* function = __builtin_FUNCTION(),
                                           uint_least32_t line = __builtin_LINE()) {
    source_location here;
    here.file_ = file, here.function_ = function, here.line_ = line;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr const char* function_name() const { return function_; }
  constexpr uint_least32_t line() const { return line_; }
  constexpr uint_least32_t column() const { return 0; }

 private:
  const char* file_ = "";
  const char* function_ = "";
  uint_least32_t line_ = 0;
};

}  // namespace std
#endif

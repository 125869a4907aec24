// Numbers and tables as console text: no colours, no locale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trivet {

std::string grouped(int64_t n);                         // 124,439,808
std::string bytes_text(int64_t bytes);                  // 1.86 GiB
std::string duration_text(double seconds);              // 0:07, 12:34, 1:02:03, 3d 04:05:06; "-" if not a time
std::string percent_text(double fraction);              // 41.2%; "-" for NaN
std::string counted(int64_t n, std::string_view noun);  // 1 step, 2,000 steps
// The first `most` characters of a UTF-8 text, and "…" if there are more.
std::string shortened(std::string_view text, size_t most);

// The text in lines of at most `columns` columns (0: no limit), broken between words. The first begins at column
// `indent`, where the caller already is; the others begin with `indent` spaces.
std::string wrapped(std::string_view text, size_t columns, size_t indent = 0);

// A line of comma-separated values as defined by RFC 4180: cells with commas, quotes or line ends are quoted.
std::string csv_line(const std::vector<std::string>& cells);
// The cells of a CSV line, which must not include its line end; spaces around unquoted cells are dropped. Empty if a
// quote is not closed.
std::vector<std::string> csv_cells(std::string_view line);

// A block of a banner: its title, and below it, indented, rows of aligned cells. Without a title nothing is indented.
// `align` holds an 'l' or 'r' for each column; missing letters are 'l'. An 'r' makes the block a table of numbers: if
// the terminal is too narrow, its columns continue below, in further tables that repeat the first column.
struct TextBlock {
  std::string title;
  std::vector<std::vector<std::string>> rows = {};
  std::string align = {};

  // Adds a column to a table whose first row holds the column names.
  void column(std::string name, char alignment) {
    if (rows.empty()) rows.emplace_back();
    rows[0].push_back(std::move(name)), align += alignment;
  }
};

// Renders the blocks one after another, with a first column of the same width in all of them. No line ends with spaces.
// On a terminal of `columns` columns (0: no limit), long strings continue on the next line.
std::string render(const std::vector<TextBlock>& blocks, int columns = 0);

}  // namespace trivet

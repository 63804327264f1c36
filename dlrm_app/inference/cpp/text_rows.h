// Encoded rows as text, as in reference/rows.tsv of an export: every dense value, then every feature's ids with commas
// between them, all separated by tabs. An id with another weight than 1 is followed by a colon and the weight.
#pragma once

#include <string>
#include <vector>

#include "scorer.h"

namespace dlrm {

// Throws std::invalid_argument, which names the line (the first is first_line), for another number of fields and for what
// is no number.
Inputs parse_rows(const std::vector<std::string>& lines, const Scorer& scorer, size_t first_line = 1);

// Rows without the columns of context.
Inputs parse_rows(const std::vector<std::string>& lines, const Scorer& scorer, const Context& context, size_t first_line = 1);

// A context of lines with the name of a column, a tab, and its value or ids as in rows. Throws std::invalid_argument.
Context parse_context(const std::vector<std::string>& lines, const Scorer& scorer);

}  // namespace dlrm

// dlrm_score EXPORT < rows.tsv   writes a probability (or one for each label) a line for rows like those of EXPORT/reference/rows.tsv.
// dlrm_score EXPORT --context FILE < rows.tsv   the rows lack the columns that FILE has for all of them, one a line: name, tab, value.
// dlrm_score EXPORT --check      scores the export's reference rows and compares: exit code 1 past 1e-6.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "text_rows.h"

namespace {

constexpr size_t kBatchRows = 512;
constexpr double kTolerance = 1e-6;

// Calls take(scores, number) for every row of the stream, in order: one probability for each label of the model.
template <class Take>
void score_all(std::istream& stream, const dlrm::Scorer& scorer, const dlrm::Context& context, Take take) {
  std::vector<std::string> lines;
  size_t first_line = 1;
  const auto flush = [&] {
    if (lines.empty()) return;
    const at::Tensor scores = scorer.score(dlrm::parse_rows(lines, scorer, context, first_line), context).contiguous();
    const int64_t num_labels = scores.dim() == 1 ? 1 : scores.size(1);
    for (int64_t row = 0; row < scores.size(0); ++row) take(scores.const_data_ptr<float>() + row * num_labels, num_labels);
    first_line += lines.size();
    lines.clear();
  };
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
    if (lines.size() == kBatchRows) flush();
  }
  flush();
}

dlrm::Context read_context(const std::filesystem::path& path, const dlrm::Scorer& scorer) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("no " + path.string() + ": give a file with a name, a tab and a value a line");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return dlrm::parse_context(lines, scorer);
}

int check(const std::filesystem::path& folder, const dlrm::Scorer& scorer) {
  std::ifstream rows(folder / "reference" / "rows.tsv"), expected(folder / "reference" / "scores.tsv");
  if (!rows || !expected) throw std::runtime_error("no " + (folder / "reference").string() + ": copy the whole export");
  size_t count = 0;
  double largest = 0;
  score_all(rows, scorer, {}, [&](const float* scores, int64_t num_labels) {
    for (int64_t label = 0; label < num_labels; ++label) {
      double reference = NAN;
      if (!(expected >> reference)) throw std::runtime_error("reference/scores.tsv has fewer scores than reference/rows.tsv");
      const double difference = std::abs(scores[label] - reference);
      largest = difference <= largest ? largest : difference;
    }
    ++count;
  });
  std::printf("%zu reference rows, largest difference %.3g\n", count, largest);
  return count > 0 && largest <= kTolerance ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string option = count > 2 ? arguments[2] : "";
  const bool is_check = count == 3 && option == "--check", has_context = count == 4 && option == "--context";
  if (count != 2 && !is_check && !has_context) {
    std::cerr << "usage: dlrm_score EXPORT [--check | --context FILE]\n";
    return 2;
  }
  try {
    dlrm::keep_freed_memory();
    const c10::InferenceMode no_gradients;
    const dlrm::Scorer scorer(arguments[1]);
    if (is_check) return check(arguments[1], scorer);
    const dlrm::Context context = has_context ? read_context(arguments[3], scorer) : dlrm::Context();
    score_all(std::cin, scorer, context, [](const float* scores, int64_t num_labels) {
      for (int64_t label = 0; label < num_labels; ++label) std::printf("%s%.9g", label > 0 ? "\t" : "", scores[label]);
      std::printf("\n");
    });
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}

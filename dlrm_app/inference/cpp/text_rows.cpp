#include "text_rows.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace dlrm {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> fields;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1) {
    fields.push_back(text.substr(begin, end - begin));
  }
  fields.push_back(text.substr(begin));
  return fields;
}

[[noreturn]] void refuse(size_t line, const std::string& rule) {
  throw std::invalid_argument("line " + std::to_string(line) + ": " + rule);
}

float parse_float(const std::string& field, size_t line) {
  char* end = nullptr;
  const float value = std::strtof(field.c_str(), &end);
  if (field.empty() || *end != '\0') refuse(line, "'" + field + "' is no number");
  return value;
}

int32_t parse_id(const std::string& field, size_t line) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(field.c_str(), &end, 10);
  if (field.empty() || *end != '\0' || errno != 0 || value != static_cast<int32_t>(value)) {
    refuse(line, "'" + field + "' is no id");
  }
  return static_cast<int32_t>(value);
}

void parse_cell(const std::string& text, bool is_weighted, size_t line, Cells& cells) {
  const size_t colon = is_weighted ? text.find(':') : std::string::npos;
  cells.ids.push_back(parse_id(text.substr(0, colon), line));
  const float weight = colon == std::string::npos ? 1.0F : parse_float(text.substr(colon + 1), line);
  if (!(weight >= 0) || std::isinf(weight)) refuse(line, "the weight of '" + text + "' must be a number from 0 on");
  cells.weights.push_back(weight);
}

void parse_cells(const std::string& field, bool is_weighted, size_t line, Cells& cells) {
  if (field.empty()) return;
  for (const std::string& cell : split(field, ',')) parse_cell(cell, is_weighted, line, cells);
}

}  // namespace

Context parse_context(const std::vector<std::string>& lines, const Scorer& scorer) {
  Context context;
  for (size_t number = 1; number <= lines.size(); ++number) {
    const std::vector<std::string> fields = split(lines[number - 1], '\t');
    if (fields.size() != 2) refuse(number, "a context has a name and a value a line, with a tab between them");
    const std::string& name = fields[0];
    if (context.dense.count(name) + context.features.count(name) > 0) refuse(number, name + " is given twice");
    const auto& dense = scorer.dense();
    if (std::find(dense.begin(), dense.end(), name) != dense.end()) {
      context.dense[name] = parse_float(fields[1], number);
    } else {
      const auto is_it = [&](const Feature& feature) { return feature.name == name; };
      if (std::none_of(scorer.features().begin(), scorer.features().end(), is_it)) refuse(number, name + " is no feature of the model");
      Cells& cells = context.features[name];
      parse_cells(fields[1], scorer.is_weighted(), number, cells);
      if (!scorer.is_weighted()) cells.weights.clear();
    }
  }
  return context;
}

Inputs parse_rows(const std::vector<std::string>& lines, const Scorer& scorer, size_t first_line) {
  return parse_rows(lines, scorer, {}, first_line);
}

Inputs parse_rows(const std::vector<std::string>& lines, const Scorer& scorer, const Context& context, size_t first_line) {
  const size_t num_dense = scorer.dense().size() - context.dense.size();
  const size_t num_features = scorer.features().size() - context.features.size();
  const auto num_rows = static_cast<int64_t>(lines.size());
  at::Tensor dense = at::empty({num_rows, static_cast<int64_t>(num_dense)}, at::kFloat);
  at::Tensor lengths = at::empty({static_cast<int64_t>(num_features), num_rows}, at::kInt);
  std::vector<Cells> cells(num_features);
  float* next_dense = dense.mutable_data_ptr<float>();
  int32_t* counts = lengths.mutable_data_ptr<int32_t>();
  for (size_t row = 0; row < lines.size(); ++row) {
    const size_t line = first_line + row;
    const std::vector<std::string> fields = split(lines[row], '\t');
    if (fields.size() != num_dense + num_features) {
      refuse(line, std::to_string(fields.size()) + " fields, the model takes " + std::to_string(num_dense) + " numbers and " +
                       std::to_string(num_features) + " features");
    }
    for (size_t i = 0; i < num_dense; ++i) *next_dense++ = parse_float(fields[i], line);
    for (size_t f = 0; f < num_features; ++f) {
      const std::string& field = fields[num_dense + f];
      const size_t before = cells[f].ids.size();
      parse_cells(field, scorer.is_weighted(), line, cells[f]);
      counts[f * lines.size() + row] = static_cast<int32_t>(cells[f].ids.size() - before);
    }
  }
  std::vector<int32_t> values;
  std::vector<float> weights;
  for (const Cells& of_feature : cells) {
    values.insert(values.end(), of_feature.ids.begin(), of_feature.ids.end());
    weights.insert(weights.end(), of_feature.weights.begin(), of_feature.weights.end());
  }
  return {dense, at::tensor(values, at::kInt), lengths, scorer.is_weighted() ? at::tensor(weights, at::kFloat) : at::Tensor()};
}

}  // namespace dlrm

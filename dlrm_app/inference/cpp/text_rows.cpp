#include "text_rows.h"

#include <cerrno>
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

}  // namespace

Inputs parse_rows(const std::vector<std::string>& lines, const Scorer& scorer, size_t first_line) {
  const size_t num_dense = scorer.dense().size(), num_features = scorer.features().size();
  const auto num_rows = static_cast<int64_t>(lines.size());
  at::Tensor dense = at::empty({num_rows, static_cast<int64_t>(num_dense)}, at::kFloat);
  at::Tensor lengths = at::empty({static_cast<int64_t>(num_features), num_rows}, at::kInt);
  std::vector<std::vector<int32_t>> ids(num_features);
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
      const size_t before = ids[f].size();
      if (!field.empty()) {
        for (const std::string& id : split(field, ',')) ids[f].push_back(parse_id(id, line));
      }
      counts[f * lines.size() + row] = static_cast<int32_t>(ids[f].size() - before);
    }
  }
  std::vector<int32_t> values;
  for (const std::vector<int32_t>& of_feature : ids) values.insert(values.end(), of_feature.begin(), of_feature.end());
  return {dense, at::tensor(values, at::kInt), lengths};
}

}  // namespace dlrm

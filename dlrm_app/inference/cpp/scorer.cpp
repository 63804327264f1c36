#include "scorer.h"

#include <dlfcn.h>
#include <malloc.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <unordered_map>

#include "checksum.h"

namespace dlrm {
namespace {

using Metadata = std::unordered_map<std::string, std::string>;
using torch::inductor::AOTIModelPackageLoader;

// Those that register the operators of model.pt2, each after what it needs.
constexpr const char* kLibraries[] = {
    "asmjit.so", "fbgemm.so", "fbgemm_gpu_config.so", "fbgemm_gpu_tbe_utils.so", "fbgemm_gpu_tbe_inference.so",
    "fbgemm_gpu_sparse_async_cumsum.so",
};

void load_operators() {
  const char* chosen = std::getenv("FBGEMM_GPU_FOLDER");
  const std::filesystem::path folder = chosen != nullptr ? chosen : DLRM_FBGEMM_FOLDER;
  for (const char* name : kLibraries) {
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::exists(path)) {
      if (std::string(name) == "asmjit.so" || std::string(name) == "fbgemm_gpu_config.so") continue;  // not in every build
      throw std::runtime_error("no " + path.string() +
                               ": set FBGEMM_GPU_FOLDER to the fbgemm_gpu folder in Python's site-packages");
    }
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      throw std::runtime_error("cannot load " + path.string() + ": " + dlerror());
    }
  }
}

std::set<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::set<std::string> found;
  for (std::string word; stream >> word;) found.insert(word);
  return found;
}

std::vector<std::string> lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> found;
  for (std::string line; std::getline(stream, line);) found.push_back(line);
  return found;
}

std::set<std::string> cpu_instructions() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0) return words(line.substr(line.find(':') + 1));
  }
  return {};
}

const std::string& value_of(const Metadata& metadata, const std::string& key, const std::filesystem::path& path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) {
    throw std::runtime_error(path.string() + " has no " + key + " in it: it was not made by dlrm-export");
  }
  return found->second;
}

void refuse_other_machine(const Metadata& metadata, const std::filesystem::path& path) {
  const std::string& torch = value_of(metadata, "dlrm.torch", path);
  if (torch != TORCH_VERSION) {
    throw std::runtime_error(path.string() + " was made with torch " + torch + ", this program with " + TORCH_VERSION +
                             ": build it with that torch, or export again");
  }
  const std::set<std::string> present = cpu_instructions();
  std::string lacking;
  for (const std::string& name : words(value_of(metadata, "dlrm.cpu", path))) {
    if (present.count(name) == 0) lacking += " " + name;
  }
  if (!lacking.empty()) {
    throw std::runtime_error(path.string() + " needs a CPU with" + lacking +
                             ", which this one lacks: export with cpu=avx2, or on such a machine");
  }
}

[[noreturn]] void refuse_lengths(int64_t num_ids) {
  throw std::invalid_argument("the lengths add up to more than the " + std::to_string(num_ids) + " ids there are");
}

[[noreturn]] void refuse_rest(int64_t sum, int64_t num_ids) {
  throw std::invalid_argument("the lengths add up to " + std::to_string(sum) + ", there are " + std::to_string(num_ids) + " ids");
}

void refuse_unknown(const Context& context, const std::vector<std::string>& dense, const std::vector<Feature>& features) {
  std::set<std::string> numbers(dense.begin(), dense.end()), sparse;
  for (const Feature& feature : features) sparse.insert(feature.name);
  const auto refuse = [](const std::string& name, const std::string& kind) {
    throw std::invalid_argument("context: " + name + " is no " + kind + " feature of the model");
  };
  for (const auto& each : context.dense) {
    if (numbers.count(each.first) == 0) refuse(each.first, "dense");
  }
  for (const auto& each : context.features) {
    if (sparse.count(each.first) == 0) refuse(each.first, "sparse");
  }
}

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " of " << tensor.dtype();
  return text.str();
}

}  // namespace

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that it takes
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

Scorer::Scorer(const std::filesystem::path& folder, size_t num_runners) {
  const std::filesystem::path path = folder / "model.pt2";
  if (!std::filesystem::exists(path)) {
    throw std::runtime_error("no " + path.string() + ": give the folder of an export made with format=aoti");
  }
  verify(folder, "model.pt2");
  const Metadata metadata = AOTIModelPackageLoader::load_metadata_from_package(path.string(), "model");
  refuse_other_machine(metadata, path);
  dense_ = lines(value_of(metadata, "dlrm.dense", path));
  for (const std::string& line : lines(value_of(metadata, "dlrm.features", path))) {
    const size_t space = line.find(' ');
    features_.push_back({line.substr(space + 1), std::stoll(line.substr(0, space))});
  }
  is_weighted_ = metadata.count("dlrm.weighted") > 0;
  load_operators();
  loader_ = std::make_unique<AOTIModelPackageLoader>(path.string(), "model", false, num_runners);
}

Scorer::~Scorer() = default;

at::Tensor Scorer::score(const Inputs& inputs) const {
  check(inputs);
  std::vector<at::Tensor> tensors = {inputs.dense, inputs.values, inputs.lengths};
  if (is_weighted_) tensors.push_back(inputs.weights);
  at::Tensor scores = loader_->run(tensors)[0];
  if (const at::Tensor bad = scores.isnan().reshape({scores.size(0), -1}).any(1); bad.any().item<bool>()) {
    throw std::invalid_argument("row " + std::to_string(bad.nonzero()[0].item<int64_t>()) +
                                " has no score: the model computes nan, as it may of numbers that are too large for float32");
  }
  return scores;
}

Inputs Scorer::repeated(const Inputs& rows, const Context& context) const {
  if (context.dense.empty() && context.features.empty()) return rows;
  refuse_unknown(context, dense_, features_);
  check_shapes(rows, dense_.size() - context.dense.size(), features_.size() - context.features.size());
  const int64_t num_rows = rows.dense.size(0);
  at::Tensor dense = at::empty({num_rows, static_cast<int64_t>(dense_.size())}, at::kFloat);
  int64_t column = 0, next = 0;
  for (const std::string& name : dense_) {
    const auto shared = context.dense.find(name);
    at::Tensor to = dense.select(1, column++);
    shared == context.dense.end() ? to.copy_(rows.dense.select(1, next++)) : to.fill_(shared->second);
  }
  std::vector<int32_t> values, lengths;
  std::vector<float> weights;
  lengths.reserve(features_.size() * num_rows);
  const int32_t* ids = rows.values.const_data_ptr<int32_t>();
  const float* factors = is_weighted_ ? rows.weights.const_data_ptr<float>() : nullptr;
  const int32_t* counts = rows.lengths.const_data_ptr<int32_t>();
  int64_t at = 0;
  for (const Feature& feature : features_) {
    const auto shared = context.features.find(feature.name);
    if (shared != context.features.end()) {
      const Cells& cells = shared->second;
      const bool has_weights = !cells.weights.empty();
      if (has_weights && (!is_weighted_ || cells.weights.size() != cells.ids.size())) {
        throw std::invalid_argument("context: " + feature.name + " must have a weight for each id" +
                                    (is_weighted_ ? "" : ", and this model takes none"));
      }
      lengths.insert(lengths.end(), num_rows, static_cast<int32_t>(cells.ids.size()));
      for (int64_t row = 0; row < num_rows; ++row) {
        values.insert(values.end(), cells.ids.begin(), cells.ids.end());
        if (has_weights) weights.insert(weights.end(), cells.weights.begin(), cells.weights.end());
      }
      weights.resize(is_weighted_ ? values.size() : 0, 1.0F);
      continue;
    }
    const int64_t begin = at;
    for (int64_t row = 0; row < num_rows; ++row) {
      if (counts[row] < 0 || counts[row] > rows.values.size(0) - at) refuse_lengths(rows.values.size(0));
      at += counts[row];
    }
    lengths.insert(lengths.end(), counts, counts + num_rows);
    counts += num_rows;
    values.insert(values.end(), ids + begin, ids + at);
    if (is_weighted_) weights.insert(weights.end(), factors + begin, factors + at);
  }
  if (at != rows.values.size(0)) refuse_rest(at, rows.values.size(0));
  return {dense, at::tensor(values, at::kInt),
          at::tensor(lengths, at::kInt).view({static_cast<int64_t>(features_.size()), num_rows}),
          is_weighted_ ? at::tensor(weights, at::kFloat) : at::Tensor()};
}

void Scorer::check_shapes(const Inputs& inputs, size_t dense_features, size_t sparse_features) const {
  const auto& [dense, values, lengths, weights] = inputs;
  const auto num_dense = static_cast<int64_t>(dense_features), num_features = static_cast<int64_t>(sparse_features);
  const auto refuse = [](const std::string& rule, const at::Tensor& tensor) {
    throw std::invalid_argument(rule + ", got " + shape_of(tensor));
  };
  if (dense.dim() != 2 || dense.size(1) != num_dense || dense.dtype() != at::kFloat || !dense.is_contiguous()) {
    refuse("dense must be contiguous float [rows, " + std::to_string(num_dense) + "]", dense);
  }
  const int64_t num_rows = dense.size(0);
  if (lengths.dim() != 2 || lengths.size(0) != num_features || lengths.size(1) != num_rows ||
      lengths.dtype() != at::kInt || !lengths.is_contiguous()) {
    refuse("lengths must be contiguous int [" + std::to_string(num_features) + ", " + std::to_string(num_rows) + "]", lengths);
  }
  if (values.dim() != 1 || values.dtype() != at::kInt || !values.is_contiguous()) {
    refuse("values must be contiguous int [ids]", values);
  }
  if (weights.defined() != is_weighted_) {
    throw std::invalid_argument(is_weighted_ ? "the model takes a weight for each id, and there are no weights"
                                             : "the model takes no weights");
  }
  if (is_weighted_ && (weights.sizes() != values.sizes() || weights.dtype() != at::kFloat || !weights.is_contiguous())) {
    refuse("weights must be contiguous float [" + std::to_string(values.size(0)) + "]", weights);
  }
}

void Scorer::check(const Inputs& inputs) const {
  check_shapes(inputs, dense_.size(), features_.size());
  const at::Tensor &values = inputs.values, &lengths = inputs.lengths;
  const int64_t num_rows = inputs.dense.size(0);
  const int32_t* ids = values.const_data_ptr<int32_t>();
  const int32_t* counts = lengths.const_data_ptr<int32_t>();
  int64_t at = 0;
  for (const Feature& feature : features_) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t count = *counts++;
      if (count < 0 || at + count > values.size(0)) refuse_lengths(values.size(0));
      for (const int64_t end = at + count; at < end; ++at) {
        if (ids[at] < 0 || ids[at] >= feature.num_ids) {
          throw std::invalid_argument("row " + std::to_string(row) + ": id " + std::to_string(ids[at]) + " of feature " +
                                      feature.name + " is outside its table of " + std::to_string(feature.num_ids) + " rows");
        }
      }
    }
  }
  if (at != values.size(0)) refuse_rest(at, values.size(0));
}

}  // namespace dlrm

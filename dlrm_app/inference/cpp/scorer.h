// An export of dlrm-export, loaded for scoring.
// Shapes: B batch rows, N dense features, F sparse features, V ids of all features and rows.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace torch::inductor {
class AOTIModelPackageLoader;
}

namespace dlrm {

// Ids of the feature lie in [0, num_ids).
struct Feature {
  std::string name;
  int64_t num_ids;
};

// dense: float32 [B, N]. values: int32 [V], the ids of the first feature's B rows, then those of the second's, and so on.
// lengths: int32 [F, B], how many ids each row has. weights: float32 [V], a weight for each id, 1 for those of features that have
// none; only for a model that is_weighted.
struct Inputs {
  at::Tensor dense;
  at::Tensor values;
  at::Tensor lengths;
  at::Tensor weights = {};
};

// The ids of a feature in one row. weights: one for each id, or none if all are 1.
struct Cells {
  std::vector<int32_t> ids;
  std::vector<float> weights = {};
};

// Columns that all rows of a request share, such as a user's, whose candidates the rows are: dense features and sparse ones, by name.
struct Context {
  std::map<std::string, float> dense;
  std::map<std::string, Cells> features;
};

// For the main of a program that scores: lets malloc keep what a batch has freed. Its results between layers are megabytes, which
// glibc otherwise gives back to the system after each call and gets again, page by page, in the next.
void keep_freed_memory();

class Scorer {
 public:
  // Verifies and loads model.pt2 from the folder of an export; up to num_runners calls of score may run at once.
  // Throws std::runtime_error, which says what to do, for a missing file or library, another torch, or a CPU that lacks
  // instructions that the export was compiled for.
  explicit Scorer(const std::filesystem::path& folder, size_t num_runners = 1);
  ~Scorer();
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // The names of the dense features, and the sparse features, in the order of the inputs.
  const std::vector<std::string>& dense() const { return dense_; }
  const std::vector<Feature>& features() const { return features_; }

  // True if the elements of some lists have weights.
  bool is_weighted() const { return is_weighted_; }

  // The probabilities [B], or [B, L] of L labels. Throws std::invalid_argument for tensors of other types or shapes, for ids outside
  // their tables (the compiled code does not look), and for rows whose score is nan.
  at::Tensor score(const Inputs& inputs) const;

  // The probabilities of rows that lack the columns of context; their other columns have the order of the model's. They are those of
  // rows that repeat the context, to the bit. Throws std::invalid_argument, also for a column that the model does not have.
  at::Tensor score(const Inputs& rows, const Context& context) const { return score(repeated(rows, context)); }

  // The rows with the context in each of them.
  Inputs repeated(const Inputs& rows, const Context& context) const;

 private:
  void check_shapes(const Inputs& inputs, size_t num_dense, size_t num_features) const;
  void check(const Inputs& inputs) const;

  std::vector<std::string> dense_;
  std::vector<Feature> features_;
  bool is_weighted_ = false;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
};

}  // namespace dlrm

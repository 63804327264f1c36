// dlrm_benchmark EXPORT [SECONDS] [BATCH ...]   one JSON object a batch size: median and 99th percentile in microseconds,
// rows a second. Rows are the export's reference rows, over and over. Threads: OMP_NUM_THREADS.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "text_rows.h"

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

void measure(const dlrm::Scorer& scorer, const std::vector<std::string>& rows, size_t batch, double seconds) {
  std::vector<std::string> lines;
  for (size_t row = 0; row < batch; ++row) lines.push_back(rows[row % rows.size()]);
  const dlrm::Inputs inputs = dlrm::parse_rows(lines, scorer);
  for (int call = 0; call < 3; ++call) scorer.score(inputs);
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  while (microseconds(Clock::now() - begin) < 1e6 * seconds || times.size() < 10) {
    const Clock::time_point before = Clock::now();
    scorer.score(inputs);
    times.push_back(microseconds(Clock::now() - before));
  }
  std::sort(times.begin(), times.end());
  const double p50 = times[times.size() / 2], p99 = times[times.size() * 99 / 100];
  std::printf("{\"rows\": %zu, \"calls\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"rows_per_second\": %.0f}\n", batch,
              times.size(), p50, p99, 1e6 * static_cast<double>(batch) / p50);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::cerr << "usage: dlrm_benchmark EXPORT [SECONDS] [BATCH ...]\n";
    return 2;
  }
  try {
    dlrm::keep_freed_memory();
    const c10::InferenceMode no_gradients;
    const dlrm::Scorer scorer(arguments[1]);
    std::ifstream file(std::string(arguments[1]) + "/reference/rows.tsv");
    std::vector<std::string> rows;
    for (std::string line; std::getline(file, line);) rows.push_back(line);
    if (rows.empty()) throw std::runtime_error(std::string(arguments[1]) + "/reference/rows.tsv has no rows");
    const double seconds = count > 2 ? std::stod(arguments[2]) : 2.0;
    std::vector<size_t> batches;
    for (int i = 3; i < count; ++i) batches.push_back(std::stoul(arguments[i]));
    if (batches.empty()) batches = {1, 16, 64, 512, 4096};
    for (const size_t batch : batches) measure(scorer, rows, batch, seconds);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}

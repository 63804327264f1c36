#include "checksum.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <vector>

namespace dlrm {
namespace {

constexpr size_t kBlock = 64;
constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

uint32_t rotate(uint32_t value, int bits) { return (value >> bits) | (value << (32 - bits)); }

void absorb(State& state, const unsigned char* block) {
  std::array<uint32_t, 64> w;
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const uint32_t first = h + s1 + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const uint32_t second = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const State added = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += added[i];
}

}  // namespace

std::string checksum(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("no " + path.string() + ": copy the whole export");
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::vector<unsigned char> buffer(1 << 20);
  uint64_t bytes = 0;
  size_t left = 0;
  while (file.read(reinterpret_cast<char*>(buffer.data()), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0) {
    const size_t count = static_cast<size_t>(file.gcount());
    bytes += count;
    for (size_t at = 0; at + kBlock <= count; at += kBlock) absorb(state, &buffer[at]);
    left = count % kBlock;
    if (left != 0) std::memmove(buffer.data(), &buffer[count - left], left);  // only the last read has a rest
  }
  std::array<unsigned char, 2 * kBlock> end = {};
  std::memcpy(end.data(), buffer.data(), left);
  end[left] = 0x80;
  const size_t size = left + 9 <= kBlock ? kBlock : 2 * kBlock;
  for (int i = 0; i < 8; ++i) end[size - 1 - i] = static_cast<unsigned char>(8 * bytes >> 8 * i);
  for (size_t at = 0; at < size; at += kBlock) absorb(state, &end[at]);
  std::string text = "sha256:";
  for (const uint32_t word : state) {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", word);
    text += digits;
  }
  return text;
}

void verify(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::path record = folder / "export.json";
  std::ifstream file(record);
  if (!file) throw std::runtime_error("no " + record.string() + ": give the folder of an export, copied whole");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string quoted = std::regex_replace(name, std::regex("[.]"), "[.]");
  std::smatch match;
  if (!std::regex_search(text, match, std::regex("\"" + quoted + "\"\\s*:\\s*\\{[^}]*\"checksum\"\\s*:\\s*\"([^\"]*)\""))) {
    throw std::runtime_error(record.string() + " has no checksum of " + name + ": export again");
  }
  if (checksum(folder / name) != match[1].str()) {
    throw std::runtime_error((folder / name).string() + " has other bytes than were verified (checksum): copy it again, or export again");
  }
}

}  // namespace dlrm

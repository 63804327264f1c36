// The bytes of an export's files against the checksums in its export.json.
#pragma once

#include <filesystem>
#include <string>

namespace dlrm {

// sha256:<hex> of the file (FIPS 180-4).
std::string checksum(const std::filesystem::path& path);

// Throws std::runtime_error unless FOLDER/NAME has the bytes that FOLDER/export.json was written for.
void verify(const std::filesystem::path& folder, const std::string& name);

}  // namespace dlrm

#include "fastconv/core/packed_arguments.h"

namespace fastconv {
namespace {

constexpr int kStrideBits = 5, kPaddingBits = 9, kDilationBits = 8, kGroupsBits = 16, kPrecisionBits = 2;
static_assert(2 * (kStrideBits + kPaddingBits + kDilationBits) + kGroupsBits + kPrecisionBits < 63);

class Packer {
 public:
  void put(int64_t value, int bits) {
    fits_ = fits_ && value >= 0 && value >> bits == 0;
    packed_ = packed_ << bits | value;
  }
  std::optional<int64_t> packed() const { return fits_ ? std::optional(packed_) : std::nullopt; }

 private:
  int64_t packed_ = 0;
  bool fits_ = true;
};

// Gives back in the reverse order.
class Unpacker {
 public:
  explicit Unpacker(int64_t packed) : packed_(packed) {}
  int64_t take(int bits) {
    const int64_t value = packed_ & ((int64_t{1} << bits) - 1);
    packed_ >>= bits;
    return value;
  }
  Pair take_pair(int bits) {
    const int64_t w = take(bits);
    return {take(bits), w};
  }

 private:
  int64_t packed_;
};

}  // namespace

std::optional<int64_t> pack(const ConvArguments& arguments) {
  Packer packer;
  packer.put(arguments.stride.h, kStrideBits);
  packer.put(arguments.stride.w, kStrideBits);
  packer.put(arguments.padding.h, kPaddingBits);
  packer.put(arguments.padding.w, kPaddingBits);
  packer.put(arguments.dilation.h, kDilationBits);
  packer.put(arguments.dilation.w, kDilationBits);
  packer.put(arguments.groups, kGroupsBits);
  packer.put(static_cast<int64_t>(arguments.precision), kPrecisionBits);
  return packer.packed();
}

ConvArguments unpack(int64_t packed) {
  Unpacker unpacker(packed);
  ConvArguments arguments{};
  arguments.precision = static_cast<Precision>(unpacker.take(kPrecisionBits));
  arguments.groups = unpacker.take(kGroupsBits);
  arguments.dilation = unpacker.take_pair(kDilationBits);
  arguments.padding = unpacker.take_pair(kPaddingBits);
  arguments.stride = unpacker.take_pair(kStrideBits);
  return arguments;
}

}  // namespace fastconv

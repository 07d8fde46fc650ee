// A small value that those who know its type can read.
#pragma once

#include <cstddef>
#include <new>
#include <stdexcept>
#include <type_traits>

namespace fastconv {

// NOTES: std::any would do, but takes memory from the heap, several hundred times a plan.
template <size_t kBytes>
class Opaque {
 public:
  Opaque() = default;
  template <typename T>
    requires(!std::is_same_v<T, Opaque>)
  Opaque(const T& value) : type_(&kType<T>) {
    static_assert(sizeof(T) <= kBytes && alignof(T) <= alignof(std::max_align_t));
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
    ::new (bytes_) T(value);
  }

  template <typename T>
  bool holds() const {
    return type_ == &kType<T>;
  }
  // Throws std::logic_error if it is of another type.
  template <typename T>
  const T& as() const {
    if (!holds<T>()) throw std::logic_error("fastconv: another family's config or tiling");
    return *std::launder(reinterpret_cast<const T*>(bytes_));
  }

 private:
  template <typename T>
  static constexpr char kType = 0;

  alignas(std::max_align_t) std::byte bytes_[kBytes]{};
  const char* type_ = nullptr;
};

}  // namespace fastconv

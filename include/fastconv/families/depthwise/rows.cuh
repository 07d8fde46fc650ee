// Rows of a depthwise tile: from device memory to registers and back. Neighbouring threads see some of the same
// columns, which the first-level cache keeps for them.
#pragma once

#include "fastconv/families/depthwise/params.h"
#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

// `kCount` columns of a row, from a first one on, of kConfig.channels() channels each.
template <typename T, DepthwiseConfig kConfig, int kCount, RowAccesses kRead>
class RowColumns {
  static constexpr bool kRuns = kConfig.column_vectors();
  static constexpr int kVector = kRead.vector;
  static constexpr int kLead = kRead.lead, kWhole = kRead.whole, kTail = kRead.tail;
  static constexpr int kLeadRead = kRead.lead_read, kTailRead = kRead.tail_read;
  static constexpr int kAccesses = kRead.count();
  static_assert(kAccesses <= 32);
  template <int kElements>
  using Access = Words<(kElements > 0 ? kElements : 1) * static_cast<int>(sizeof(T))>;

 public:
  using Row = float[kCount][kConfig.channels()];
  // As it lies in memory.
  struct Raw {
    Access<kLeadRead> lead;
    Access<kVector> data[kWhole];
    Access<kTailRead> tail;
  };

  // `first`: a column, maybe outside; `step`: columns from one to the next.
  __device__ RowColumns(int32_t first, int32_t step, int32_t extent, int64_t column_stride)
      : step_bytes_(static_cast<int32_t>(step * column_stride * static_cast<int>(sizeof(T)))) {
    auto check = [&](int i, int32_t column) {
      if (column >= 0 && column < extent) exists_ |= 1u << i;
    };
    if (kLead > 0) check(kWhole + (kTail > 0), first + kLead - kLeadRead);
#pragma unroll
    for (int i = 0; i < kWhole + (kTail > 0); ++i) check(i, kRuns ? first + kLead + i * kVector : first + i * step);
  }

  // Zeros where there is no pixel. `row` points to the first column.
  __device__ Raw load(const T* row, bool row_exists) const {
    Raw raw;
    each_access(row, row_exists, [&](auto elements, int i, const char* address, bool exists) {
      auto& to = access<decltype(elements)::value>(raw, i);
      to = {};
      if (exists) to = *reinterpret_cast<const Access<decltype(elements)::value>*>(address);
    });
    return raw;
  }

  // The same to and from shared memory, where `slot` has room for kSlotBytes: an access of all threads after the other.
  static constexpr int kSlotBytes = kRead.elements() * static_cast<int>(sizeof(T)) * kDepthwiseThreads;
  __device__ void copy(uint32_t slot, const T* row, bool row_exists) const {
    each_access(row, row_exists, [&](auto elements, int i, const char* address, bool exists) {
      // Through L1, which has what neighbours copy too.
      ptx::async_copy<decltype(elements)::value* static_cast<int>(sizeof(T)), false>(
          place<decltype(elements)::value>(slot, i), address, exists);
    });
  }
  __device__ Raw read(uint32_t slot) const {
    Raw raw;
    if constexpr (kLead > 0) raw.lead = load_words<Access<kLeadRead>>(place<kLeadRead>(slot, -1));
#pragma unroll
    for (int i = 0; i < kWhole; ++i) raw.data[i] = load_words<Access<kVector>>(place<kVector>(slot, i));
    if constexpr (kTail > 0) raw.tail = load_words<Access<kTailRead>>(place<kTailRead>(slot, kWhole));
    return raw;
  }

  // The same of a row that lies there as columns, kColumnBytes apart; `address`: of the first.
  template <int kColumnBytes>
  __device__ static Raw read_columns(uint32_t address) {
    constexpr int kSize = sizeof(T);
    Raw raw;
    if constexpr (kLead > 0) raw.lead = load_words<Access<kLeadRead>>(address + (kLead - kLeadRead) * kSize);
#pragma unroll
    for (int i = 0; i < kWhole; ++i) {
      raw.data[i] = load_words<Access<kVector>>(address + (kRuns ? (kLead + i * kVector) * kSize : i * kColumnBytes));
    }
    if constexpr (kTail > 0) raw.tail = load_words<Access<kTailRead>>(address + (kLead + kWhole * kVector) * kSize);
    return raw;
  }

  __device__ static void widen_row(const Raw& raw, Row& values) {
    auto put = [&](const auto& access, auto elements, int first_column) {
      constexpr int kElements = decltype(elements)::value;
      const auto vector = reinterpret_cast<const Vector<T, kElements>&>(access);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int column = kRuns ? first_column + e : first_column;
        if (column >= 0 && column < kCount) values[column][kRuns ? 0 : e] = widen(vector.data[e]);
      }
    };
    if constexpr (kLead > 0) put(raw.lead, Elements<kLeadRead>{}, kLead - kLeadRead);
#pragma unroll
    for (int i = 0; i < kWhole; ++i) put(raw.data[i], Elements<kVector>{}, kRuns ? kLead + i * kVector : i);
    if constexpr (kTail > 0) put(raw.tail, Elements<kTailRead>{}, kLead + kWhole * kVector);
  }

  __device__ void store(T* row, const Row& values) const {
    static_assert(kLead == 0 && kTail == 0);
    each_access(row, true, [&](auto, int i, const char* address, bool exists) {
      Vector<T, kVector> v;
#pragma unroll
      for (int e = 0; e < kVector; ++e) v.data[e] = narrow<T>(kRuns ? values[i * kVector + e][0] : values[i][e]);
      if (exists) *reinterpret_cast<Vector<T, kVector>*>(const_cast<char*>(address)) = v;
    });
  }

 private:
  template <int kElements>
  using Elements = std::integral_constant<int, kElements>;

  template <int kElements>
  __device__ static Access<kElements>& access(Raw& raw, int i) {
    if constexpr (kElements == kVector) {
      if (i >= 0 && i < kWhole) return raw.data[i];
    }
    return reinterpret_cast<Access<kElements>&>(i < 0 ? reinterpret_cast<char&>(raw.lead)
                                                      : reinterpret_cast<char&>(raw.tail));
  }
  // The whole vectors come first, so that all lie at multiples of their size.
  template <int kElements>
  __device__ static uint32_t place(uint32_t slot, int i) {
    const int before = i < 0 ? kWhole * kVector + kTailRead : i * kVector;
    return slot +
           (before * kDepthwiseThreads + static_cast<int>(threadIdx.x) * kElements) * static_cast<int>(sizeof(T));
  }
  template <typename Read>
  __device__ static Read load_words(uint32_t address) {
    if constexpr (sizeof(Read) == 16) {
      const uint4 v = ptx::load_shared16(address);
      return {{v.x, v.y, v.z, v.w}};
    } else if constexpr (sizeof(Read) == 8) {
      const uint2 v = ptx::load_shared8(address);
      return {{v.x, v.y}};
    } else if constexpr (sizeof(Read) == 4) {
      return {{ptx::load_shared4(address)}};
    } else {
      return {{ptx::load_shared2(address)}};
    }
  }

  // Calls f(elements, access, address, exists); the access before the whole vectors is -1, that after them kWhole.
  template <typename F>
  __device__ void each_access(const T* row, bool row_exists, F&& f) const {
    const auto* bytes = reinterpret_cast<const char*>(row);
    // Columns' addresses are worked out for each row: a multiply-add each, where keeping them would take registers.
    int32_t step_bytes = step_bytes_;
    asm volatile("" : "+r"(step_bytes));
    const uint32_t exists = row_exists ? exists_ : 0;
    auto each = [&](auto exist) {
      auto one = [&](auto elements, int i, int column) {
        const char* address =
            kRuns ? bytes + column * static_cast<int>(sizeof(T)) : bytes + int64_t{column} * step_bytes;
        f(elements, i, address, decltype(exist)::value || (exists >> (i < 0 ? kAccesses - 1 : i) & 1) != 0);
      };
      if constexpr (kLead > 0) one(Elements<kLeadRead>{}, -1, kLead - kLeadRead);
#pragma unroll
      for (int i = 0; i < kWhole; ++i) one(Elements<kVector>{}, i, kRuns ? kLead + i * kVector : i);
      if constexpr (kTail > 0) one(Elements<kTailRead>{}, kWhole, kLead + kWhole * kVector);
    };
    // Lanes of channels have the same columns, so that most warps need no predicates.
    if (kConfig.lanes == Lanes::kChannels && exists == (uint64_t{1} << kAccesses) - 1) {
      each(std::true_type{});
    } else {
      each(std::false_type{});
    }
  }

  uint32_t exists_ = 0;
  int32_t step_bytes_;
};

// Rows one after the other: of the source, those that a thread's outputs see; of wgrad's dy, the outputs.
template <typename T, DepthwiseConfig kConfig, int kCount, RowAccesses kRead>
class RowReader {
 public:
  using Columns = RowColumns<T, kConfig, kCount, kRead>;
  using Row = typename Columns::Row;
  using Raw = typename Columns::Raw;

  // From row and column `row`, `column` on, which may lie outside; `rows` and those after it do not exist.
  __device__ RowReader(const void* channel, const Strides& strides, int32_t column, int32_t column_step,
                       int32_t extent_w, int32_t row, int32_t row_step, int32_t rows)
      : row_(row),
        step_(row_step),
        rows_(rows),
        stride_(row_step * strides.h),
        next_(static_cast<const T*>(channel) + row * strides.h + column * strides.w),
        columns_(column, column_step, extent_w, strides.w) {}

  __device__ Raw load_next() {
    const Raw raw = columns_.load(next_, exists());
    skip(1);
    return raw;
  }
  __device__ void copy_next(uint32_t slot) {
    columns_.copy(slot, next_, exists());
    skip(1);
  }
  __device__ Raw read(uint32_t slot) const { return columns_.read(slot); }
  __device__ void skip(int32_t rows) {
    next_ += rows * stride_;
    row_ += rows * step_;
  }
  // The rows from here to the first one that exists, and to the one after the last.
  __device__ int32_t rows_before() const { return row_ >= 0 ? 0 : (step_ - 1 - row_) / step_; }
  __device__ int32_t rows_until_end() const { return row_ >= rows_ ? 0 : (rows_ - row_ + step_ - 1) / step_; }

 private:
  __device__ bool exists() const { return row_ >= 0 && row_ < rows_; }

  int32_t row_, step_, rows_;
  int64_t stride_;
  const T* next_;
  Columns columns_;
};

template <typename T, DepthwiseConfig kConfig>
class SourceRows : public RowReader<T, kConfig, kConfig.across().seen(kConfig.columns), RowAccesses::source(kConfig)> {
  using Reader = RowReader<T, kConfig, kConfig.across().seen(kConfig.columns), RowAccesses::source(kConfig)>;

 public:
  __device__ SourceRows(const DepthwiseParams& params, const DepthwisePlace& at)
      : Reader(static_cast<const T*>(params.source) + at.image * params.source_strides.n +
                   params.by_filters.div(at.channel) * params.source_strides.c,
               params.source_strides, params.w.source(at.column), params.w.source_step, params.w.source_extent,
               params.h.source(at.row), params.h.source_step,
               min32(params.h.source_extent,
                     params.h.source(at.row) + kConfig.seen(params.h.outputs(at.row)) * params.h.source_step)) {}
};

// Rows that are on their way to a thread, kAhead of them, the next one first: in registers,
template <typename Reader, int kAhead>
class RowQueue {
 public:
  __device__ RowQueue(Reader& reader, uint32_t) {
#pragma unroll
    for (auto& row : rows_) row = reader.load_next();
  }
  __device__ void pop(Reader& reader, typename Reader::Row& values) {
    const auto row = rows_[0];
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) rows_[i] = rows_[i + 1];
    asm volatile("" ::: "memory");  // keeps the compiler from loading further ahead, with more registers
    rows_[kAhead - 1] = reader.load_next();
    Reader::Columns::widen_row(row, values);
  }
  __device__ void pop_alone(Reader& reader, typename Reader::Row& values) { pop(reader, values); }
  __device__ void drain() {}

 private:
  typename Reader::Raw rows_[kAhead];
};

// or in shared memory. A thread reads what it has copied itself, so that threads need not wait for each other. A copy
// goes where the row before the last one was, which has been read. Where a thread has another ring, which takes kOthers
// rows while this one takes kAhead, those copies are waited for no sooner.
template <typename Reader, int kAhead, int kOthers>
class RowRing {
 public:
  __device__ RowRing(Reader& reader, uint32_t smem) : begin_(smem), read_(smem), write_(smem) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      copy(reader);
      if (kOthers > 0) ptx::async_copy_commit();  // in place of the other ring's
    }
  }
  __device__ void pop(Reader& reader, typename Reader::Row& values) { pop<kAhead - 1 + kOthers>(reader, values); }
  // Before shared memory is used again: copies of a thread have no order but this, and barriers do not wait for them.
  __device__ void drain() { ptx::async_copy_wait<0>(); }
  // While the other ring takes none.
  __device__ void pop_alone(Reader& reader, typename Reader::Row& values) { pop<kAhead - 1>(reader, values); }

 private:
  template <int kPending>
  __device__ void pop(Reader& reader, typename Reader::Row& values) {
    ptx::async_copy_wait<kPending>();
    const auto row = reader.read(read_);
    read_ = after(read_);
    copy(reader);
    Reader::Columns::widen_row(row, values);
  }
  __device__ void copy(Reader& reader) {
    reader.copy_next(write_);
    ptx::async_copy_commit();
    write_ = after(write_);
  }
  __device__ uint32_t after(uint32_t slot) const {
    slot += Reader::Columns::kSlotBytes;
    return slot == begin_ + (kAhead + 1) * Reader::Columns::kSlotBytes ? begin_ : slot;
  }

  uint32_t begin_, read_, write_;
};

template <typename T, DepthwiseConfig kConfig, typename Reader>
using Rows =
    std::conditional_t<rows_in_smem(kConfig, sizeof(T)),
                       RowRing<Reader, kConfig.ahead,
                               kConfig.kind == DepthwiseKind::kWeights ? kConfig.ahead / kConfig.rows_a_shift() : 0>,
                       RowQueue<Reader, kConfig.ahead>>;

// Calls f(slot, tap row, column, tap column, source column) for each product of a row with the outputs that it meets:
// row `row` after a shift.
template <DepthwiseConfig kConfig, typename F>
__device__ __forceinline__ void each_product(int row, F&& f) {
  constexpr DepthwiseConfig kAcross = kConfig.across();
#pragma unroll
  for (int slot = 0; slot < kConfig.slots(); ++slot) {
    if (kConfig.row_tap(slot, row) >= kConfig.taps) continue;
#pragma unroll
    for (int b = 0; b < kAcross.seen(kConfig.columns); ++b) {
#pragma unroll
      for (int k = 0; k < kConfig.columns; ++k) {
        if (kAcross.meets(k, b)) f(slot, kConfig.row_tap(slot, row), k, kAcross.tap(k, b), b);
      }
    }
  }
}

// Moves up what the slots hold; zeros come behind.
template <DepthwiseConfig kConfig, int kColumns, int kChannels>
__device__ __forceinline__ void shift_slots(float (&slots)[kConfig.slots()][kColumns][kChannels]) {
#pragma unroll
  for (int j = 0; j < kConfig.slots(); ++j) {
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        slots[j][k][c] = j + kConfig.shift() < kConfig.slots() ? slots[j + kConfig.shift()][k][c] : 0.f;
      }
    }
  }
}

// False if a product with zero is not zero: then rows of padding must not be left out.
template <int kColumns, int kChannels>
__device__ bool all_finite(const float (&row)[kColumns][kChannels]) {
  float zero = 0;
#pragma unroll
  for (const auto& column : row) {
#pragma unroll
    for (const float value : column) zero += 0.f * value;
  }
  return zero == 0.f;
}

}  // namespace fastconv

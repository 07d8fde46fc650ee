// Depthwise convolution along one dimension, see sequence.h: rows of shared memory from and to device memory, and the
// products of forward pass and input gradient.
#pragma once

#include <type_traits>

#include "fastconv/families/depthwise/sequence.h"
#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/epilogue.cuh"

namespace fastconv {

extern __shared__ __align__(16) unsigned char depthwise_sequence_smem[];

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <DepthwiseSequenceConfig>
inline constexpr bool kSequenceCompiled = true;
#else
template <DepthwiseSequenceConfig kConfig>
inline constexpr bool kSequenceCompiled = !kConfig.tensor();
#endif

// f(kPiece, as a constant) for the tensor's pieces of a sequence.
template <int kMost, typename F>
__device__ __forceinline__ void with_sequence_piece(int32_t piece, F&& f) {
  if (piece == kMost) {
    f(std::integral_constant<int, kMost>{});
  } else if constexpr (kMost > 1) {
    with_sequence_piece<kMost / 2>(piece, f);
  }
}

// The rows of a block's channels, and what is between them and a tensor's sequences.
template <typename T, DepthwiseSequenceConfig kConfig>
struct SequenceRows {
  static constexpr int kPiece = kConfig.piece();
  static constexpr int kWord = 4 / sizeof(T);  // elements
  const DepthwiseSequenceParams& params;
  T* rows;

  __device__ T* row(int32_t index) const { return rows + index * params.pitch; }

  // Of one sequence, by a warp: what the segment that begins at `first` sees, zeros around. `lead`, `skipped`: where
  // position 0 of `limit` lies in the row, and what comes before it in its first piece.
  __device__ void stage(const SequenceTensor& tensor, const T* sequence, int32_t index, int32_t lane, int32_t first,
                        int32_t limit, int32_t skipped) const {
    T* to = row(index);
    if (has_strands()) {
      scatter(tensor, sequence, to, lane, first - skipped, limit + skipped,
              [&](int32_t at) { return at < skipped ? -1 : sequence_index(params, at - skipped); });
      return;
    }
    if (is_spread(tensor)) {
      const int32_t base = static_cast<int32_t>(params.stride.div(max(first, 0))) / kPiece * kPiece;
      const int32_t before = first - base * tensor.spread;
      scatter(tensor, sequence, to, lane, base, (limit + before + tensor.spread - 1) / tensor.spread,
              [&](int32_t at) { return at * tensor.spread - before; });
      return;
    }
    // Of the row, what exists.
    const int32_t low = skipped - first, high = skipped + min(limit, tensor.length - first);
    sequence += first - skipped;
    with_sequence_piece<kPiece>(tensor.piece, [&]<int kSize>(std::integral_constant<int, kSize>) {
      constexpr int kBytes = kSize * sizeof(T);
      if constexpr (kBytes >= 4) {
        const uint32_t row_address = ptx::smem_address(to);
#pragma unroll 1
        for (int32_t i = kSize * lane; i < params.extent; i += 32 * kSize) {
          const bool read = i >= low && i < high;
          const uint32_t place = row_address + kConfig.place(i) * static_cast<uint32_t>(sizeof(T));
          ptx::async_copy<kBytes>(place, read ? sequence + i : params.source, read);
        }
      } else {
        stage_shifted(sequence, to, lane, low, high, tensor.length - (first - skipped));
      }
    });
  }

  // Targets of a sequence, from `first` on.
  __device__ void store(const SequenceTensor& tensor, T* sequence, int32_t index, int32_t lane, int32_t first) const {
    const T* from = row(index);
    T* to = sequence + first;
    const int32_t limit = min(params.segment, tensor.extent() - first);
    if (has_strands()) {
      gather(tensor, from, to, lane, limit, [&](int32_t at) { return sequence_index(params, at); });
    } else if (is_spread(tensor)) {
      gather(tensor, from, sequence + params.stride.div(first), lane, params.stride.div(limit + tensor.spread - 1),
             [&](int32_t at) { return at * tensor.spread; });
    } else {
      with_sequence_piece<kPiece>(tensor.piece, [&]<int kSize>(std::integral_constant<int, kSize>) {
        using Piece = Words<kSize * sizeof(T)>;
        for (int32_t i = kSize * lane; i < limit; i += 32 * kSize) {
          *reinterpret_cast<Piece*>(to + i) = *reinterpret_cast<const Piece*>(from + kConfig.place(i));
        }
      });
    }
  }

  // The same of all channels, by all warps. `count`: of a strand.
  __device__ void stage_all(const SequenceTensor& tensor, const T* sequences, int32_t channels, int32_t first,
                            int32_t limit, int32_t skipped, int32_t count) const {
    if (!tensor.inner) {
      for (int32_t r = static_cast<int32_t>(threadIdx.x / 32); r < params.rows; r += kConfig.threads / 32) {
        stage(tensor, sequences + (r < channels ? r : 0) * tensor.channel, r, static_cast<int32_t>(threadIdx.x % 32),
              first, r < channels ? limit : 0, skipped);
      }
      return;
    }
    const bool strands = has_strands();
    stage_pixels(tensor, sequences, channels, [&](int32_t index) {
      const int32_t position = strands ? sequence_position(params, index, count) : index - skipped;
      const int32_t at = first + position;
      return position >= 0 && position < limit && at >= 0 && at < tensor.extent() ? element(tensor, at) : -1;
    });
  }
  __device__ void store_all(const SequenceTensor& tensor, T* sequences, int32_t channels, int32_t first) const {
    if (!tensor.inner) {
      for (int32_t r = static_cast<int32_t>(threadIdx.x / 32); r < channels; r += kConfig.threads / 32) {
        store(tensor, sequences + r * tensor.channel, r, static_cast<int32_t>(threadIdx.x % 32), first);
      }
      return;
    }
    const bool strands = has_strands();
    const int32_t limit = min(params.segment, tensor.extent() - first);
    store_pixels(tensor, sequences, channels, [&](int32_t index) {
      const int32_t position = strands ? sequence_position(params, index, params.count) : index;
      return position >= 0 && position < limit ? element(tensor, first + position) : -1;
    });
  }

 private:
  // With gaps neither.
  __device__ bool has_strands() const { return !kConfig.gaps && params.dilation.divisor > 1; }
  __device__ bool is_spread(const SequenceTensor& tensor) const { return !kConfig.gaps && tensor.spread > 1; }

  // Which one has a position, -1 for none.
  __device__ int32_t element(const SequenceTensor& tensor, int32_t position) const {
    if (!is_spread(tensor)) return position;
    int32_t index, between;
    params.stride.divmod(position, index, between);
    return between == 0 ? index : -1;
  }

  // Elements from `base` on, with which a piece begins, to place_of(i) in the row, or before it: then to none.
  template <typename PlaceOf>
  __device__ __forceinline__ void scatter(const SequenceTensor& tensor, const T* sequence, T* to, int32_t lane,
                                          int32_t base, int32_t end, PlaceOf&& place_of) const {
#pragma unroll 1
    for (int32_t i = kPiece * lane; i < params.extent; i += 32 * kPiece) {
      *reinterpret_cast<uint4*>(to + kConfig.place(i)) = uint4{};
    }
    __syncwarp();
    const int32_t low = -base, high = min(tensor.length - base, end);  // what exists
    sequence += base;
    with_sequence_piece<kPiece>(tensor.piece, [&]<int kSize>(std::integral_constant<int, kSize>) {
      constexpr int kBytes = kSize * sizeof(T), kBatch = kSize > 1 ? 2 : 8, kStep = 32 * kSize;
#pragma unroll 1
      for (int32_t i = kSize * lane; i < end; i += kBatch * kStep) {
        Words<kBytes> pieces[kBatch] = {};
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int32_t at = i + b * kStep;
          if (at >= low && at < high) pieces[b] = *reinterpret_cast<const Words<kBytes>*>(sequence + at);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const auto& elements = reinterpret_cast<const T(&)[kSize]>(pieces[b]);
#pragma unroll
          for (int e = 0; e < kSize; ++e) {
            const int32_t at = i + b * kStep + e, place = place_of(at);
            if (at < end && place >= 0) to[kConfig.place(place)] = elements[e];
          }
        }
      }
    });
  }

  // Targets that lie in place_of(i) of the row.
  template <typename PlaceOf>
  __device__ __forceinline__ void gather(const SequenceTensor& tensor, const T* from, T* to, int32_t lane,
                                         int32_t limit, PlaceOf&& place_of) const {
    with_sequence_piece<kPiece>(tensor.piece, [&]<int kSize>(std::integral_constant<int, kSize>) {
#pragma unroll 1
      for (int32_t i = kSize * lane; i < limit; i += 32 * kSize) {
        Words<kSize * sizeof(T)> piece;
        auto& elements = reinterpret_cast<T(&)[kSize]>(piece);
#pragma unroll
        for (int e = 0; e < kSize; ++e) elements[e] = from[kConfig.place(place_of(i + e))];
        *reinterpret_cast<Words<kSize * sizeof(T)>*>(to + i) = piece;
      }
    });
  }

  // Elements of 16 bits that begin anywhere: whole pieces of memory, shifted to where they belong. `length`: of what
  // exists from the row's first element on.
  __device__ void stage_shifted(const T* sequence, T* to, int32_t lane, int32_t low, int32_t high,
                                int32_t length) const {
    constexpr int kBatch = 2, kWords = kSequencePieceBytes / 4;
    using Piece = Words<kSequencePieceBytes>;
    const auto before = static_cast<int32_t>(reinterpret_cast<uintptr_t>(sequence) % kSequencePieceBytes / sizeof(T));
    const T* const pieces = sequence - before;
#pragma unroll 1
    for (int32_t i = kPiece * lane; i < params.extent; i += kBatch * 32 * kPiece) {
      Piece read[kBatch][2] = {};
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t at = i + b * 32 * kPiece;
        if (at - before >= low && at - before + 2 * kPiece <= length && at < high) {
          read[b][0] = *reinterpret_cast<const Piece*>(pieces + at);
          read[b][1] = *reinterpret_cast<const Piece*>(pieces + at + kPiece);
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t at = i + b * 32 * kPiece;
        if (at >= params.extent) break;
        uint32_t words[2 * kWords];
#pragma unroll
        for (int k = 0; k < 2 * kWords; ++k) words[k] = read[b][k / kWords].data[k % kWords];
#pragma unroll
        for (int k = 0; k < 2 * kWords - 2; ++k) words[k] = before & 4 ? words[k + 2] : words[k];
#pragma unroll
        for (int k = 0; k < kWords + 1; ++k) words[k] = before & 2 ? words[k + 1] : words[k];
        Piece piece;
#pragma unroll
        for (int k = 0; k < kWords; ++k)
          piece.data[k] = __byte_perm(words[k], words[k + 1], before & 1 ? 0x5432 : 0x3210);
        auto& elements = reinterpret_cast<T(&)[kPiece]>(piece);
        // At the ends one by one.
        if (at - before < low || at - before + 2 * kPiece > length || at + kPiece > high) {
#pragma unroll
          for (int e = 0; e < kPiece; ++e) {
            elements[e] = at + e >= low && at + e < high ? sequence[at + e] : narrow<T>(0.f);
          }
        }
        *reinterpret_cast<Piece*>(to + kConfig.place(at)) = piece;
      }
    }
  }

  // f(row of the first of a piece's channels, index, whether they exist): of all pieces, kWord indices at a time.
  template <int kBatch, typename F>
  __device__ __forceinline__ void each_word(int32_t channels, int32_t end, F&& f) const {
    const int32_t chunks = 1 << params.chunks_log2, all = end / kWord << params.chunks_log2;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < all; i += kBatch * kConfig.threads) {
      f([&](int b) {
        const int32_t item = i + b * kConfig.threads, r = (item & (chunks - 1)) * kPiece;
        return Word{r, (item >> params.chunks_log2) * kWord, item < all && r < channels, item < all};
      });
    }
  }
  struct Word {
    int32_t row, index;
    bool exists, staged;
  };

  // Of neighbouring positions, what channel c has.
  static __device__ uint32_t word_of(const Words<kSequencePieceBytes> (&pixels)[kWord], int c) {
    if constexpr (kWord == 1) return pixels[0].data[c];
    return __byte_perm(pixels[0].data[c / kWord], pixels[kWord - 1].data[c / kWord], c % 2 == 0 ? 0x5410 : 0x7632);
  }

  template <typename PositionAt>
  __device__ void stage_pixels(const SequenceTensor& tensor, const T* sequence, int32_t channels,
                               PositionAt&& position_at) const {
    constexpr int kBatch = 4 / kWord;
    each_word<kBatch>(channels, params.extent, [&](auto&& word) {
      Words<kSequencePieceBytes> pixels[kBatch][kWord] = {};
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const Word at = word(b);
#pragma unroll
        for (int e = 0; e < kWord; ++e) {
          const int32_t position = position_at(at.index + e);
          if (at.exists && position >= 0) {
            ptx::load_global16_once(sequence + at.row + position * tensor.step, pixels[b][e].data);
          }
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const Word at = word(b);
        if (!at.staged) break;
        uint32_t* to = reinterpret_cast<uint32_t*>(row(at.row) + kConfig.place(at.index));
#pragma unroll
        for (int c = 0; c < kPiece; ++c) to[c * params.pitch / kWord] = word_of(pixels[b], c);
      }
    });
  }

  template <typename PositionAt>
  __device__ void store_pixels(const SequenceTensor& tensor, T* sequence, int32_t channels,
                               PositionAt&& position_at) const {
    each_word<1>(channels, (params.targets + kWord - 1) / kWord * kWord, [&](auto&& word) {
      const auto [r, index, exists, staged] = word(0);
      Words<kSequencePieceBytes> pixels[kWord];
      const uint32_t* from = reinterpret_cast<const uint32_t*>(row(r) + kConfig.place(index));
#pragma unroll
      for (int c = 0; c < kPiece; c += kWord) {
        const uint32_t first = from[c * params.pitch / kWord];
        if constexpr (kWord == 1) {
          pixels[0].data[c] = first;
        } else {
          const uint32_t second = from[(c + 1) * params.pitch / kWord];
          pixels[0].data[c / 2] = __byte_perm(first, second, 0x5410);
          pixels[1].data[c / 2] = __byte_perm(first, second, 0x7632);
        }
      }
#pragma unroll
      for (int e = 0; e < kWord; ++e) {
        const int32_t position = position_at(index + e);
        if (exists && position >= 0) {
          *reinterpret_cast<Words<kSequencePieceBytes>*>(sequence + r + position * tensor.step) = pixels[e];
        }
      }
    });
  }
};

// Where a value or a tap was not finite, products with zeros may be NaNs: a target once more, of what it has alone.
template <typename T, DepthwiseSequenceConfig kConfig>
__device__ float sequence_target(const DepthwiseSequenceParams& params, const T* row, const T* taps, int32_t target) {
  float sum = 0;
  for (int32_t t = 0; t < params.taps; ++t) {
    // Not what a stride has between. Segments begin at multiples of it.
    if ((target + t - params.padding) % params.from.spread != 0) continue;
    sum = fmaf(widen(row[kConfig.place(params.lead + target + t)]), widen(taps[t]), sum);
  }
  return sum;
}
// Infinities of either sign make NaNs of a sum, or stay.
template <int kTargets>
__device__ __forceinline__ bool finite(const float (&sums)[kTargets]) {
  float all = 0;
#pragma unroll
  for (const float sum : sums) all += sum;
  return fabsf(all) < INFINITY;
}

// Elements of a row that follow each other, from a whole piece on.
template <DepthwiseSequenceConfig kConfig, typename T, int kCount>
__device__ __forceinline__ void read_run(const T* row, int32_t at, float (&values)[kCount]) {
  constexpr int kPiece = kConfig.piece();
#pragma unroll
  for (int i = 0; i < kCount; i += kPiece) {
    const auto words = *reinterpret_cast<const Words<kSequencePieceBytes>*>(row + kConfig.place(at + i));
    const auto& elements = reinterpret_cast<const T(&)[kPiece]>(words);
#pragma unroll
    for (int k = 0; k < kPiece; ++k) values[i + k] = widen(elements[k]);
  }
}
template <DepthwiseSequenceConfig kConfig, typename T>
__device__ __forceinline__ void write_run(T* row, int32_t at, const float (&values)[kSequenceRun]) {
  constexpr int kPiece = kConfig.piece();
#pragma unroll
  for (int i = 0; i < kSequenceRun; i += kPiece) {
    Words<kSequencePieceBytes> words;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kPiece == 4) {
        words.data[k] = __float_as_uint(values[i + k]);
      } else {
        words.data[k] = pack2<T>(values[2 * k], values[2 * k + 1]);
      }
    }
    *reinterpret_cast<Words<kSequencePieceBytes>*>(row + kConfig.place(at + i)) = words;
  }
}

// The taps of a channel as a lane needs them: in registers for tensor cores, otherwise where they lie, zeros around.
template <typename T, DepthwiseSequenceConfig kConfig>
struct SequenceTaps {
  const T* first;
  uint32_t band[kConfig.tensor() ? kConfig.steps : 1][2];

  // Lane i has of the band two taps of target i / 4.
  __device__ SequenceTaps(const DepthwiseSequenceParams& params, const T* taps, int32_t lane) : first(taps) {
    if constexpr (kConfig.tensor()) {
      first += kSequenceBefore;
#pragma unroll
      for (int k = 0; k < 2 * kConfig.steps; ++k) {
        Vector<T, 2> word;
#pragma unroll
        for (int e = 0; e < 2; ++e) word.data[e] = first[8 * k + 2 * (lane % 4) + e - lane / 4 - params.lead];
        band[k / 2][k % 2] = *reinterpret_cast<const uint32_t*>(&word);
      }
    }
  }
};

// A row of targets, tile by tile, by a warp. Those of float32 take the place of the source's; of 16 bits two are given
// to store(index, word).
template <typename T, DepthwiseSequenceConfig kConfig, typename Store>
__device__ __forceinline__ void convolve_sequence(const DepthwiseSequenceParams& params, T* row,
                                                  const SequenceTaps<T, kConfig>& taps, int32_t lane,
                                                  const FilterEpilogue<float>& finish, Store&& store) {
  constexpr int kTile = kConfig.tile();
  if constexpr (kConfig.tensor()) {
    // Windows are eight elements apart: rows of matrices that lie one after the other. Of targets lane i has elements
    // 2 * (i % 4) and the next of blocks i / 4 and i / 4 + 8: words side by side.
    const uint32_t windows = ptx::smem_address(row) + 16 * (lane % 16) + 16 * (lane / 16);
#pragma unroll 1
    for (int32_t tile = 0; tile < params.targets; tile += kTile) {
      float sums[4] = {};
#pragma unroll
      for (int k = 0; k < kConfig.steps; ++k) {
        uint32_t window[4];
        ptx::ldmatrix4<false>(windows + 2 * (tile + 16 * k), window);
        ptx::mma(T{}, sums, window, taps.band[k][0], taps.band[k][1]);
      }
      if (!finite(sums)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int32_t target = tile + 64 * (i / 2) + 2 * lane + i % 2;
          sums[i] = sequence_target<T, kConfig>(params, row, taps.first, target);
        }
      }
      const int32_t target = tile + 2 * lane;
      uint32_t words[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        words[i] = pack2<T>(finish(sums[2 * i]), finish(sums[2 * i + 1]));
      }
      store(target, words[0]), store(target + 64, words[1]);
    }
  } else if constexpr (kConfig.gaps) {
#pragma unroll 1
    for (int32_t tile = 0; tile < params.targets; tile += kTile) {
      const int32_t target = tile + kSequenceRun * lane;
      float sums[kSequenceRun] = {}, values[kSequenceRun];
#pragma unroll 1
      for (int32_t t = 0; t < params.taps; ++t) {
        read_run<kConfig>(row, target + t * params.gap, values);
        const float tap = widen(taps.first[t]);
#pragma unroll
        for (int k = 0; k < kSequenceRun; ++k) sums[k] = fmaf(values[k], tap, sums[k]);
      }
      __syncwarp();
#pragma unroll
      for (float& sum : sums) sum = finish(sum);
      write_run<kConfig>(row, target, sums);
    }
  } else {
    // A lane has eight targets that follow each other, and meets four taps at once.
    const auto read = [&](int32_t at) { return *reinterpret_cast<const float4*>(row + kConfig.place(at)); };
    for (int32_t tile = 0; tile < params.targets; tile += kTile) {
      const int32_t target = tile + kSequenceRun * lane;
      float sums[kSequenceRun] = {}, window[12];
      const auto set = [&](int at, const float4& four) {
        window[at] = four.x, window[at + 1] = four.y, window[at + 2] = four.z, window[at + 3] = four.w;
      };
      set(0, read(target)), set(4, read(target + 4));
#pragma unroll 3
      for (int32_t t = 0; t < params.lead + params.taps; t += 4) {
        set(8, read(target + t + 8));
        const float4 four = *reinterpret_cast<const float4*>(taps.first + t);
        const float tap[] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int k = 0; k < kSequenceRun; ++k) sums[k] = fmaf(window[k + e], tap[e], sums[k]);
        }
#pragma unroll
        for (int k = 0; k < kSequenceRun; ++k) window[k] = window[k + 4];
      }
      if (!finite(sums)) {
#pragma unroll
        for (int k = 0; k < kSequenceRun; ++k) {
          sums[k] = sequence_target<T, kConfig>(params, row, taps.first + params.lead, target + k);
        }
      }
      __syncwarp();
#pragma unroll
      for (float& sum : sums) sum = finish(sum);
      write_run<kConfig>(row, target, sums);
    }
  }
}

// The segments of a block, and its channels.
struct SequenceSlice {
  int32_t channel, channels, index;
  int32_t first, end;
  int32_t warp, lane;

  __device__ explicit SequenceSlice(const DepthwiseSequenceParams& params)
      : warp(static_cast<int32_t>(threadIdx.x / 32)), lane(static_cast<int32_t>(threadIdx.x % 32)) {
    params.by_channels.divmod(static_cast<int32_t>(blockIdx.x), index, channel);
    channel *= params.rows;
    channels = min(params.rows, params.channels - channel);
    first = index * params.slice_units, end = first + min(params.slice_units, params.units - first);
  }
  // From a tensor's begin to a segment's sequence of channel `r` of the block.
  __device__ int64_t offset(const SequenceTensor& tensor, const SequenceUnit& unit, int32_t r) const {
    return unit.image * tensor.image + unit.row * tensor.row + (channel + r) * tensor.channel;
  }
};

// f(segment, buffer) for each, by a warp, while the next one is on its way, which `stage` brings to the other buffer.
template <typename Stage, typename F>
__device__ __forceinline__ void each_segment(const SequenceSlice& slice, Stage&& stage, F&& f) {
  if (slice.first < slice.end) stage(slice.first, 0);
  ptx::async_copy_commit();
  for (int32_t index = slice.first; index < slice.end; ++index) {
    const int32_t buffer = (index - slice.first) % 2;
    if (index + 1 < slice.end) stage(index + 1, 1 - buffer);
    ptx::async_copy_commit();
    ptx::async_copy_wait<1>();
    __syncwarp();
    f(index, buffer);
    __syncwarp();
  }
}

// Forward pass and input gradient.
template <typename T, typename Line>
__global__ void __launch_bounds__(Line::kConfig.threads, Line::kConfig.blocks())
    depthwise_sequence(const __grid_constant__ DepthwiseSequenceParams params) {
  ptx::follow_previous_kernel();
  if constexpr (kSequenceCompiled<Line::kConfig>) {
    constexpr DepthwiseSequenceConfig kConfig = Line::kConfig;
    constexpr int kWarps = kConfig.threads / 32;
    const SequenceSlice slice(params);
    const auto [channel, channels, index, first, end, warp, lane] = slice;
    T* const shared = static_cast<T*>(ptx::block_memory(depthwise_sequence_smem));
    T* const all_taps = shared + params.buffers * params.rows * params.pitch;
    const SequenceRows<T, kConfig> rows{params, shared};
    const auto* source = static_cast<const T*>(params.source);
    auto* target = static_cast<T*>(params.target);

    // Zeros before the first tap, and after the last.
    const int32_t before = kConfig.tensor() ? kSequenceBefore : params.lead;
    for (int32_t r = warp; r < channels; r += kWarps) {
      const T* from = static_cast<const T*>(params.filter) + (channel + r) * params.filter_strides.n;
      for (int32_t i = lane; i < params.taps_pitch; i += 32) {
        const int32_t t = i - before;
        all_taps[r * params.taps_pitch + i] = t >= 0 && t < params.taps ? from[t * params.filter_step] : narrow<T>(0.f);
      }
    }
    __syncwarp();
    const auto taps_of = [&](int32_t r) {
      return SequenceTaps<T, kConfig>(params, all_taps + r * params.taps_pitch, lane);
    };
    const Epilogue<T> epilogue(params.epilogue);
    // Lanes may be a tile apart in what they have read.
    const auto in_place = [](T* row) {
      return [row](int32_t at, uint32_t word) {
        __syncwarp();
        *reinterpret_cast<uint32_t*>(row + at) = word;
      };
    };
    if (!params.pixels) {
      if (warp >= channels) return;
      const SequenceTaps<T, kConfig> taps = taps_of(warp);
      const FilterEpilogue<float> finish = epilogue.of(channel + warp);
      each_segment(
          slice,
          [&](int32_t next, int32_t buffer) {
            const SequenceUnit unit(params, next);
            rows.stage(params.from, source + slice.offset(params.from, unit, warp), buffer * params.rows + warp, lane,
                       unit.first - params.padding, params.span(), params.skipped);
          },
          [&](int32_t now, int32_t buffer) {
            const SequenceUnit unit(params, now);
            const int32_t r = buffer * params.rows + warp;
            T* const row = rows.row(r);
            T* const to = target + slice.offset(params.to, unit, warp);
            if (kConfig.tensor() && params.words) {
              const int32_t limit = min(params.segment, params.to.length - unit.first);
              auto* words = reinterpret_cast<uint32_t*>(to + unit.first);
              convolve_sequence<T, kConfig>(params, row, taps, lane, finish, [&](int32_t at, uint32_t word) {
                if (at < limit) words[at / 2] = word;
              });
              return;
            }
            convolve_sequence<T, kConfig>(params, row, taps, lane, finish, in_place(row));
            __syncwarp();
            rows.store(params.to, to, r, lane, unit.first);
          });
      return;
    }
    for (int32_t now = first; now < end; ++now) {
      const SequenceUnit unit(params, now);
      rows.stage_all(params.from, source + slice.offset(params.from, unit, 0), channels, unit.first - params.padding,
                     params.span(), params.skipped, params.strand);
      ptx::async_copy_commit();
      ptx::async_copy_wait<0>();
      __syncthreads();
      for (int32_t r = warp; r < channels; r += kWarps) {
        convolve_sequence<T, kConfig>(params, rows.row(r), taps_of(r), lane, epilogue.of(channel + r),
                                      in_place(rows.row(r)));
      }
      __syncthreads();
      rows.store_all(params.to, target + slice.offset(params.to, unit, 0), channels, unit.first);
      __syncthreads();
    }
  }
}

}  // namespace fastconv

// Convolution by matrix products that the runtime computes. F is the filter as a matrix, a row for each output channel,
// a column for each tap:
//   fprop  y = F * columns of x
//   dgrad  columns of dx = F^T * dy, which are then added up; of windows of one pixel they are dx
//   wgrad  dF = dy * (columns of x)^T
// What is multiplied is cut into tiles, each computed by one thread, in a way that depends on the problem alone, and so
// do the results.
#include <cmath>
#include <optional>

#include "fastconv/cpu/im2col.h"
#include "fastconv/cpu/kernels.h"
#include "fastconv/cpu/work_queue.h"

namespace fastconv {
namespace {

// Positions of a tile: what the product's operands and result need should stay in L2, but not be less than a few.
constexpr int64_t kTileElements = 1 << 17;
constexpr int64_t kLeastPositions = 128, kMostPositions = 512;
constexpr int64_t kFewPositions = 128;  // of an image: several are packed for one product
constexpr int64_t kTargetItems = 8;     // for the threads, at least
constexpr int64_t kMinRows = 32;        // of a product that is cut for their sake
constexpr int64_t kDepth = 256;         // of some products: a longer sum has a larger error
constexpr int64_t kFew = 8;             // rows or columns, for which libraries add up one by one

int64_t tile_positions(int64_t depth) {
  const int64_t positions = std::clamp(kTileElements / std::max<int64_t>(depth, 1), kLeastPositions, kMostPositions);
  return std::clamp<int64_t>(kBlockElements / std::max<int64_t>(depth, 1), 1, positions);
}

// [begin, end) cut into equal tiles that do not cross multiples of `span`.
struct Tiles {
  int64_t total, span, per_span;

  Tiles(int64_t total, int64_t span, int64_t most)
      : total(total), span(span), per_span(ceil_div(span, std::clamp<int64_t>(most, 1, span))) {}
  int64_t count() const { return total / span * per_span; }
  int64_t begin(int64_t tile) const { return tile / per_span * span + tile % per_span * span / per_span; }
  int64_t end(int64_t tile) const { return tile / per_span * span + (tile % per_span + 1) * span / per_span; }
  int64_t size(int64_t tile) const { return end(tile) - begin(tile); }
  int64_t most() const { return ceil_div(span, per_span); }
};

int64_t part_begin(int64_t size, int64_t part, int64_t parts) { return size * part / parts; }

// Runs items whose products have to stay on the thread that asks for them; make_worker() as in work_queue.h.
template <class MakeWorker>
void run_items(const CpuRuntime& runtime, int64_t items, const MakeWorker& make_worker) {
  std::atomic<int64_t> next{0};
  // A single item would run outside the pool, where the product uses all threads.
  runtime.parallel_for(std::max<int64_t>(items, 2), 1, [&](int64_t, int64_t) {
    int64_t item = next++;
    if (item >= items) return;
    auto worker = make_worker();
    for (; item < items; item = next++) worker(item);
  });
}

// The columns of a tensor: as they lie, or packed a block of tiles at a time.
template <class T, class Scalar>
class Operand {
 public:
  Operand(const Im2col& columns, const T* data) : columns_(merge_rows(columns)), data_(data) {
    if (!std::is_same_v<T, Scalar> || !is_pointwise(columns_) || columns_.p > 1) return;
    const bool is_matrix = columns_.planes()
                               ? columns_.strides.w == 1 && (columns_.channels == 1 || columns_.strides.c >= columns_.q)
                               : columns_.strides.w >= columns_.channels;
    if (is_matrix && (columns_.n == 1 || columns_.q >= kFewPositions)) span_ = columns_.q;
  }

  const Im2col& columns() const { return columns_; }
  // Positions that lie in one matrix; 0 if they have to be packed.
  int64_t span() const { return span_; }
  int64_t elements_per_position() const { return span_ ? 0 : columns_.taps(); }

  // Packs a part of a tile; `buffer` begins with `first_tile`.
  void pack(Scalar* buffer, const Tiles& tiles, int64_t first_tile, int64_t tile, int64_t part, int64_t parts) const {
    if (span_) return;
    Scalar* to = buffer + (tile - first_tile) * tiles.most() * columns_.taps();
    call_best([&](auto) FASTCONV_INLINE_BODY {
      pack_columns(to, data_, columns_, tiles.begin(tile), tiles.end(tile), part, parts);
    });
  }

  // Taps x positions of a tile.
  Matrix matrix(Scalar* buffer, const Tiles& tiles, int64_t first_tile, int64_t tile) const {
    const int64_t size = tiles.size(tile);
    if (span_) {
      const int64_t begin = tiles.begin(tile);
      const T* data = data_ + begin / span_ * columns_.strides.n + begin % span_ * columns_.strides.w;
      const int64_t channel_step = columns_.channels == 1 ? size : columns_.strides.c;
      return {const_cast<T*>(data), columns_.channels, size, channel_step, columns_.strides.w};
    }
    Scalar* data = buffer + (tile - first_tile) * tiles.most() * columns_.taps();
    if (columns_.planes()) return {data, columns_.taps(), size, size, 1};
    return {data, columns_.taps(), size, 1, columns_.taps()};
  }

 private:
  Im2col columns_;
  const T* data_;
  int64_t span_ = 0;
};

Matrix rows_of(const Matrix& m, int64_t begin, int64_t end, int64_t element_size) {
  return {static_cast<char*>(m.data) + begin * m.row_step * element_size, end - begin, m.cols, m.row_step, m.col_step};
}

// Where tap i of the matrix F lies in the filter.
struct Taps {
  Strides strides;
  int64_t channels, r, s;
  bool planes;

  int64_t count() const { return channels * r * s; }
  int64_t channel(int64_t i) const { return planes ? i / (r * s) : i % channels; }
  int64_t row(int64_t i) const { return planes ? i / s % r : i / channels / s; }
  int64_t col(int64_t i) const { return planes ? i % s : i / channels % s; }
  int64_t offset(int64_t i) const { return channel(i) * strides.c + row(i) * strides.h + col(i) * strides.w; }
  // Calls f(first tap, size, offset, step) for taps that are evenly spaced in the filter.
  template <class F>
  FASTCONV_INLINE void runs(const F& f) const {
    const bool of_channels = !planes || r * s == 1;
    const int64_t window = r == 1 || strides.h == s * strides.w ? r * s : s;
    const int64_t size = of_channels ? channels : window, step = of_channels ? strides.c : strides.w;
    for (int64_t i = 0; i < count(); i += size) f(i, size, offset(i), step);
  }
  // Whether the filter is F as it lies.
  bool in_order(int64_t filters) const {
    const int64_t c = planes ? r * s : 1, h = planes ? s : s * channels, w = planes ? 1 : channels;
    return (channels == 1 || strides.c == c) && (r == 1 || strides.h == h) && (s == 1 || strides.w == w) &&
           (filters == 1 || strides.n >= count());
  }
};

template <class T, class Scalar>
class Gemm {
 public:
  Gemm(const ConvProblem& problem, const ConvBuffers& buffers, const CpuRuntime& runtime)
      : problem_(problem),
        buffers_(buffers),
        runtime_(runtime),
        x_(columns_of_x(problem)),
        y_(columns_of_y(problem)),
        taps_{problem.w_strides, problem.c_per_group(), problem.r, problem.s, x_.planes()} {}

  void run(int64_t first_group, int64_t last_group) {
    for (group_ = first_group; group_ < last_group; ++group_) {
      T* x = static_cast<T*>(buffers_.x) + group_ * x_.channels * x_.strides.c;
      T* y = static_cast<T*>(buffers_.y) + group_ * y_.channels * y_.strides.c;
      T* w = static_cast<T*>(buffers_.w) + group_ * y_.channels * taps_.strides.n;
      if (problem_.pass == Pass::kWgrad) {
        weight_gradient(x, y, w);
        continue;
      }
      const Operand<T, Scalar> dy(y_, y);
      if (problem_.pass == Pass::kFprop) {
        multiply(filter(w, taps_, y_.channels), Operand<T, Scalar>(x_, x), y_, y);
      } else if (is_pointwise(x_)) {
        multiply(filter(w, taps_, y_.channels).transposed(), dy, x_, x);
      } else if (problem_.stride == Pair{1, 1} && y_.positions() > 2 * y_.channels) {
        convolve_back(y, w, x);
      } else {
        input_gradient(filter(w, taps_, y_.channels), y, x);
      }
    }
  }

 private:
  static constexpr int64_t kSize = sizeof(Scalar);
  static constexpr DType kDType = std::is_same_v<Scalar, double> ? DType::kFloat64 : DType::kFloat32;
  static constexpr bool kAsStored = std::is_same_v<T, Scalar>;

  // F, packed if the filter is not in its order.
  Matrix filter(T* w, const Taps& taps, int64_t filters) {
    const int64_t count = taps.count();
    if (kAsStored && taps.in_order(filters)) return {w, filters, count, filters == 1 ? count : taps.strides.n, 1};
    if (!filter_) filter_.emplace(filters * count);
    for_each_item(runtime_, filters, 4 * count, [&] {
      return [&](int64_t k) {
        taps.runs([&](int64_t i, int64_t size, int64_t offset, int64_t step) {
          copy_row(filter_->data() + k * count + i, w + k * taps.strides.n + offset, size, step);
        });
      };
    });
    return {filter_->data(), filters, count, count, 1};
  }

  // target = matrix * columns
  void multiply(const Matrix& matrix, const Operand<T, Scalar>& source, const Im2col& target_columns, T* target_data) {
    const Operand<T, Scalar> target(target_columns, target_data);
    int64_t span = source.columns().positions();
    for (const int64_t limit : {source.span(), target.span()}) span = limit ? std::min(span, limit) : span;
    const Tiles tiles(source.columns().positions(), span, tile_positions(matrix.cols));
    // A thread packs what it multiplies. Few tiles are packed by all first, and then cut further.
    const bool many = tiles.count() >= kTargetItems;
    const int64_t row_parts =
        many ? 1 : std::min(ceil_div(kTargetItems, tiles.count()), ceil_div(matrix.rows, kMinRows));
    const int64_t tile_elements = source.elements_per_position() * tiles.most();
    AlignedBuffer<Scalar> shared(many ? 0 : tiles.count() * tile_elements);
    if (!many) pack(source, shared.data(), tiles, 0, tiles.count());
    const bool in_place = target.span() > 0;
    run_items(runtime_, tiles.count() * row_parts, [&] {
      return [&, own = std::make_unique<AlignedBuffer<Scalar>>(many ? tile_elements : 0)](int64_t item) {
        const int64_t tile = item / row_parts, part = item % row_parts, first = many ? tile : 0;
        const int64_t begin = part_begin(matrix.rows, part, row_parts);
        const int64_t end = part_begin(matrix.rows, part + 1, row_parts);
        Scalar* buffer = many ? own->data() : shared.data();
        if (many) source.pack(buffer, tiles, first, tile, 0, 1);
        const Matrix columns = source.matrix(buffer, tiles, first, tile);
        const Matrix rows = rows_of(matrix, begin, end, kSize);
        if (in_place) {
          const Matrix out = rows_of(target.matrix(nullptr, tiles, 0, tile), begin, end, kSize);
          product(out, rows, columns);
          if (has_bias() || has_padding()) store(out, target, target_data, begin, tiles.begin(tile));
        } else {
          AlignedBuffer<Scalar> sums((end - begin) * tiles.size(tile));
          Matrix out = {sums.data(), end - begin, tiles.size(tile), tiles.size(tile), 1};
          if (!target.columns().planes()) out.row_step = 1, out.col_step = end - begin;
          product(out, rows, columns);
          store(out, target, target_data, begin, tiles.begin(tile));
        }
      };
    });
  }

  // Of few rows or columns in parts, which are added here: libraries add products to what is there one by one.
  void product(const Matrix& out, const Matrix& a, const Matrix& b) {
    const int64_t step = std::min(out.rows, out.cols) < kFew ? kDepth : a.cols;
    if (a.cols <= step) return runtime_.multiply(kDType, out, a, b, false);
    AlignedBuffer<Scalar> buffer(out.rows * out.cols);
    Matrix sums = {buffer.data(), out.rows, out.cols, out.cols, 1};
    if (out.col_step != 1) sums.row_step = 1, sums.col_step = out.rows;
    for (int64_t begin = 0; begin < a.cols; begin += step) {
      const int64_t end = std::min(begin + step, a.cols);
      const Matrix part = rows_of(a.transposed(), begin, end, kSize).transposed();
      runtime_.multiply(kDType, begin == 0 ? out : sums, part, rows_of(b, begin, end, kSize), false);
      if (begin > 0) add(out, sums);
    }
  }
  static void add(const Matrix& out, const Matrix& sums) {
    auto* to = static_cast<Scalar*>(out.data);
    const auto* from = static_cast<const Scalar*>(sums.data);
    for (int64_t i = 0; i < out.rows; ++i) {
      for (int64_t j = 0; j < out.cols; ++j) {
        to[i * out.row_step + j * out.col_step] += from[i * sums.row_step + j * sums.col_step];
      }
    }
  }

  void pack(const Operand<T, Scalar>& operand, Scalar* buffer, const Tiles& tiles, int64_t first, int64_t count) {
    constexpr int64_t kParts = 8;
    if (operand.span()) return;
    for_each_item(runtime_, count * kParts, tiles.most() * operand.columns().taps() * 4 / kParts, [&] {
      return [&](int64_t item) { operand.pack(buffer, tiles, first, first + item / kParts, item % kParts, kParts); };
    });
  }

  bool has_bias() const { return problem_.pass == Pass::kFprop && problem_.has_bias; }
  // Whether zeros were multiplied.
  bool has_padding() const { return problem_.pass == Pass::kDgrad || problem_.padding != Pair{0, 0}; }

  // Rows from `row` on of the target, at positions from `begin` on: adds the bias, and sees to NaNs.
  void store(const Matrix& sums, const Operand<T, Scalar>& target, T* data, int64_t row, int64_t begin) {
    call_best([&](auto) FASTCONV_INLINE_BODY { store_tile(sums, target.columns(), data, row, begin); });
  }
  FASTCONV_INLINE void store_tile(const Matrix& sums, const Im2col& target, T* data, int64_t row, int64_t begin) const {
    const Scalar* from = static_cast<const Scalar*>(sums.data);
    const T* bias = has_bias() ? static_cast<const T*>(buffers_.bias) + group_ * target.channels + row : nullptr;
    const bool check = has_padding();
    for (int64_t at = 0; at < sums.cols;) {
      const int64_t position = begin + at, q = position % target.q;
      const int64_t length = std::min(target.q - q, sums.cols - at);
      T* to =
          data + (position / target.q / target.p * target.strides.n +
                  position / target.q % target.p * target.strides.h + q * target.strides.w + row * target.strides.c);
      bool nan = false;
      if (target.planes()) {
        for (int64_t i = 0; i < sums.rows; ++i) {
          nan |= store_row(to + i * target.strides.c, target.strides.w, from + i * sums.row_step + at * sums.col_step,
                           sums.col_step, length, bias ? static_cast<Scalar>(bias[i]) : Scalar{0}, check);
        }
      } else {
        for (int64_t j = 0; j < length; ++j) {
          nan |= store_pixel(to + j * target.strides.w, from + (at + j) * sums.col_step, sums.row_step, sums.rows, bias,
                             check);
        }
      }
      if (nan) {
        for (int64_t i = 0; i < sums.rows; ++i) {
          for (int64_t j = 0; j < length; ++j) {
            T& value = to[i * target.strides.c + j * target.strides.w];
            if (std::isnan(static_cast<Scalar>(value))) value = again(row + i, position + j, bias ? bias + i : nullptr);
          }
        }
      }
      at += length;
    }
  }
  FASTCONV_INLINE static bool store_row(T* to, int64_t to_step, const Scalar* from, int64_t from_step, int64_t size,
                                        Scalar bias, bool check) {
    if (to_step == 1 && from_step == 1) {
      for (int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(from[i] + bias);
    } else {
      for (int64_t i = 0; i < size; ++i) to[i * to_step] = static_cast<T>(from[i * from_step] + bias);
    }
    return check && has_nan(to, size, to_step);
  }
  FASTCONV_INLINE static bool store_pixel(T* to, const Scalar* from, int64_t from_step, int64_t size, const T* bias,
                                          bool check) {
    if (from_step == 1 && bias) {
      for (int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(from[i] + static_cast<Scalar>(bias[i]));
    } else if (from_step == 1) {
      for (int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(from[i]);
    } else {
      for (int64_t i = 0; i < size; ++i) {
        to[i] = static_cast<T>(from[i * from_step] + (bias ? static_cast<Scalar>(bias[i]) : Scalar{0}));
      }
    }
    return check && has_nan(to, size, 1);
  }
  FASTCONV_INLINE static bool has_nan(const T* values, int64_t size, int64_t step) {
    int nans = 0;
    if (step == 1) {
      for (int64_t i = 0; i < size; ++i) nans |= !(static_cast<Scalar>(values[i]) == static_cast<Scalar>(values[i]));
    } else {
      for (int64_t i = 0; i < size; ++i) nans |= std::isnan(static_cast<Scalar>(values[i * step]));
    }
    return nans != 0;
  }
  // An element of y or dx that zeros may have made a NaN.
  T again(int64_t channel, int64_t position, const T* bias) const {
    if (bias && std::isnan(static_cast<Scalar>(*bias))) return *bias;
    const bool dgrad = problem_.pass == Pass::kDgrad;
    const int64_t h = dgrad ? problem_.h : problem_.p(), w = dgrad ? problem_.w : problem_.q();
    const Accumulator<T> sum =
        by_definition<T>(problem_, buffers_, position / (h * w), group_ * (dgrad ? x_.channels : y_.channels) + channel,
                         position / w % h, position % w);
    return static_cast<T>(sum + (bias ? static_cast<Accumulator<T>>(*bias) : 0));
  }

  // Without a stride dx is the convolution of dy with the filter turned round.
  void convolve_back(const T* y, T* w, T* x) {
    Im2col window = y_;
    window.window = x_.window, window.dilation = x_.dilation;
    window.padding = {x_.dilation.h * (x_.window.h - 1) - x_.padding.h,
                      x_.dilation.w * (x_.window.w - 1) - x_.padding.w};
    window.p = problem_.h, window.q = problem_.w;
    const Strides& s = taps_.strides;
    const Taps taps = {{s.c, s.n, -s.h, -s.w}, y_.channels, taps_.r, taps_.s, window.planes()};
    T* last = w + (taps_.r - 1) * s.h + (taps_.s - 1) * s.w;
    Im2col target = x_;
    target.window = {1, 1}, target.stride = target.dilation = {1, 1}, target.padding = {0, 0};
    target.p = problem_.h, target.q = problem_.w;
    multiply(filter(last, taps, x_.channels), Operand<T, Scalar>(window, y), target, x);
  }

  void input_gradient(const Matrix& f, T* y, T* x) {
    const int64_t span = dilated(problem_.r, problem_.dilation.h);
    const int64_t window = problem_.r * problem_.s;
    // Rows of dx are complete when all dy that reach them have been there: a block has some rows of an image, or whole
    // images, and some channels.
    const auto rows_of_y = [&](int64_t rows) { return std::min(y_.p, (rows - 1 + span - 1) / problem_.stride.h + 1); };
    const auto elements = [&](int64_t images, int64_t rows, int64_t channels) {
      return images * rows_of_y(rows) * y_.q * (channels * window + y_.channels);
    };
    int64_t images = 1, rows = problem_.h, channels = x_.channels;
    while (elements(1, rows, channels) > kBlockElements && rows > 1) rows = ceil_div(rows, 2);
    while (elements(1, rows, channels) > kBlockElements && channels > 1) channels = ceil_div(channels, 2);
    if (rows == problem_.h) {
      images = std::clamp<int64_t>(kBlockElements / std::max<int64_t>(elements(1, rows, channels), 1), 1, problem_.n);
    }
    const int64_t most = images * rows_of_y(rows) * y_.q;
    AlignedBuffer<Scalar> columns(most * channels * window);
    for (int64_t n = 0; n < problem_.n; n += images) {
      for (int64_t row = 0; row < problem_.h; row += rows) {
        for (int64_t c = 0; c < x_.channels; c += channels) {
          gradient_block(f, y, x, columns.data(),
                         {n, std::min(images, problem_.n - n), row, std::min(rows, problem_.h - row), c,
                          std::min(channels, x_.channels - c)});
        }
      }
    }
  }

  static int64_t dilated(int64_t taps, int64_t dilation) { return (taps - 1) * dilation + 1; }

  struct Block {
    int64_t n, images, row, rows, channel, channels;
  };
  void gradient_block(const Matrix& f, T* y, T* x, Scalar* columns, const Block& block) {
    const int64_t span = dilated(problem_.r, problem_.dilation.h);
    const int64_t reach = block.row + problem_.padding.h - (span - 1);
    const int64_t first = reach > 0 ? std::min(ceil_div(reach, problem_.stride.h), y_.p) : 0;
    const int64_t last =
        std::clamp((block.row + block.rows - 1 + problem_.padding.h) / problem_.stride.h + 1, first, y_.p);
    Im2col part = y_;
    part.n = block.images, part.p = part.size.h = last - first;
    const Operand<T, Scalar> source(part, y + block.n * y_.strides.n + first * y_.strides.h);
    Im2col image = x_;
    image.channels = block.channels;
    const int64_t window = problem_.r * problem_.s, taps = block.channels * window, positions = part.positions();
    const bool planes = x_.planes();
    const int64_t step = planes ? positions : taps;
    if (positions > 0) {
      const Tiles tiles(positions, source.span() ? source.span() : positions, kMostPositions);
      AlignedBuffer<Scalar> packed(tiles.count() * tiles.most() * source.elements_per_position());
      pack(source, packed.data(), tiles, 0, tiles.count());
      // Of pixels, the taps of some channels are a product for each pixel of the window.
      const int64_t products = !planes && block.channels < x_.channels ? window : 1, rows = taps / products;
      const int64_t row_parts = std::min(ceil_div(kTargetItems, tiles.count() * products), ceil_div(rows, kMinRows));
      run_items(runtime_, tiles.count() * products * row_parts, [&] {
        return [&](int64_t item) {
          const int64_t tile = item / row_parts / products, product = item / row_parts % products,
                        part = item % row_parts;
          const int64_t begin = part_begin(rows, part, row_parts), end = part_begin(rows, part + 1, row_parts);
          const int64_t tap = product * rows + begin;
          const int64_t tap_of_all =
              planes ? block.channel * window + tap : product * x_.channels + block.channel + begin;
          Scalar* to = columns + (planes ? tap * step + tiles.begin(tile) : tiles.begin(tile) * step + tap);
          const Matrix out = {to, end - begin, tiles.size(tile), planes ? step : 1, planes ? 1 : step};
          runtime_.multiply(kDType, out, rows_of(f.transposed(), tap_of_all, tap_of_all + (end - begin), kSize),
                            source.matrix(packed.data(), tiles, 0, tile), false);
        };
      });
    }
    // An item has some channels of planes, or a row of pixels.
    constexpr int64_t kChannels = 4;
    const int64_t at_once = planes ? kChannels : block.channels, all_rows = block.images * block.rows;
    const int64_t items = planes ? ceil_div(block.channels, kChannels) : all_rows;
    for_each_item(runtime_, items, positions * taps * 4 / std::max<int64_t>(items, 1), [&] {
      return [&, sums = std::make_unique<AlignedBuffer<Scalar>>(at_once * problem_.w)](int64_t item) {
        Im2col some = image;
        const int64_t channel = planes ? item * kChannels : 0;
        some.channels = std::min(at_once, block.channels - channel);
        for (int64_t i = planes ? 0 : item; i < (planes ? all_rows : item + 1); ++i) {
          const int64_t n = i / block.rows, row = block.row + i % block.rows;
          T* to = x + (block.n + n) * x_.strides.n + (block.channel + channel) * x_.strides.c;
          // Positions of image n follow those of the images before.
          const Scalar* from =
              columns + (planes ? channel * window * step + n * part.p * part.q : n * part.p * part.q * step);
          call_best([&](auto) FASTCONV_INLINE_BODY { add_columns(to, sums->data(), some, from, step, row, first); });
        }
      };
    });
  }

  void weight_gradient(const T* x, const T* y, T* w) {
    const Operand<T, Scalar> columns(x_, x), rows(y_, y);
    const int64_t filters = y_.channels, count = taps_.count(), size = filters * count;
    const int64_t positions = x_.positions();
    int64_t span = positions;
    for (const int64_t limit : {columns.span(), rows.span()}) span = limit ? std::min(span, limit) : span;
    // Sums over parts of the positions, added in order.
    int64_t parts = std::clamp(positions / kDepth, int64_t{1}, kTargetItems);
    parts = std::clamp(kPartialElements / std::max<int64_t>(size, 1), int64_t{1}, parts);
    const int64_t packed = columns.elements_per_position() + rows.elements_per_position();
    const bool many = parts == kTargetItems || packed == 0;  // a thread packs what it multiplies
    const int64_t fitting = packed == 0 ? kDepth : kBlockElements / packed / (many ? 1 : parts);
    const int64_t most =
        std::clamp<int64_t>(std::min(fitting, kDepth), 1, std::max<int64_t>(ceil_div(positions, parts), 1));
    const Tiles tiles(positions, std::max<int64_t>(span, 1), most);
    parts = std::clamp<int64_t>(tiles.count(), 1, parts);
    const int64_t block = many ? tiles.count() : parts;
    const bool in_place = kAsStored && parts == 1 && positions > 0 && taps_.in_order(filters);
    AlignedBuffer<Scalar> sums(in_place ? 0 : parts * size);
    const int64_t shared = many ? 0 : parts * tiles.most();
    AlignedBuffer<Scalar> x_shared(shared * columns.elements_per_position());
    AlignedBuffer<Scalar> y_shared(shared * rows.elements_per_position());
    const int64_t tap_parts =
        many && packed ? 1 : std::min(ceil_div(kTargetItems, parts), ceil_div(count, 2 * kMinRows));
    for (int64_t first = 0; first < tiles.count(); first += block) {
      const int64_t end_tile = std::min(first + block, tiles.count());
      if (!many) {
        pack(columns, x_shared.data(), tiles, first, end_tile - first);
        pack(rows, y_shared.data(), tiles, first, end_tile - first);
      }
      run_items(runtime_, parts * tap_parts, [&] {
        const int64_t own = many ? tiles.most() : 0;
        return [&, x_own = std::make_unique<AlignedBuffer<Scalar>>(own * columns.elements_per_position()),
                y_own = std::make_unique<AlignedBuffer<Scalar>>(own * rows.elements_per_position())](int64_t item) {
          const int64_t part = item / tap_parts, tap_part = item % tap_parts;
          const int64_t begin = part_begin(count, tap_part, tap_parts),
                        end = part_begin(count, tap_part + 1, tap_parts);
          Matrix out = {sums.data() + part * size + begin, filters, end - begin, count, 1};
          if (in_place) out.data = w + begin, out.row_step = filters == 1 ? count : taps_.strides.n;
          Scalar *x_buffer = many ? x_own->data() : x_shared.data(), *y_buffer = many ? y_own->data() : y_shared.data();
          for (int64_t tile = first + part; tile < end_tile; tile += parts) {
            const int64_t first_packed = many ? tile : first;
            if (many) {
              columns.pack(x_buffer, tiles, tile, tile, 0, 1);
              rows.pack(y_buffer, tiles, tile, tile, 0, 1);
            }
            const Matrix seen = rows_of(columns.matrix(x_buffer, tiles, first_packed, tile), begin, end, kSize);
            runtime_.multiply(kDType, out, rows.matrix(y_buffer, tiles, first_packed, tile), seen.transposed(),
                              tile >= parts);
          }
        };
      });
    }
    if (in_place && !has_padding()) return;
    for_each_item(runtime_, filters, count * parts, [&] {
      return [&](int64_t k) {
        T* to = w + k * taps_.strides.n;
        Scalar* sum = sums.data() + k * count;
        int64_t witness = 0;
        for (int64_t part = 1; part < parts; ++part) {
          for (int64_t i = 0; i < count; ++i) sum[i] += sum[part * size + i];
        }
        if (positions == 0) fill_zero(sum, count);
        if (!in_place) {
          taps_.runs([&](int64_t i, int64_t run, int64_t offset, int64_t step) {
            store_row(to + offset, step, sum + i, 1, run, Scalar{0}, false);
          });
        }
        for (int64_t i = 0; i < count && has_padding(); ++i) {
          if (!std::isnan(in_place ? static_cast<Scalar>(to[i]) : sum[i])) continue;
          to[taps_.offset(i)] = static_cast<T>(by_definition<T>(
              problem_, buffers_, group_ * filters + k, taps_.channel(i), taps_.row(i), taps_.col(i), &witness));
        }
      };
    });
  }

  const ConvProblem& problem_;
  const ConvBuffers& buffers_;
  const CpuRuntime& runtime_;
  const Im2col x_, y_;
  const Taps taps_;
  int64_t group_ = 0;
  std::optional<AlignedBuffer<Scalar>> filter_;
};

}  // namespace

template <class T, class Scalar>
void gemm_cpu(const ConvProblem& problem, const ConvBuffers& buffers, const CpuRuntime& runtime) {
  if (problem.groups < kTargetItems) return Gemm<T, Scalar>(problem, buffers, runtime).run(0, problem.groups);
  // Many groups are small ones: a thread has some of its own, which cost it no meetings.
  const CpuRuntime alone = {[](int64_t count, int64_t, const auto& body) { body(0, count); }, runtime.multiply,
                            runtime.float32_is_exact};
  run_items(runtime, problem.groups, [&] {
    return [gemm = std::make_unique<Gemm<T, Scalar>>(problem, buffers, alone)](int64_t group) {
      gemm->run(group, group + 1);
    };
  });
}

template void gemm_cpu<float, float>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);
template void gemm_cpu<float, double>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);
template void gemm_cpu<double, double>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);
template void gemm_cpu<Half, float>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);
template void gemm_cpu<Half, double>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);
template void gemm_cpu<BFloat16, float>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);

}  // namespace fastconv

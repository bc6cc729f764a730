// Codes moved one by one from stored words to packed words, or compared there, by tables of bit numbers: every packing, map, place and width.
// In: the tables of passes/plans.py `edge_plan`, one behind the other (below).  Out: words; or how many codes differ, and the first of them.
// Bit i of code (n, k) is bit  source_rows[n][i] + source_columns[k][i]  of the stored bytes, and bit
// target_rows[n][i] + target_columns[k][i] + jump[row_slot[n] + column_slot[k]][i]  of the words.  Host side: gemm/pack_any.py.
#pragma once

#include "portable.cuh"

namespace hc {

using u64 = unsigned long long;

// A block of rows x columns codes of B bits. aux: a byte for each row and aux column, null where no map looks at one.
template <int B>
struct Walk {
  const u8* source;
  u32* words;
  const u8* aux;
  i64 aux_pitch, rows, columns;
  const i64 *aux_columns, *source_rows, *source_columns, *target_rows, *target_columns, *row_slot, *column_slot, *jump;
  const u8* table;  // the code after all maps, by aux value and stored code

  HC_FN Walk(const u8* source, u32* words, const u8* aux, i64 aux_pitch, const i64* tables, i64 rows, i64 columns, i64 slots)
      : source(source), words(words), aux(aux), aux_pitch(aux_pitch), rows(rows), columns(columns) {
    aux_columns = tables;
    source_rows = aux_columns + columns;
    source_columns = source_rows + rows * B;
    target_rows = source_columns + columns * B;
    target_columns = target_rows + rows * B;
    row_slot = target_columns + columns * B;
    column_slot = row_slot + rows;
    jump = column_slot + columns;
    table = reinterpret_cast<const u8*>(jump + slots * B);
  }
};

// What proving found. first: the complement of (number of the code, what the words hold, what they should), so that 0 is nothing and the
// largest is the first code that differs.
struct Found {
  u64 compared, wrong, first;
};

// A row's or a column's share of the positions. A thread reads that of its own line once; that of the other axis is the same for a warp.
template <int B>
struct Line {
  i64 source[B], target[B], slot, aux;
};

template <int B>
HC_FN Line<B> row_line(const Walk<B>& w, i64 n) {
  Line<B> line;
#pragma unroll
  for (int i = 0; i < B; i++) {
    line.source[i] = w.source_rows[n * B + i];
    line.target[i] = w.target_rows[n * B + i];
  }
  line.slot = w.row_slot[n];
  line.aux = n * w.aux_pitch;
  return line;
}

template <int B>
HC_FN Line<B> column_line(const Walk<B>& w, i64 k) {
  Line<B> line;
#pragma unroll
  for (int i = 0; i < B; i++) {
    line.source[i] = w.source_columns[k * B + i];
    line.target[i] = w.target_columns[k * B + i];
  }
  line.slot = w.column_slot[k];
  line.aux = w.aux ? w.aux_columns[k] : 0;
  return line;
}

// The code of (n, k) as it is to be placed. Bits that lie in one byte are read at once.
template <int B>
HC_FN u32 wanted_code(const Walk<B>& w, const Line<B>& n, const Line<B>& k) {
  i64 held = -1;
  u32 byte = 0, code = 0;
#pragma unroll
  for (int i = 0; i < B; i++) {
    const i64 at = n.source[i] + k.source[i];
    if (at >> 3 != held) byte = w.source[held = at >> 3];
    code |= (byte >> (at & 7) & 1u) << i;
  }
  const u32 aux = w.aux ? w.aux[n.aux + k.aux] : 0u;
  return w.table[aux << B | code];
}

// Words that several codes share are zero before the first of them comes.
HC_FN void or_into(u32* word, u32 bits) {
#ifdef __CUDACC__
  atomicOr(word, bits);
#else
  *word |= bits;
#endif
}

// Bits that go to one word go there at once.
template <int B>
HC_FN void place_code(const Walk<B>& w, const Line<B>& n, const Line<B>& k) {
  const u32 code = wanted_code(w, n, k);
  const i64* jump = w.jump + (n.slot + k.slot) * B;
  i64 word = -1;
  u32 bits = 0;
#pragma unroll
  for (int i = 0; i < B; i++) {
    const i64 at = n.target[i] + k.target[i] + jump[i];
    if (at >> 5 != word) {
      if (bits) or_into(w.words + word, bits);
      word = at >> 5;
      bits = 0;
    }
    bits |= (code >> i & 1u) << (at & 31);
  }
  if (bits) or_into(w.words + word, bits);
}

// number: of the code in its block.
template <int B>
HC_FN void compare_code(const Walk<B>& w, const Line<B>& n, const Line<B>& k, u64 number, Found& found) {
  const u32 want = wanted_code(w, n, k);
  const i64* jump = w.jump + (n.slot + k.slot) * B;
  i64 held = -1;
  u32 word = 0, have = 0;
#pragma unroll
  for (int i = 0; i < B; i++) {
    const i64 at = n.target[i] + k.target[i] + jump[i];
    if (at >> 5 != held) word = w.words[held = at >> 5];
    have |= (word >> (at & 31) & 1u) << i;
  }
  found.compared++;
  if (have == want) return;
  found.wrong++;
  const u64 first = ~(number << 16 | have << 8 | want);
  if (first > found.first) found.first = first;
}

// Every `step`-th code from `slow` on in one row or column. along_n: `fast` is the row, else the column; neighbours read neighbouring words.
// visit(row, column, number of the code)
template <int B, class Visit>
HC_FN void strip(const Walk<B>& w, bool along_n, i64 fast, i64 slow, i64 step, Visit&& visit) {
  if (fast >= (along_n ? w.rows : w.columns)) return;
  const Line<B> mine = along_n ? row_line(w, fast) : column_line(w, fast);
  if (along_n) {
    for (i64 k = slow; k < w.columns; k += step) visit(mine, column_line(w, k), u64(fast * w.columns + k));
  } else {
    for (i64 n = slow; n < w.rows; n += step) visit(row_line(w, n), mine, u64(n * w.columns + fast));
  }
}

template <int B>
HC_FN void pack_strip(const Walk<B>& w, bool along_n, i64 fast, i64 slow, i64 step) {
  strip(w, along_n, fast, slow, step, [&](const Line<B>& n, const Line<B>& k, u64) { place_code(w, n, k); });
}

template <int B>
HC_FN Found prove_strip(const Walk<B>& w, bool along_n, i64 fast, i64 slow, i64 step) {
  Found found = {0, 0, 0};
  strip(w, along_n, fast, slow, step, [&](const Line<B>& n, const Line<B>& k, u64 number) { compare_code(w, n, k, number, found); });
  return found;
}

#ifdef __CUDACC__
// result is zero before; blocks add to it.
template <int B>
__device__ void prove_any(const Walk<B>& w, bool along_n, Found* result) {
  __shared__ Found block;
  if (threadIdx.x == 0) block = {0, 0, 0};
  __syncthreads();
  const Found mine = prove_strip(w, along_n, i64(blockIdx.x) * blockDim.x + threadIdx.x, blockIdx.y, gridDim.y);
  if (mine.compared) atomicAdd(&block.compared, mine.compared);
  if (mine.wrong) {
    atomicAdd(&block.wrong, mine.wrong);
    atomicMax(&block.first, mine.first);
  }
  __syncthreads();
  if (threadIdx.x) return;
  atomicAdd(&result->compared, block.compared);
  if (block.wrong) {
    atomicAdd(&result->wrong, block.wrong);
    atomicMax(&result->first, block.first);
  }
}
#endif

}  // namespace hc

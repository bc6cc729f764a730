// The yardstick: y = x * W^T in float64 from plain matrices, and the sum of the magnitudes, which tolerances are measured by. Knows no layout.
// A block makes 16 x 16 results.  Host side: gemm/product_f64.py.
#pragma once

#include "portable.cuh"

namespace hc {

__device__ void product_f64(const double* x, const double* w, double* y, double* magnitude, int m, int n, int k) {
  __shared__ double tile_x[16][17], tile_w[16][17];
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  const int row = blockIdx.y * 16, column = blockIdx.x * 16;
  double sum = 0, all = 0;
  for (int k0 = 0; k0 < k; k0 += 16) {
    tile_x[i][j] = row + i < m && k0 + j < k ? x[i64(row + i) * k + k0 + j] : 0;
    tile_w[i][j] = column + i < n && k0 + j < k ? w[i64(column + i) * k + k0 + j] : 0;
    __syncthreads();
    for (int p = 0; p < 16; p++) {
      const double product = tile_x[i][p] * tile_w[j][p];
      sum += product;
      all += fabs(product);
    }
    __syncthreads();
  }
  if (row + i < m && column + j < n) {
    y[i64(row + i) * n + column + j] = sum;
    magnitude[i64(row + i) * n + column + j] = all;
  }
}

}  // namespace hc

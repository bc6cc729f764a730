// Words that the other headers are written in. The address and number headers use nothing else, so that a C++ compiler reads them as well as
// NVRTC: the tests run them on a CPU.  No CUDA header and no standard header is included anywhere in this folder.
#pragma once

#ifdef __CUDACC__
#define HC_FN __device__ __forceinline__
#else
#define HC_FN inline
#endif

namespace hc {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using s16 = short;
using i64 = long long;

HC_FN float as_float(u32 bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
#endif
}

HC_FN u32 as_bits(float f) {
#ifdef __CUDACC__
  return __float_as_uint(f);
#else
  u32 bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
#endif
}

HC_FN constexpr int ceil_to(int x, int unit) { return (x + unit - 1) / unit * unit; }

}  // namespace hc

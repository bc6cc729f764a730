// The one entry template. The host puts `generated.cuh` beside it: `struct Layer`, `struct Compute`, `struct Tuning` in the words of
// config.cuh, and HC_FAMILY, the kernel family that is wanted.  Each family has one extern "C" kernel of its own name.
#include "config.cuh"

#define HC_FAMILY_mma_any 1
#define HC_FAMILY_quantize_any 2
#define HC_FAMILY_product_f64 3
#define HC_FAMILY_pack_any 4
#define HC_FAMILY_prove_any 5
#define HC_FAMILY_wgmma_sm90a 6
#define HC_FAMILY_mx_sm120a 7
#define HC_FAMILY_umma_sm100a 8
#define HC_FAMILY_mma_sm80 9
#define HC_FAMILY_cluster_sm90a 10
#define HC_FAMILY_read_floor 11
#include "generated.cuh"

#if HC_FAMILY == HC_FAMILY_mma_any
#include "mma_any.cuh"
extern "C" __global__ void __launch_bounds__(Tuning::threads)
    mma_any(const hc::u16* x, const hc::u32* weight, const void* weight_scale, const void* zero_point, const void* weight_scale_2,
            const void* bias, const float* x_scale, const int* rows, const int* experts, int room, void* y, int m) {
  hc::mma_any<Layer, Compute, Tuning>(x, {weight, weight_scale, zero_point, weight_scale_2, bias}, x_scale, {rows, experts, room}, y, m);
}
#elif HC_FAMILY == HC_FAMILY_mma_sm80
#include "mma_sm80.cuh"
extern "C" __global__ void __launch_bounds__(Tuning::threads, Tuning::blocks)
    mma_sm80(const void* x, const hc::u32* weight, const void* weight_scale, const void* zero_point, const void* weight_scale_2,
             const void* bias, const float* x_scale, const int* rows, const int* experts, int room, void* y, int m, int* arrived, void* sums) {
  hc::mma_sm80<Layer, Compute, Tuning>(x, {weight, weight_scale, zero_point, weight_scale_2, bias}, x_scale, {rows, experts, room},
                                       {arrived, sums}, y, m);
}
#elif HC_FAMILY == HC_FAMILY_wgmma_sm90a
#include "wgmma_sm90a.cuh"
extern "C" __global__ void __launch_bounds__(Tuning::threads, Tuning::blocks)
    wgmma_sm90a(const void* x, const hc::u32* weight, const void* weight_scale, const void* zero_point, const void* weight_scale_2,
                const void* bias, const float* x_scale, const int* rows, const int* experts, int room, void* y, int m, int* arrived, void* sums) {
  hc::wgmma_sm90a<Layer, Compute, Tuning>(x, {weight, weight_scale, zero_point, weight_scale_2, bias}, x_scale, {rows, experts, room},
                                          {arrived, sums}, y, m);
}
#elif HC_FAMILY == HC_FAMILY_cluster_sm90a
#include "cluster_sm90a.cuh"
extern "C" __global__ void __cluster_dims__(Tuning::joined ? Tuning::cluster * Tuning::parts : Tuning::cluster, 1, 1) __launch_bounds__(Tuning::threads, Tuning::blocks)
    cluster_sm90a(const __grid_constant__ hc::GivenRows<Compute> x, const hc::u32* weight, const void* weight_scale, const void* zero_point,
                  const void* weight_scale_2, const void* bias, const float* x_scale, const int* rows, const int* experts, int room, void* y, int m,
                  int* arrived, void* sums, int row_tiles) {
  hc::cluster_sm90a<Layer, Compute, Tuning>(x, {weight, weight_scale, zero_point, weight_scale_2, bias}, x_scale, {rows, experts, room},
                                            {arrived, sums}, y, m, row_tiles);
}
#elif HC_FAMILY == HC_FAMILY_mx_sm120a
#include "mx_sm120a.cuh"
extern "C" __global__ void __launch_bounds__(Tuning::threads)
    mx_sm120a(const void* x, const hc::u32* weight, const void* weight_scale, const void* zero_point, const void* weight_scale_2,
              const void* bias, const float* x_scale, const int* rows, const int* experts, int room, void* y, int m) {
  hc::mx_sm120a<Layer, Compute, Tuning>(x, {weight, weight_scale, zero_point, weight_scale_2, bias}, x_scale, {rows, experts, room}, y, m);
}
#elif HC_FAMILY == HC_FAMILY_umma_sm100a
#include "umma_sm100a.cuh"
extern "C" __global__ void __launch_bounds__(Tuning::threads)
    umma_sm100a(const void* x, const hc::u32* weight, const void* weight_scale, const void* zero_point, const void* weight_scale_2,
                const void* bias, const float* x_scale, const int* rows, const int* experts, int room, void* y, int m) {
  hc::umma_sm100a<Layer, Compute, Tuning>(x, {weight, weight_scale, zero_point, weight_scale_2, bias}, x_scale, {rows, experts, room}, y, m);
}
#elif HC_FAMILY == HC_FAMILY_quantize_any
#include "quantize_any.cuh"
extern "C" __global__ void __launch_bounds__(Tuning::threads)
    quantize_any(const hc::u16* x, const float* given, void* q, float* x_scale, int m) {
  hc::quantize_any<Layer, Compute, Tuning>(x, given, q, x_scale, m);
}
#elif HC_FAMILY == HC_FAMILY_product_f64
#include "product_f64.cuh"
extern "C" __global__ void __launch_bounds__(256)
    product_f64(const double* x, const double* w, double* y, double* magnitude, int m, int n, int k) {
  hc::product_f64(x, w, y, magnitude, m, n, k);
}
#elif HC_FAMILY == HC_FAMILY_gather_any
#include "gather_any.cuh"
extern "C" __global__ void __launch_bounds__(Tuning::threads)
    gather_any(const hc::SixteenBytes* x, const int* rows, int room, hc::SixteenBytes* to, int slots) {
  hc::gather_any<Layer, Compute>(x, {rows, nullptr, room}, to, slots);
}
#elif HC_FAMILY == HC_FAMILY_read_floor
#include "read_floor.cuh"
extern "C" __global__ void __launch_bounds__(Tuning::threads) read_floor(const hc::Sixteen* from, hc::i64 count, hc::u32* sink) {
  hc::read_floor<Tuning::steps>(from, count, sink);
}
#elif HC_FAMILY == HC_FAMILY_pack_any
#include "pack_any.cuh"
extern "C" __global__ void __launch_bounds__(256)
    pack_any(const hc::u8* source, hc::u32* words, const hc::u8* aux, hc::i64 aux_pitch, const hc::i64* tables, hc::i64 rows, hc::i64 columns,
             hc::i64 slots, int along_n) {
  const hc::Walk<Layer::bits> walk(source, words, aux, aux_pitch, tables, rows, columns, slots);
  hc::pack_strip(walk, along_n, hc::i64(blockIdx.x) * blockDim.x + threadIdx.x, blockIdx.y, gridDim.y);
}
#elif HC_FAMILY == HC_FAMILY_prove_any
#include "pack_any.cuh"
extern "C" __global__ void __launch_bounds__(256)
    prove_any(const hc::u8* source, hc::u32* words, const hc::u8* aux, hc::i64 aux_pitch, const hc::i64* tables, hc::i64 rows, hc::i64 columns,
              hc::i64 slots, int along_n, hc::Found* result) {
  const hc::Walk<Layer::bits> walk(source, words, aux, aux_pitch, tables, rows, columns, slots);
  hc::prove_any(walk, along_n, result);
}
#else
#error "HC_FAMILY names no kernel family"
#endif

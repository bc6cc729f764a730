// The tensors of one expert inside stacked ones (layouts.md 11: every shape has a leading E).
#pragma once

#include "config.cuh"

namespace hc {

struct Tensors {
  const u32* weight;
  const void* weight_scale;
  const void* zero_point;
  const void* weight_scale_2;
  const void* bias;
};

template <class L>
HC_FN constexpr int scale_bytes() {
  return L::scale_type == ScaleType::f32 ? 4
         : L::scale_type == ScaleType::f16 || L::scale_type == ScaleType::bf16 || L::scale_type == ScaleType::int16 ? 2
                                                                                                                   : 1;
}

HC_FN const void* advance(const void* p, i64 bytes) { return p ? static_cast<const u8*>(p) + bytes : p; }

template <class L>
HC_FN Tensors of_expert(const Tensors& all, int e) {
  constexpr i64 kZeroBytes = L::zero == Zero::floating ? 2 * i64(L::shape_n) * L::groups : i64(L::shape_n) * L::groups * L::zero_width / 8;
  constexpr i64 kScale2Bytes = L::scale_2 == Scale2::tensor ? 4 : 2 * i64(L::shape_n);
  Tensors one;
  one.weight = all.weight + i64(e) * L::expert_words;
  one.weight_scale = advance(all.weight_scale, e * i64(L::expert_scales) * scale_bytes<L>());
  one.zero_point = advance(all.zero_point, e * kZeroBytes);
  one.weight_scale_2 = advance(all.weight_scale_2, e * kScale2Bytes);
  one.bias = advance(all.bias, e * 2 * i64(L::shape_n));
  return one;
}

}  // namespace hc

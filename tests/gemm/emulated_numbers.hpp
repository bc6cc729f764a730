// What tensor cores multiply, as numbers.
#pragma once

#include "numbers.cuh"

namespace hc {

template <Operand kOperand>
constexpr int bits_of() {
  return kOperand == Operand::s4 ? 4 : kOperand == Operand::s8 || kOperand == Operand::e4m3 ? 8 : 16;
}

// Element i of a word.
template <Operand kOperand>
double number_at(u32 word, int i) {
  if (kOperand == Operand::s4) return int(word << (28 - 4 * i)) >> 28;
  if (kOperand == Operand::s8) return int(word << (24 - 8 * i)) >> 24;
  if (kOperand == Operand::e4m3) return decode_float<4, 3, true, Special::e4m3_nan>(word >> (8 * i) & 255);
  return decode_half(u16(word >> (16 * i)), kOperand == Operand::f16 ? Half::f16 : Half::bf16);
}

}  // namespace hc

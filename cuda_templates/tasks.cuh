// Which rows a block multiplies, and by which expert.  dense: rows in order, expert 0.  indexed: lists made by gemm/tasks.py, where
// each tile of rows has one expert and a row of -1 is empty.
#pragma once

#include "config.cuh"

namespace hc {

struct TaskLists {
  const int* rows;
  const int* experts;
};

template <class C>
HC_FN int row_of(const TaskLists& lists, int slot, int m) {
  if constexpr (C::task == Task::dense) return slot < m ? slot : -1;
  return lists.rows[slot];
}

template <class C>
HC_FN int expert_of(const TaskLists& lists, int tile) {
  if constexpr (C::task == Task::dense) return 0;
  return lists.experts[tile];
}

}  // namespace hc

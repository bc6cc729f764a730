"""Kernels written out as LLVM IR: loops that walk no tiles. Each is one function `kernel(int64 *parameters) -> int64`.

Facts: layouts.md 2 (S5: E8M0 rows); llvmlite's builder has no call through an address, which CALLER is made of.
"""

CALLER = """\
define i64 @kernel(ptr %parameters) {
entry:
  %calls_at = load i64, ptr %parameters
  %calls = inttoptr i64 %calls_at to ptr
  %first_at = getelementptr i64, ptr %parameters, i64 1
  %first = load i64, ptr %first_at
  %count_at = getelementptr i64, ptr %parameters, i64 2
  %count = load i64, ptr %count_at
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %next, %more ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %body, label %end
body:
  %row = getelementptr [6 x i64], ptr %calls, i64 %i
  %function_at = load i64, ptr %row
  %function = inttoptr i64 %function_at to ptr
  %a_at = getelementptr i64, ptr %row, i64 1
  %a = load i64, ptr %a_at
  %b_at = getelementptr i64, ptr %row, i64 2
  %b = load i64, ptr %b_at
  %c_at = getelementptr i64, ptr %row, i64 3
  %c = load i64, ptr %c_at
  %d_at = getelementptr i64, ptr %row, i64 4
  %d = load i64, ptr %d_at
  %want_at = getelementptr i64, ptr %row, i64 5
  %want = load i64, ptr %want_at
  %result = call i64 %function(i64 %a, i64 %b, i64 %c, i64 %d)
  %result_low = trunc i64 %result to i32
  %want_low = trunc i64 %want to i32
  %same = icmp eq i32 %result_low, %want_low
  br i1 %same, label %more, label %end
more:
  %next = add i64 %i, 1
  br label %head
end:
  ret i64 %i
}
"""
"""Makes rows of calls (`calls.Call`) from `first` to `count`; returns the index of the first with another result than wanted, or count.
Written out: llvmlite's builder has no call through an address. Functions of fewer arguments ignore the rest (System V, AAPCS64)."""

LOOK_UP = """\
define i64 @kernel(ptr %parameters) {
entry:
  %source_at = load i64, ptr %parameters
  %source = inttoptr i64 %source_at to ptr
  %p1 = getelementptr i64, ptr %parameters, i64 1
  %target_at = load i64, ptr %p1
  %target = inttoptr i64 %target_at to ptr
  %p2 = getelementptr i64, ptr %parameters, i64 2
  %table_at = load i64, ptr %p2
  %table = inttoptr i64 %table_at to ptr
  %p3 = getelementptr i64, ptr %parameters, i64 3
  %counts_at = load i64, ptr %p3
  %counts = inttoptr i64 %counts_at to ptr
  %p4 = getelementptr i64, ptr %parameters, i64 4
  %count = load i64, ptr %p4
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %body, label %end
body:
  %from = getelementptr i16, ptr %source, i64 %i
  %code = load i16, ptr %from, align 1
  %index = zext i16 %code to i64
  %entry_at = getelementptr i16, ptr %table, i64 %index
  %value = load i16, ptr %entry_at, align 2
  %to = getelementptr i16, ptr %target, i64 %i
  store i16 %value, ptr %to, align 2
  %count_at = getelementptr i32, ptr %counts, i64 %index
  %before = load i32, ptr %count_at, align 4
  %after = add i32 %before, 1
  store i32 %after, ptr %count_at, align 4
  %next = add i64 %i, 1
  br label %head
end:
  ret i64 %count
}
"""
"""source, target, table [65536], counts [65536], count: target[i] = table[source[i]], each code counted; all of 16 bits but for the counts (32)."""

LANES = 16  # bytes of a vector; a row has at least so many
_ROWS = """\
declare i8 @llvm.vector.reduce.umax.v16i8(<16 x i8>)
declare i8 @llvm.vector.reduce.umin.v16i8(<16 x i8>)
declare <16 x i8> @llvm.umax.v16i8(<16 x i8>, <16 x i8>)
declare <16 x i8> @llvm.umin.v16i8(<16 x i8>, <16 x i8>)
define i64 @kernel(ptr %parameters) {{
entry:
  %source_at = load i64, ptr %parameters
  %source = inttoptr i64 %source_at to ptr
  %p1 = getelementptr i64, ptr %parameters, i64 1
  %rows = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %parameters, i64 2
  %groups = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %parameters, i64 3
  %first_at = load i64, ptr %p3
  %first = inttoptr i64 %first_at to ptr
  %p4 = getelementptr i64, ptr %parameters, i64 4
  %second_at = load i64, ptr %p4
  %second = inttoptr i64 %second_at to ptr
  %p5 = getelementptr i64, ptr %parameters, i64 5
  %low_at = load i64, ptr %p5
  %lows = inttoptr i64 %low_at to ptr
  %p6 = getelementptr i64, ptr %parameters, i64 6
  %plus64 = load i64, ptr %p6
  %plus8 = trunc i64 %plus64 to i8
  %plus_one = insertelement <16 x i8> undef, i8 %plus8, i64 0
  %plus = shufflevector <16 x i8> %plus_one, <16 x i8> undef, <16 x i32> zeroinitializer
  %last = sub i64 %groups, 16
  br label %row
row:
  %r = phi i64 [ 0, %entry ], [ %r_next, %{ends} ]
  %r_left = icmp slt i64 %r, %rows
  br i1 %r_left, label %row_start, label %end
row_start:
  %start = mul i64 %r, %groups
{before}
  br label %step
step:
  %g = phi i64 [ 0, %row_start ], [ %g_next, %step ]
{carried}
  %at = add i64 %start, %g
  %from = getelementptr i8, ptr %source, i64 %at
  %v = load <16 x i8>, ptr %from, align 1
{each}
  %done = icmp eq i64 %g, %last
  %g_more = add i64 %g, 16
  %beyond = icmp sgt i64 %g_more, %last
  %g_next = select i1 %beyond, i64 %last, i64 %g_more
  br i1 %done, label %row_end, label %step
row_end:
{after}
  %r_next = add i64 %r, 1
  br label %row
end:
  ret i64 %rows
}}
"""

ROW_RANGE = _ROWS.format(
    ends="row_end",
    before="",
    carried="""\
  %top = phi <16 x i8> [ zeroinitializer, %row_start ], [ %top_next, %step ]
  %bottom = phi <16 x i8> [ splat (i8 -1), %row_start ], [ %bottom_next, %step ]""",
    each="""\
  %top_next = call <16 x i8> @llvm.umax.v16i8(<16 x i8> %top, <16 x i8> %v)
  %bottom_next = call <16 x i8> @llvm.umin.v16i8(<16 x i8> %bottom, <16 x i8> %v)""",
    after="""\
  %row_top = call i8 @llvm.vector.reduce.umax.v16i8(<16 x i8> %top_next)
  %row_bottom = call i8 @llvm.vector.reduce.umin.v16i8(<16 x i8> %bottom_next)
  %first_to = getelementptr i8, ptr %first, i64 %r
  store i8 %row_top, ptr %first_to, align 1
  %second_to = getelementptr i8, ptr %second, i64 %r
  store i8 %row_bottom, ptr %second_to, align 1""",
)
"""source, rows, groups, first, second: the largest byte of each row into first, the smallest into second. Rows of at least LANES bytes; a
last vector that begins early reads some bytes twice."""

RAISE_ROWS = _ROWS.format(
    ends="row_end",
    before="""\
  %low_from = getelementptr i8, ptr %lows, i64 %r
  %low8 = load i8, ptr %low_from, align 1
  %low_one = insertelement <16 x i8> undef, i8 %low8, i64 0
  %low = shufflevector <16 x i8> %low_one, <16 x i8> undef, <16 x i32> zeroinitializer
  %under = sub <16 x i8> %low, %plus""",
    carried="",
    each="""\
  %raised = call <16 x i8> @llvm.umax.v16i8(<16 x i8> %v, <16 x i8> %low)
  %offset = sub <16 x i8> %raised, %v
  %new = sub <16 x i8> %raised, %under
  %first_to = getelementptr i8, ptr %first, i64 %at
  store <16 x i8> %new, ptr %first_to, align 1
  %second_to = getelementptr i8, ptr %second, i64 %at
  store <16 x i8> %offset, ptr %second_to, align 1""",
    after="",
)
"""source, rows, groups, first, second, lows [rows], plus: max(byte, low) - (low - plus) into first, max(byte, low) - byte into second (S5)."""

PAD_ROWS = _ROWS.format(
    ends="row_full",
    before="""\
  %row_to = mul i64 %r, %second_at""",
    carried="""\
  %top = phi <16 x i8> [ zeroinitializer, %row_start ], [ %top_next, %step ]""",
    each="""\
  %top_next = call <16 x i8> @llvm.umax.v16i8(<16 x i8> %top, <16 x i8> %v)
  %new = sub <16 x i8> %v, %plus
  %column_to = add i64 %row_to, %g
  %first_to = getelementptr i8, ptr %first, i64 %column_to
  store <16 x i8> %new, ptr %first_to, align 1""",
    after="""\
  %row_top = call i8 @llvm.vector.reduce.umax.v16i8(<16 x i8> %top_next)
  %by_row = icmp sgt i64 %low_at, 255
  %one_fill = trunc i64 %low_at to i8
  %fill = select i1 %by_row, i8 %row_top, i8 %one_fill
  %pad = sub i8 %fill, %plus8
  br label %pads
pads:
  %p = phi i64 [ %groups, %row_end ], [ %p_next, %pad_one ]
  %more = icmp slt i64 %p, %second_at
  br i1 %more, label %pad_one, label %row_full
pad_one:
  %pad_at = add i64 %row_to, %p
  %pad_to = getelementptr i8, ptr %first, i64 %pad_at
  store volatile i8 %pad, ptr %pad_to, align 1
  %p_next = add i64 %p, 1
  br label %pads
row_full:""",
)
"""source, rows, bytes of a row, first, bytes of a longer row, fill, minus: each row less `minus` into first, and behind it `fill` less `minus`; a fill
beyond 255 is the row's largest byte. Bytes wrap. The stores behind a row are volatile: LLVM would call memset for them."""

"""CRC-32 values of repacked weights (layouts.md 13), for the numpy reference and for the compiled passes."""

# A, B: standard mode 3, standard mode 2, native, packed-K swapped mode 3, packed-K not swapped mode 2
REPACKED = """
16 1 3985a40b 3985a40b 0901dfe1 - -
16 2 f32a4712 24804f55 016ab03a - -
16 3 571e35d7 720999d3 2e949f4e - -
16 4 74ecf964 6ea1cbb6 3e839ff8 - -
16 5 edcaff4f 1bcdaddc 13a16579 - -
16 6 586b2234 a4c4a753 40835933 - -
16 7 5da3cec9 e333f564 6d4b76ed - -
16 8 6b75c193 51eeb1c5 66950014 - -
8 1 fc289c40 fc289c40 8508c532 - -
8 2 40daae8e 8eb193f5 53c829af bebfa4d7 d574fb2a
8 3 4d5b4ef3 5318d650 639b2f93 - -
8 4 1c1165d9 b13a78d6 d2273ad1 7aeefde8 1fae0ca4
8 5 aeba9e54 aeba9e54 aeba9e54 - -
8 6 6f5bca92 6f5bca92 6f5bca92 4a58d801 8cf66e54
8 7 3cb87121 3cb87121 3cb87121 - -
4 1 f2bf8312 f2bf8312 2b4c4bc3 - -
4 2 322fe87a fa8de5fd 528bdcce - -
4 3 e6054d37 e6054d37 e6054d37 - -
"""

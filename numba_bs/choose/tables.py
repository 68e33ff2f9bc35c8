"""Measured constants of Hopper's rungs; ``python -m benchmarks.tune`` writes the lines.

On an H200, bfloat16, 8192 cubed, density 0.1 or 0.3. Behind an entry: TFLOP/s, and
those of the next best candidate; nothing where the sweep has not been there yet.
"""

DENSE = 0.2  # density from which on a layout counts as dense

# Block, dense, whether b lies along k, whether the copy engine stores the result: rows,
# chunks, row_groups, wide, stage_cols, cap, out_tiles of wgmma.WgmmaConfig. Block 128:
# squares of 64 of which the two rows of a block have the same columns.
DSD = {
    (128, False, False, False): (1, 4, 2, 1, 1, 2, 2),
    (128, False, False, True): (1, 4, 2, 1, 1, 2, 2),  # 567
    (128, False, True, False): (1, 4, 2, 1, 1, 2, 2),
    (128, False, True, True): (1, 4, 2, 1, 1, 2, 2),
    (128, True, False, False): (1, 4, 2, 1, 1, 2, 2),
    (128, True, False, True): (1, 4, 2, 1, 1, 2, 2),  # 668
    (128, True, True, False): (1, 4, 2, 1, 1, 2, 2),
    (128, True, True, True): (1, 4, 2, 1, 1, 2, 2),
    (64, False, False, False): (1, 4, 3, 1, 1, 2, 1),
    (64, False, False, True): (1, 4, 3, 1, 1, 2, 1),  # 454
    (64, False, True, False): (1, 4, 3, 1, 1, 2, 1),
    (64, False, True, True): (1, 4, 3, 1, 1, 2, 1),
    (64, True, False, False): (1, 4, 3, 1, 1, 2, 1),
    (64, True, False, True): (2, 3, 2, 1, 1, 3, 2),  # 567
    (64, True, True, False): (1, 4, 3, 1, 1, 2, 1),
    (64, True, True, True): (2, 3, 2, 1, 1, 3, 2),
    (32, False, False, False): (4, 2, 2, 1, 2, 8, 4),
    (32, False, False, True): (4, 3, 2, 1, 2, 8, 3),  # 314
    (32, False, True, False): (4, 2, 2, 2, 1, 8, 4),
    (32, False, True, True): (4, 3, 2, 2, 1, 8, 3),
    (32, True, False, False): (4, 2, 2, 1, 2, 8, 4),
    (32, True, False, True): (4, 3, 2, 1, 2, 8, 3),  # 410
    (32, True, True, False): (4, 2, 2, 2, 1, 8, 4),
    (32, True, True, True): (4, 3, 2, 2, 1, 8, 3),
    (16, False, False, False): (4, 4, 2, 1, 4, 20, 4),
    (16, False, False, True): (6, 4, 2, 1, 4, 20, 6),  # 177
    (16, False, True, False): (4, 4, 2, 4, 1, 20, 4),
    (16, False, True, True): (6, 4, 2, 4, 1, 20, 6),
    (16, True, False, False): (4, 4, 2, 1, 4, 20, 4),
    (16, True, False, True): (6, 4, 2, 1, 4, 20, 6),  # 219
    (16, True, True, False): (4, 4, 2, 4, 1, 20, 4),
    (16, True, True, True): (6, 4, 2, 4, 1, 20, 6),
}

# Block, dense: width, parts, row_groups, col_groups, by_place of
# wgmma_sdd.SampleConfig. Block 128: rows that come in two halves with the same blocks.
SDD = {
    (128, False): (256, 1, 2, 1, False),  # 549
    (128, True): (256, 1, 2, 1, False),  # 633
    (64, False): (128, 2, 1, 2, False),  # 375
    (64, True): (128, 2, 1, 2, True),  # 471, next 432
    (32, False): (128, 2, 1, 2, True),  # 242, next 230
    (32, True): (128, 2, 1, 2, True),  # 301, next 256
    (16, False): (128, 2, 1, 2, True),  # 135, next 128
    (16, True): (128, 2, 1, 2, True),  # 198, next 174
}

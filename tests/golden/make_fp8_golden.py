# Writes tests/golden/fp8.txt with ml_dtypes (0.5): the values of all codes of both FP8 formats, and the codes of
# numbers at and next to each value, tie and extreme. Its conversions do not saturate: numbers are clamped first.
#   python3 tests/golden/make_fp8_golden.py > tests/golden/fp8.txt
import ml_dtypes
import numpy as np

for name, dtype in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(dtype).astype(np.float32)
    print(name, "decode", *(f"{bits:08x}" for bits in numbers.view(np.uint32)))
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    grid = np.unique(np.abs(numbers[np.isfinite(numbers)]))
    middles = ((grid[1:].astype(np.float64) + grid[:-1]) / 2).astype(np.float32)
    ends = np.float32([largest * 1.01, largest * 2, 3e38, 1e-45, 1e-38])
    exact = np.concatenate([grid, middles, ends]).astype(np.float32)
    asked = np.concatenate([exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))])
    asked = np.unique(np.concatenate([asked[np.isfinite(asked)], -asked[np.isfinite(asked)]]))
    found = np.clip(asked, -largest, largest).astype(dtype).view(np.uint8)
    print(name, "encode", *(f"{bits:08x}:{code:02x}" for bits, code in zip(asked.view(np.uint32), found)))

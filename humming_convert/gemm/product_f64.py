"""The yardstick: launches product_f64.cuh on plain float64 matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.gemm.device import Device
from humming_convert.gemm.source import kernel_source


def product(device: Device, x: NDArray[np.float64], w: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x [m, k], w [n, k] on the device -> x * w^T, and the sums of magnitudes."""
    m, k = x.shape
    n = int(w.shape[0])
    y, magnitude = device.filled((m, n), "float64"), device.filled((m, n), "float64")
    device.launch(kernel_source("product_f64"), (-(-n // 16), -(-m // 16)), 256, (device.put(x), w, y, magnitude, m, n, k))
    return device.get(y), device.get(magnitude)

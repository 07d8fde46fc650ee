"""What only the CPU's kernels promise: zeros of padding, torch's matrix product, memory."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor

import reference
from check import KERNELS, Kernel, expect_pass, run_forced
from shapes import DTYPES, Operands, Problem, operands

CPU_KERNELS = [kernel for kernel in KERNELS if kernel.device == "cpu"]
LAYOUTS = ("contiguous", "channels_last")
kernels = pytest.mark.parametrize("kernel", CPU_KERNELS, ids=lambda kernel: kernel.name)

PADDED = {
    "dense": Problem(2, 8, 9, 10, 16, 3, 3, padding=(1, 1)),
    "dense_strided": Problem(2, 8, 9, 10, 16, 3, 3, stride=(2, 2), padding=(1, 2)),
    "dense_dilated": Problem(1, 4, 9, 9, 8, 3, 2, padding=(2, 2), dilation=(2, 3)),
    "many_pixels": Problem(3, 4, 40, 41, 8, 3, 3, padding=(1, 1)),
    "padded_pointwise": Problem(2, 8, 6, 6, 16, 1, 1, padding=(1, 1)),
    "depthwise": Problem(2, 16, 9, 10, 16, 3, 3, padding=(1, 1), groups=16),
    "depthwise_wide": Problem(1, 3, 5, 70, 3, 5, 5, padding=(2, 2), groups=3),
    "depthwise_strided": Problem(2, 9, 9, 10, 9, 5, 5, stride=(2, 3), padding=(2, 2), groups=9),
    "grouped": Problem(2, 8, 9, 10, 12, 3, 3, padding=(1, 1), groups=4),
}


def tap_by_tap(pass_: str, o: Operands, problem: Problem) -> Tensor:
    """In float64, without padding: torch's own float64 convolution on the CPU multiplies zeros."""
    x, w = (t.double().requires_grad_() for t in (o.input, o.weight))
    y = torch.zeros(problem.output_size, dtype=torch.float64)
    for r, s in itertools.product(range(problem.r), range(problem.s)):
        outputs, pixels = [], []
        for size, count, tap, stride, padding, dilation in zip(
            x.shape[2:], y.shape[2:], (r, s), problem.stride, problem.padding, problem.dilation, strict=True
        ):
            pairs = [(i, i * stride - padding + tap * dilation) for i in range(count)]
            seen = [(i, pixel) for i, pixel in pairs if 0 <= pixel < size]
            outputs.append([i for i, _ in seen])
            pixels.append([pixel for _, pixel in seen])
        rows, columns = (torch.tensor(p, dtype=torch.long) for p in pixels)
        patch = x[:, :, rows[:, None], columns].unflatten(1, (problem.groups, -1))
        filters = w[:, :, r, s].unflatten(0, (problem.groups, -1))
        products = torch.einsum("ngchw,gkc->ngkhw", patch, filters).flatten(1, 2)
        p, q = (torch.tensor(i, dtype=torch.long) for i in outputs)
        added = torch.zeros_like(y)
        added[:, :, p[:, None], q] = products
        y = y + added
    if pass_ == "fprop":
        return y.detach() if o.bias is None else (y + o.bias.double()[:, None, None]).detach()
    return torch.autograd.grad(y, x if pass_ == "dgrad" else w, o.grad_output.double())[0]


@kernels
@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("special", [math.inf, math.nan])
def test_padding_meets_no_inf_or_nan(kernel: Kernel, name: str, special: float) -> None:
    """Padding is not multiplied: an Inf or NaN reaches the results that it has a part in, and no other."""
    problem = PADDED[name]
    ran = 0
    for dtype, layout in itertools.product(DTYPES, LAYOUTS):
        tensors = {"fprop": ("input", "weight"), "dgrad": ("weight", "grad_output"), "wgrad": ("input", "grad_output")}
        for which in tensors[kernel.pass_]:
            for corner in (0, -1):
                o = operands(problem, dtype, views=(layout,) * 3)
                getattr(o, which)[corner, 0, corner, corner] = special
                actual = run_forced(kernel, o, problem)
                if actual is None:
                    continue
                expected = tap_by_tap(kernel.pass_, o, problem)
                for kind in (torch.isnan, torch.isposinf, torch.isneginf):
                    assert torch.equal(kind(actual), kind(expected)), (dtype, layout, which, kind.__name__)
                ran += 1
    assert ran or "depthwise" in kernel.name and problem.c // problem.groups > 16


# torch rounds operands of float32 matrix products to bfloat16 if told so, on chips with instructions for that. This
# does the same on any chip: it takes the place of torch's functions, and of BLAS', in the process into which it is
# loaded first.
ROUNDING_PRODUCT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

typedef void* Tensor;
#define CALL(name, type) ((type)dlsym(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD), #name))

static void round_value(float* value) {
  uint32_t bits;
  memcpy(&bits, value, 4);
  bits &= 0xffff0000u;
  memcpy(value, &bits, 4);
}
typedef void (*Product)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                        const int*, const float*, const int*, const float*, float*, const int*);
void sgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc) {
  CALL(sgemm_, Product)(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  for (int j = 0; j < *n; ++j) {
    for (int i = 0; i < *m; ++i) round_value(c + i + (int64_t)j * *ldc);
  }
}
static int32_t rounded(Tensor out) {
  int32_t dtype;
  void* data;
  int64_t *sizes, *strides;
  CALL(aoti_torch_get_dtype, int32_t (*)(Tensor, int32_t*))(out, &dtype);
  if (dtype != CALL(aoti_torch_dtype_float32, int32_t (*)(void))()) return 0;
  CALL(aoti_torch_get_data_ptr, int32_t (*)(Tensor, void**))(out, &data);
  CALL(aoti_torch_get_sizes, int32_t (*)(Tensor, int64_t**))(out, &sizes);
  CALL(aoti_torch_get_strides, int32_t (*)(Tensor, int64_t**))(out, &strides);
  for (int64_t i = 0; i < sizes[0]; ++i) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      round_value((float*)data + i * strides[0] + j * strides[1]);
    }
  }
  return 0;
}
int32_t aoti_torch_cpu_mm_out(Tensor out, Tensor a, Tensor b) {
  int32_t error = CALL(aoti_torch_cpu_mm_out, int32_t (*)(Tensor, Tensor, Tensor))(out, a, b);
  return error ? error : rounded(out);
}
int32_t aoti_torch_cpu_addmm_out(Tensor out, Tensor self, Tensor a, Tensor b, double beta, double alpha) {
  int32_t error = CALL(aoti_torch_cpu_addmm_out, int32_t (*)(Tensor, Tensor, Tensor, Tensor, double, double))(
      out, self, a, b, beta, alpha);
  return error ? error : rounded(out);
}
"""
DENSE = Problem(2, 32, 20, 20, 48, 3, 3, padding=(1, 1))
UNDER_ROUNDING = """
    import itertools, torch
    import fastconv, reference
    from check import expect_pass, run_pass
    from shapes import operands
    from test_cpu import DENSE, LAYOUTS
    def is_right(dtype, layout, pass_):
        o = operands(DENSE, dtype, views=(layout,) * 3)
        try: reference.assert_right(run_pass(pass_, o, DENSE), expect_pass(pass_, o, DENSE))
        except AssertionError: return False
        return True
    for layout, pass_ in itertools.product(LAYOUTS, ("fprop", "dgrad", "wgrad")):
        assert is_right(torch.float32, layout, pass_)
        assert is_right(torch.float16, layout, pass_)
        # Operands of bfloat16 lose nothing, so its products are not asked: this shows that they are rounded here.
        assert not is_right(torch.bfloat16, layout, pass_)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="loads a library before others")
def test_products_that_torch_rounds_are_not_used(tmp_path: Path) -> None:
    source, library = tmp_path / "rounding.c", tmp_path / "rounding.so"
    source.write_text(ROUNDING_PRODUCT)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, source, "-ldl"], check=True)
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(UNDER_ROUNDING)],
        env={**os.environ, "PYTHONPATH": path, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_torchs_precision_of_matrix_products_does_not_matter(setting: str) -> None:
    """On chips that have instructions for it; on others this shows nothing, and the test above does."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        for layout, pass_ in itertools.product(LAYOUTS, ("fprop", "dgrad", "wgrad")):
            o = operands(DENSE, torch.float32, views=(layout,) * 3)
            kernel = next(k for k in CPU_KERNELS if k.pass_ == pass_ and "gemm" in k.name)
            actual = run_forced(kernel, o, DENSE)
            assert actual is not None
            reference.assert_right(actual, expect_pass(pass_, o, DENSE), pass_)
    finally:
        torch.set_float32_matmul_precision(before)

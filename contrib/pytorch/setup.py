"""Builds crystal_torch._backend against the installed PyTorch, with plain g++."""

import os
import sys

from setuptools import Extension, setup

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # an older build of ours may be there
import torch  # noqa: E402

here = os.path.dirname(os.path.abspath(__file__))
prefix = os.path.dirname(torch.__file__)

# Up to 2.8 or so, pybind11's types are shared only between modules whose compilers have
# the same ABI numbers; PyTorch tells its own.
pybind11 = [
    f'-DPYBIND11_{name}="{value}"'
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
    if (value := getattr(torch._C, f"_PYBIND11_{name}", None)) is not None
]

setup(
    ext_modules=[
        Extension(
            "crystal_torch._backend",
            [os.path.join("crystal_torch", "csrc", "unity.cc")],
            include_dirs=[
                os.path.join(here, "..", ".."),
                os.path.join(prefix, "include"),
                os.path.join(prefix, "include", "torch", "csrc", "api", "include"),
            ],
            library_dirs=[os.path.join(prefix, "lib")],
            libraries=["torch_cpu", "c10", "dl"],
            extra_compile_args=[
                "-std=c++20",  # PyTorch 2.12 and later need it
                "-O1",
                "-g0",
                "-fvisibility=hidden",
                "-Wno-deprecated-declarations",
                f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                *pybind11,
            ],
            extra_link_args=["-Wl,-rpath," + os.path.join(prefix, "lib")],
            language="c++",
        )
    ]
)

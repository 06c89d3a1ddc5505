"""Builds crystal_torch._backend against the installed PyTorch, with plain g++."""

import os
import sys

from setuptools import Extension, setup

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # an older build of ours may be there
import torch  # noqa: E402

here = os.path.dirname(os.path.abspath(__file__))
prefix = os.path.dirname(torch.__file__)

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
                "-std=c++17",
                "-O1",
                "-g0",
                "-fvisibility=hidden",
                "-Wno-deprecated-declarations",
                f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            ],
            extra_link_args=["-Wl,-rpath," + os.path.join(prefix, "lib")],
            language="c++",
        )
    ]
)

# CRYSTAL_CUDA: looks for nvcc and cuda.h; sets HAVE_CUDA, CUDA_CFLAGS and NVCC.
# Nothing of the host path needs it.
AC_DEFUN([CRYSTAL_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda@<:@=PREFIX@:>@], [build what runs on NVIDIA GPUs (default: auto)])],
    [], [with_cuda=auto])
  AS_CASE([$with_cuda], [yes|auto|no], [crystal_cuda_prefix=/usr/local/cuda],
    [crystal_cuda_prefix=$with_cuda])
  CUDA_CFLAGS="-I$crystal_cuda_prefix/include"
  NVCC="$crystal_cuda_prefix/bin/nvcc"
  crystal_have_cuda=no
  AS_IF([test "x$with_cuda" != xno && test -r "$crystal_cuda_prefix/include/cuda.h"],
    [crystal_have_cuda=yes])
  AS_IF([test "x$with_cuda" != xno && test "x$with_cuda" != xauto && test "x$crystal_have_cuda" = xno],
    [AC_MSG_ERROR([cuda.h not found below $crystal_cuda_prefix; give --with-cuda=PREFIX])])
  AC_SUBST([CUDA_CFLAGS])
  AC_SUBST([NVCC])
  AM_CONDITIONAL([HAVE_CUDA], [test "x$crystal_have_cuda" = xyes])
])

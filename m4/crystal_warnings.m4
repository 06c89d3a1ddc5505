# CRYSTAL_WARNINGS: sets WARNING_CFLAGS; --enable-werror turns warnings into errors.
# Sentences are cut to their buffers on purpose, so that warning is off.
AC_DEFUN([CRYSTAL_WARNINGS], [
  AC_ARG_ENABLE([werror],
    [AS_HELP_STRING([--enable-werror], [treat compiler warnings as errors])],
    [], [enable_werror=no])
  WARNING_CFLAGS="-std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes"
  WARNING_CFLAGS="$WARNING_CFLAGS -Wmissing-prototypes -Wvla -Wno-format-truncation -fvisibility=hidden"
  AS_IF([test "x$enable_werror" = xyes], [WARNING_CFLAGS="$WARNING_CFLAGS -Werror"])
  AC_SUBST([WARNING_CFLAGS])
])

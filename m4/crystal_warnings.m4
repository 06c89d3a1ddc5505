# CRYSTAL_WARNINGS: sets WARNING_CFLAGS; --enable-werror turns warnings into errors.
AC_DEFUN([CRYSTAL_WARNINGS], [
  AC_ARG_ENABLE([werror],
    [AS_HELP_STRING([--enable-werror], [treat compiler warnings as errors])],
    [], [enable_werror=no])
  WARNING_CFLAGS="-std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes"
  WARNING_CFLAGS="$WARNING_CFLAGS -Wmissing-prototypes -Wvla -fvisibility=hidden"
  # Sentences are cut to their buffers on purpose; clang has no such warning.
  crystal_save_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS -Werror -Wformat-truncation"
  AC_MSG_CHECKING([whether $CC knows -Wformat-truncation])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM],
    [AC_MSG_RESULT([yes])
     WARNING_CFLAGS="$WARNING_CFLAGS -Wno-format-truncation"],
    [AC_MSG_RESULT([no])])
  CFLAGS=$crystal_save_CFLAGS
  AS_IF([test "x$enable_werror" = xyes], [WARNING_CFLAGS="$WARNING_CFLAGS -Werror"])
  AC_SUBST([WARNING_CFLAGS])
])

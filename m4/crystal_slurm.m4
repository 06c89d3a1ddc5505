# CRYSTAL_SLURM: looks for <slurm/spank.h>; sets HAVE_SLURM and SLURM_CFLAGS,
# and SLURM_PREFIX where one was given: the Slurm tests then use that Slurm.
AC_DEFUN([CRYSTAL_SLURM], [
  AC_ARG_WITH([slurm],
    [AS_HELP_STRING([--with-slurm@<:@=PREFIX@:>@], [build the SPANK plugin (default: auto)])],
    [], [with_slurm=auto])
  SLURM_CFLAGS= SLURM_PREFIX=
  AS_CASE([$with_slurm], [yes|no|auto], [], [
    SLURM_CFLAGS="-I$with_slurm/include"
    SLURM_PREFIX=$with_slurm])
  crystal_have_slurm=no
  AS_IF([test "x$with_slurm" != xno], [
    crystal_save_CPPFLAGS=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS $SLURM_CFLAGS"
    AC_CHECK_HEADER([slurm/spank.h], [crystal_have_slurm=yes])
    CPPFLAGS=$crystal_save_CPPFLAGS
    AS_IF([test "x$crystal_have_slurm$with_slurm" != xnoauto && test "x$crystal_have_slurm" = xno],
      [AC_MSG_ERROR([slurm/spank.h not found; install libslurm-dev or give --with-slurm=PREFIX])])
  ])
  AC_SUBST([SLURM_CFLAGS])
  AC_SUBST([SLURM_PREFIX])
  AM_CONDITIONAL([HAVE_SLURM], [test "x$crystal_have_slurm" = xyes])
])

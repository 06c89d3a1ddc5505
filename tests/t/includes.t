#!/bin/bash
# Includes point down the pipeline only; headers compile alone.
set -u
tool=$CRYSTAL_SRCDIR/tests/tool
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"

passes() { # passes NAME COMMAND...
    local name=$1 out code
    shift
    out=$("$@" 2>&1)
    code=$?
    result "$name" $((code == 0)) "code $code: $out"
}

# fails FILE LINE... -- TEXT COMMAND...: with FILE made of the LINEs, COMMAND ends with 1
# and says TEXT.
fails() {
    local file=$1 lines=() text out code
    shift
    while [ "$1" != -- ]; do
        lines+=("$1")
        shift
    done
    text=$2
    shift 2
    rm -rf "$tmp/tree"
    mkdir -p "$tmp/tree/$(dirname "$file")"
    printf '%s\n' "${lines[@]}" >"$tmp/tree/$file"
    out=$("$@" 2>&1)
    code=$?
    result "$text" $((code == 1 && $(grep -cF -e "$text" <<<"$out") == 1)) \
        "code $code, want 1 and '$text': $out"
}

flags=(-I"$CRYSTAL_BUILDDIR" -include config.h)
passes "includes point down the pipeline" "$tool/check-includes" "$CRYSTAL_SRCDIR"
passes "headers compile alone" "$tool/check-headers" "${CC:-cc}" "$CRYSTAL_SRCDIR" \
    "${flags[@]}"

# Each checker tells bad input from good.
includes=("$tool/check-includes" "$tmp/tree")
config='#include "config.h"'
fails runtime/error.c "$config" '#include "capture/recorder.h"' -- \
    "runtime/error.c:2: runtime includes capture/recorder.h" "${includes[@]}"
fails capture/park.c "$config" '#include "replay/board.h"' -- \
    "capture/park.c:2: capture includes replay/board.h" "${includes[@]}"
fails replay/hostccl/ring.c "$config" ' # include "commands/stage.h"' -- \
    "replay/hostccl/ring.c:2: replay includes commands/stage.h" "${includes[@]}"
fails spank/task.c "$config" '#include "commands/stage.h"' -- \
    "spank/task.c:2: spank includes commands/stage.h" "${includes[@]}"
fails runtime/trace.c "$config" '#include "runtime/graph_file.h"' -- \
    "runtime/trace.c:2: trace includes runtime/graph_file.h" "${includes[@]}"
fails runtime/conf.c '#include "runtime/conf.h"' -- \
    "runtime/conf.c:1: the first include is not config.h" "${includes[@]}"
fails runtime/conf.h "$config" -- \
    "runtime/conf.h:1: config.h is for the first line of a .c file" "${includes[@]}"
fails replay/board.c "$config" '#include "board.h"' -- \
    'replay/board.c:2: "board.h" has no folder' "${includes[@]}"
fails commands/layout.c "$config" '#include <hwloc/glibc-sched.h>' -- \
    "commands/layout.c:2: <hwloc/glibc-sched.h> belongs to runtime/topology.c" \
    "${includes[@]}"
fails runtime/graph.c "$config" '#include <cuda_runtime.h>' -- \
    "runtime/graph.c:2: <cuda_runtime.h> belongs to no file" "${includes[@]}"

headers=("$tool/check-headers" "${CC:-cc}" "$tmp/tree")
guard='#ifndef CRYSTAL_ONE_H'
fails runtime/one.h '#pragma once' -- "runtime/one.h: no guard" "${headers[@]}"
fails runtime/one.h "$guard" '#define CRYSTAL_TWO_H' '#endif' -- \
    "runtime/one.h: no guard" "${headers[@]}"
fails runtime/one.h "$guard" '#define CRYSTAL_ONE_H' 'size_t one;' '#endif' -- \
    "runtime/one.h:3:1: error" "${headers[@]}"
echo "1..$number"

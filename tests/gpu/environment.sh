# shellcheck shell=bash
# Sourced by check and bench, which set build (the folder): the plugins, PyTorch's
# libraries and the node's service. Sets libs and python.

libs=$build/lib
[ -d "$libs" ] || libs=$build/.libs
python=${PYTHON:-python3}

# The library of this name in PyTorch's wheels.
wheel_library() { # PATTERN
    "$python" - "$1" <<'PY' 2>/dev/null
import glob, sys, sysconfig
found = glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/*/lib/" + sys.argv[1])
print(found[0] if found else "")
PY
}

NCCL=${NCCL:-$(wheel_library 'libnccl.so.2')}
CUDART=${CUDART:-$(wheel_library 'libcudart.so.1[23]')}
export NCCL CUDART
[ -n "$NCCL" ] || unset NCCL
[ -n "$CUDART" ] || unset CUDART
echo "# NCCL ${NCCL:-of the loader}, $(nvidia-smi --query-gpu=name,driver_version \
    --format=csv,noheader 2>/dev/null)"
for file in "$libs/libnccl-net-crystal.so" "$build/tests/programs/nodeserver" \
    "$build/tests/gpu/rank" "$build/tests/gpu/load" "$build/tests/gpu/time" \
    "$build/tests/gpu/sizes" "$build/tests/gpu/ring_time" "$build/tests/gpu/split"; do
    [ -e "$file" ] && continue
    echo "Bail out! no ${file##*/} in ${file%/*}: not all of the folder was carried"
    exit 1
done
export LD_LIBRARY_PATH=$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export NCCL_NET_PLUGIN=$libs/libnccl-net-crystal.so
export NCCL_PROFILER_PLUGIN=$libs/libnccl-net-crystal.so
# NCCL 2.28 forgets a plugin's name with its last communicator; this counts one more.
export NCCL_NET_PLUGIN_REF_COUNT=1
export NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_IB_DISABLE=1
export NCCL_COMM_SPLIT_SHARE_RESOURCES=0 NCCL_COMM_SHRINK_SHARE_RESOURCES=0
export NCCL_UID_STAGGER_THRESHOLD=1000000 NCCL_GRAPH_REGISTER=0

# The node's service for N ranks, REAL of them real, with IDS ids in $1.ids; the wire is
# not paced unless the last two say how. Nodes have NODE_RANKS ranks (1); NODE_OPTIONS go
# to it as they are, NODE_GROUP is a group that it is told. Sets node (its pid) and board.
node_start() { # LOG N REAL IDS [BYTES_PER_S LATENCY_NS]
    local log=$1 i
    rm -f "$log.in" "$log.node"
    mkfifo "$log.in" && exec 9<>"$log.in"
    # shellcheck disable=SC2086
    CRYSTAL_LOG=warning "$build/tests/programs/nodeserver" -n "$2" -g "${NODE_RANKS:-1}" \
        -r "$3" \
        -b "${5:-0}" -l "${6:-0}" ${NODE_OPTIONS:-} <"$log.in" >"$log.node" 2>"$log.node.err" 9>&- &
    node=$!
    [ -z "${NODE_GROUP:-}" ] || echo "group $NODE_GROUP" >&9
    for ((i = 1; i < $4; i++)); do
        echo "forge c$i 0-$(($2 - 1))" >&9
    done
    for ((i = 0; i < 200; i++)); do
        [ "$(grep -sc '^id' "$log.node" || true)" -ge "$4" ] 2>/dev/null && break
        sleep 0.05
    done
    awk '/^id/ { print $3 }' "$log.node" >"$log.ids"
    board=$(awk '/^board/ { print $2 }' "$log.node")
}

node_stop() { # LOG
    exec 9>&-
    rm -f "$1.in"
    wait "$node" 2>/dev/null
    head -5 "$1.node.err" | sed 's/^/#   node: /'
}

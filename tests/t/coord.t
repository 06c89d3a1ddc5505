#!/bin/bash
# scrystal coord by hand: its files, its exit codes, what it says to bad input.
set -u
scrystal=$CRYSTAL_BUILDDIR/scrystal
tmp=$(mktemp -d) || exit 1
number=0
coords=()
cleanup() {
    [ ${#coords[@]} -eq 0 ] || kill -9 "${coords[@]}" 2>/dev/null
    rm -rf "$tmp"
}
trap cleanup EXIT

ok() { # ok NAME COMMAND...
    number=$((number + 1)) name=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        sed 's/^/# /' "$tmp/out" "$tmp/log" 2>/dev/null
    fi
}

says() { # says CODE TEXT COMMAND...: ends with CODE and one line, which has TEXT
    code=$1 text=$2
    shift 2
    "$@" >"$tmp/said" 2>&1
    rc=$?
    cat "$tmp/said"
    [ "$rc" -eq "$code" ] && grep -qF -e "$text" "$tmp/said" &&
        [ "$(wc -l <"$tmp/said")" -eq 1 ]
}

start() { # start JOB OPTION...: a coordinator in the background, ready
    job=$1
    shift
    "$scrystal" coord --job "$job" "$@" >"$tmp/log" 2>&1 &
    coord=$!
    coords+=("$coord")
    for _ in $(seq 1200); do
        [ -e "$job/coord" ] && return 0
        sleep 0.05
    done
    return 1
}

ends() { # ends CODE: the coordinator ends with CODE
    wait "$coord"
    [ $? -eq "$1" ]
}

mode() { # mode FILE MODE
    [ "$(stat -c %a "$1")" = "$2" ]
}

for job in one two; do
    "$scrystal" layout --logical-ranks=16 --live=all --job-dir="$tmp/$job" --write \
        >/dev/null 2>&1 || exit 1
done
one=$tmp/one two=$tmp/two

ok "no job directory" says 2 "--job is missing" "$scrystal" coord
ok "no such job directory" says 2 "No such file" "$scrystal" coord --job "$tmp/none"
mkdir -m 700 "$tmp/empty"
ok "no layout" says 2 "layout.yaml" "$scrystal" coord --job "$tmp/empty"
for port in x -1 65536 1.5 ""; do
    ok "store port '$port'" says 2 "is no port; give a number from 0 to 65535" \
        "$scrystal" coord --job "$one" "--store-port=$port"
done
ok "a host that is none" says 2 "host 'no such host'" \
    "$scrystal" coord --job "$one" --allow "127.0.0.1,no such host"

ok "nothing to finish" says 70 "no coordinator serves $one" \
    "$scrystal" coord --finish --job "$one"
ok "nothing to finish, if any" "$scrystal" coord --finish --if-any --job "$one"
ok "it starts" start "$one"
ok "its address is private" mode "$one/coord" 600
ok "its token is private" mode "$one/token" 600
ok "the token has 64 digits" grep -qxE '[0-9a-f]{64}' "$one/token"
ok "a second one is refused" says 2 "is in use by process $coord" \
    "$scrystal" coord --job "$one"
port=$(sed -n 's/^store_port=//p' "$one/coord")
ok "MASTER_PORT taken" says 2 \
    "port $port is in use by another program; choose a free one with --store-port" \
    "$scrystal" coord --job "$two" --store-port "$port"
ok "and nothing is left of that" [ ! -e "$two/coord" ]
ok "it finishes" "$scrystal" coord --finish --job "$one"
ok "and ends well" ends 0
ok "and leaves no address" [ ! -e "$one/coord" ]
ok "and no token" [ ! -e "$one/token" ]

ok "it starts at the port it was given" start "$one" --store-port "$port"
ok "which is the port" grep -qx "store_port=$port" "$one/coord"
kill -TERM "$coord"
ok "SIGTERM ends it" ends 70
ok "and its address is gone" [ ! -e "$one/coord" ]

start "$one"
kill -KILL "$coord"
wait "$coord" 2>/dev/null
ok "killed, it leaves its address" [ -e "$one/coord" ]
rm "$one/coord"
ok "and the next one starts" start "$one"
ok "and finishes" "$scrystal" coord --finish --job "$one"
ok "and ends well, too" ends 0
# a layout of another's, and another's coordinator
"$scrystal" layout --logical-ranks=16 --live=all --job-dir="$tmp/one" --write --claim=a.b.1 \
    >/dev/null 2>&1
ok "another's layout" says 2 "another job has begun in it just now" \
    "$scrystal" coord --job="$tmp/one" --claim=a.b.2
ok "its own layout" start "$tmp/one" --claim=a.b.1
ok "another's coordinator" says 70 "no coordinator serves $tmp/one" \
    "$scrystal" coord --job="$tmp/one" --finish --claim=a.b.2
ok "its own coordinator" "$scrystal" coord --job="$tmp/one" --finish --claim=a.b.1
ok "it has ended" ends 0
echo "1..$number"

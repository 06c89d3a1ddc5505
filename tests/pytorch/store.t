#!/bin/bash
# PyTorch's own TCPStore client and start-up against the store of scrystal coord.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"
scrystal=$CRYSTAL_BUILDDIR/scrystal
job=$tmp/job
"$scrystal" layout --logical-ranks=16 --parallel=dp=16 --job-dir="$job" --write \
    >"$tmp/layout" 2>&1 || { cat "$tmp/layout"; exit 1; }
"$scrystal" coord --job "$job" &
coord=$!
while [ ! -e "$job/coord" ] && kill -0 "$coord" 2>/dev/null; do
    sleep 0.1
done
"$python" "$CRYSTAL_SRCDIR/tests/pytorch/store.py" "$job" \
    >"$tmp/store" 2>"$tmp/err"
grep -v '^1\.\.' "$tmp/store"
number=$(grep -cE '^(not )?ok ' "$tmp/store")
ok "all of it ran" grep -qx "1..$number" "$tmp/store" || sed 's/^/# /' "$tmp/err"
ok "the coordinator finishes" "$scrystal" coord --finish --job "$job"
wait "$coord"
ok "and ends well" [ $? -eq 0 ]
echo "1..$number"

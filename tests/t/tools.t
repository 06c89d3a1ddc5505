#!/bin/bash
# What scrystal's tools refuse, each with one sentence and the right exit code, and what
# they leave alone: 2 bad usage, 70 a file that cannot be read or written.
set -u
: "${CRYSTAL_BUILDDIR:=.}"
work=$(mktemp -d /tmp/crystal-tools.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
count=0
ok() { # NAME CONDITION-CODE [TEXT]
    count=$((count + 1))
    if [ "$2" -eq 0 ]; then
        echo "ok $count - $1"
    else
        echo "not ok $count - $1"
        printf '%s\n' "${3:-}" | sed 's/^/# /'
    fi
}
# refuses NAME CODE SENTENCE ARGUMENT...: ends within 20 s with CODE, and all that
# standard error says is SENTENCE
refuses() {
    local name=$1 code=$2 sentence=$3 got rc
    shift 3
    timeout 20 "$CRYSTAL_BUILDDIR/scrystal" "$@" >out 2>err
    rc=$?
    got=$(cat err)
    [ "$rc" -eq "$code" ] && [ "$got" = "$sentence" ]
    ok "$name" $? "exit code $rc, want $code
$got
$sentence"
}
# says NAME TEXT ARGUMENT...: exit code 0, and standard output has TEXT
says() {
    local name=$1 text=$2 rc
    shift 2
    timeout 20 "$CRYSTAL_BUILDDIR/scrystal" "$@" >out 2>err
    rc=$?
    [ $rc -eq 0 ] && grep -qF -- "$text" out
    ok "$name" $? "exit code $rc
$(cat out err)
want: $text"
}

describe() { # LAYERS SEQUENCE MICROBATCHES
    printf 'parallel: {tp: 2, pp: 2, dp: 4}\nmodel: {layers: %s, hidden: 256, heads: 4, ffn: 512}\n' "$1"
    printf 'batch: {sequence: %s, microbatches: %s}\n' "$2" "$3"
}
describe 4 256 2 >job.yaml
says "a small job" "16 ranks through 2 lists" graph synth job.yaml job.graph

# --- outputs ---
node=$work/null
mkfifo pipe
if mknod "$node" c 1 3 2>/dev/null; then
    refuses "a device is no graph" 70 \
        "crystal: graph: $node: not a regular file; it is not replaced, name another file" \
        graph synth job.yaml "$node"
    says "a device takes a drawing" "$node: the drawing" predict job.graph --draw="$node"
    [ -c "$node" ]
    ok "and stays one" $?
else
    for name in "a device is no graph" "a device takes a drawing" "and stays one"; do
        count=$((count + 1))
        echo "ok $count - $name # SKIP needs the right to make devices"
    done
fi
refuses "a pipe is no graph" 70 \
    "crystal: graph: pipe: not a regular file; it is not replaced, name another file" \
    graph synth job.yaml pipe
refuses "nor a directory" 70 \
    "crystal: graph: .: not a regular file; it is not replaced, name another file" \
    graph synth job.yaml .
refuses "a pipe that nobody reads" 70 "crystal: predict: pipe: nobody reads this pipe" \
    predict job.graph --draw=pipe
cat pipe >through &
says "one that somebody reads" "pipe: the drawing" predict job.graph --draw=pipe
wait
tail -n1 through | grep -qx '</svg>'
ok "gets all of it" $? "$(tail -n1 through)"
says "with what is changed" "what.svg: the drawing" \
    predict job.graph --slow-rank=1=1.5 --nics=shared --draw=what.svg
grep -q ">what if: rank 1 computes 1.5 times as long; messages and collectives of a rank share its NIC<" what.svg
ok "the drawing says what" $? "$(grep 'what if' what.svg)"
touch real && chmod 640 real && ln -s real link
says "through a link" "link: the drawing" predict job.graph --draw=link
[ -L link ] && [ "$(stat -c %a real)" = 640 ] && tail -n1 real | grep -qx '</svg>'
ok "its file is written, with its permissions" $? "$(ls -l link real)"
ln -s nowhere dangling
refuses "a link to nothing" 70 \
    "crystal: predict: dangling: a link to a file that cannot be found: No such file or directory" \
    predict job.graph --draw=dangling
"$CRYSTAL_BUILDDIR/scrystal" predict job.graph --sweep=bandwidth=1GB/s --csv=/dev/stdout >both
[ "$(head -n1 both)" = "bandwidth,iteration_ns,percent" ] && grep -q '^bandwidth  ' both
ok "a table in the file of standard output keeps what is printed" $? "$(cat both)"
[ -z "$(find . -name '*.tmp')" ]
ok "no temporary file is left" $? "$(ls)"
refuses "a drawing without a name" 70 \
    "crystal: predict: the name of a file to write is empty; give one" \
    predict job.graph --draw=
refuses "traces without a name" 2 \
    "crystal: graph: --chakra='': names no file; give what the names begin with, such as 'trace'" \
    graph export --chakra= job.graph
refuses "traces named by a folder" 2 \
    "crystal: graph: --chakra='out/': names no file; give what the names begin with, such as 'out/trace'" \
    graph export --chakra=out/ job.graph
# a trace of one node of 5 us, twice; the graph to write forgotten
printf '\007\012\0050.0.4\006\010\001\030\004\070\005' | tee one.0.et >two.0.et
is_kept="is there and is no graph; name the graph to write, or remove this file"
refuses "a trace is not written over" 2 "crystal: graph: one.0.et: $is_kept" \
    graph import one.0.et two.0.et
cmp -s one.0.et two.0.et
ok "and is what it was" $?
cp job.yaml kept.yaml
refuses "nor a description" 2 "crystal: graph: kept.yaml: $is_kept" \
    graph synth job.yaml kept.yaml
cmp -s job.yaml kept.yaml
ok "and it, too" $?
cp job.graph old.graph
says "a graph is" "old.graph: 16 ranks" graph synth job.yaml old.graph

# --- inputs ---
fifo="not a regular file; name a file that can be read from its beginning"
refuses "show a pipe" 70 "crystal: show: pipe: $fifo" show pipe
refuses "verify a pipe" 70 "crystal: verify: pipe: $fifo" verify pipe
refuses "predict a pipe" 70 "crystal: predict: pipe: $fifo" predict pipe
refuses "a profile that is a pipe" 70 "crystal: predict: pipe: $fifo" \
    predict job.graph --profile=pipe
refuses "import a pipe" 70 "crystal: graph: pipe: $fifo" graph import new.graph pipe
refuses "a description that is a pipe" 2 "crystal: graph: pipe: $fifo" \
    graph synth pipe new.graph
refuses "a configuration that is a pipe" 2 "crystal: layout: pipe: $fifo" \
    layout --logical-ranks=8 --config=pipe
refuses "a topology that is a pipe" 2 "crystal: layout: topology: pipe: $fifo" \
    layout --logical-ranks=8 --topology=pipe

# --- bounds of a description ---
bound() { # NAME SENTENCE LAYERS SEQUENCE MICROBATCHES
    describe "$3" "$4" "$5" >bound.yaml
    refuses "$1" 2 "crystal: graph: $2" graph synth bound.yaml bound.graph
}
bound "too many passes" "bound.yaml: model.layers * batch.microbatches = 262152 passes of a layer, at most 262144" \
    8 256 32769
bound "too many passes of allowed sizes" "bound.yaml: model.layers * batch.microbatches = 4294967296 passes of a layer, at most 262144" \
    65536 256 65536
bound "a sequence that is too long" "bound.yaml: batch.sequence 67108865 must be from 1 to 67108864" \
    4 67108865 2
describe 4 67108864 2 >bound.yaml
sed -i 's/hidden: 256/hidden: 1048576, head-size: 64/; s/sequence:/microbatch: 65536, sequence:/' bound.yaml
refuses "sizes that no number holds" 2 \
    "crystal: graph: bound.graph: it would hold 3.69e+19 bytes of memory, more than the 9.01e+15 that are possible; make the model or its batch smaller, or the hardware faster" \
    graph synth bound.yaml bound.graph
[ ! -e bound.graph ]
ok "and nothing is written" $?

# --- import ---
bad() { # OPTION VALUE
    refuses "import --$1=$2" 2 \
        "crystal: graph: --$1: bad value '$2'; see scrystal graph import --help" \
        graph import "--$1=$2" new.graph one.0.et
}
bad ranks-per-node 0
bad ranks-per-node 8x
bad bandwidth -1
bad node-latency 99999999999s

# --- predict ---
refuses "a seed below 0" 2 \
    "crystal: predict: --seed: bad value '-1'; see scrystal predict --help" \
    predict job.graph --jitter=0.5 --seed=-1
refuses "a sweep of the same twice" 2 \
    "crystal: predict: --sweep=bandwidth: is given twice; name all values in one --sweep" \
    predict job.graph --sweep=bandwidth=1GB/s --sweep=bandwidth=2GB/s
says "but of two slow ranks" "1=2              2=2" \
    predict job.graph --sweep=slow-rank=1=2 --sweep=slow-rank=2=2
refuses "a rank that is none" 2 "crystal: predict: --slow-rank=16: the job has 16 ranks, from 0" \
    predict job.graph --slow-rank=16=2
refuses "a dead rank that is none" 2 "crystal: predict: --dead-rank=99: the job has 16 ranks, from 0" \
    predict job.graph --dead-rank=99
refuses "a link that is none" 2 "crystal: predict: --slow-link=0:2: the job has 2 nodes, from 0" \
    predict job.graph --slow-link=0:2=0.5
refuses "a rank that is none, in a sweep" 2 \
    "crystal: predict: --slow-rank=99: the job has 16 ranks, from 0" \
    predict job.graph --sweep=slow-rank=1=2,99=2
refuses "a table without a sweep" 2 \
    "crystal: predict: --csv=new.csv: is the table of a sweep; give --sweep, too" \
    predict job.graph --csv=new.csv
refuses "a drawing of a sweep" 2 \
    "crystal: predict: --draw=new.svg: a sweep draws nothing; leave out one of --draw and --sweep" \
    predict job.graph --draw=new.svg --sweep=bandwidth=1GB/s
refuses "a latency beyond all time" 2 "crystal: predict: --latency: at most 1e9 s, 31 years" \
    predict job.graph --latency=1000000001s
too_long="crystal: predict: an operation or an iteration takes longer than 31 years, more than is counted; make latencies or durations smaller, or bandwidths greater"
refuses "an operation beyond all time" 2 "$too_long" predict job.graph --node-latency=1e9s
says "latencies of years" "iteration of 16 ranks: 2250000000000.352 ms" \
    predict job.graph --latency=7.5e8s
grep -qE '^  iteration +[0-9]+\.[0-9]{3} +[0-9]+\.[0-9]% +' out &&
    awk '/^  iteration / { exit !($2 >= $4 && $2 <= $7) }' out
ok "the mean is between least and most" $? "$(grep '^  iteration ' out)"
says "the slowed rank is named" "  what if: rank 3 computes 2 times as long" \
    predict job.graph --slow-rank=3=2
says "the slowed link is counted" \
    "  what if: link 0:1 has 0.5 of its bandwidth; 16 communicators use it" \
    predict job.graph --slow-link=0:1=0.5

for threads in 1 4; do
    "$CRYSTAL_BUILDDIR/scrystal" predict job.graph --jitter=0.05 --threads=$threads >one.$threads
    "$CRYSTAL_BUILDDIR/scrystal" predict job.graph --threads=$threads --csv=csv.$threads \
        --sweep=bandwidth=1GB/s,2GB/s,3GB/s --sweep=slow-rank=1=2,2=3,3=4 >sweep.$threads
done
cmp one.1 one.4 && cmp sweep.1 sweep.4 && cmp csv.1 csv.4 && [ "$(wc -l <csv.4)" -eq 10 ] &&
    [ "$(cut -d, -f1-2 csv.4 | sed -n 6p)" = "2GB/s,2=3" ]
ok "threads change nothing" $? "$(diff sweep.1 sweep.4; cat csv.4)"
refuses "no threads" 2 "crystal: predict: --threads: '0' is no whole number from 1 to 64" \
    predict job.graph --threads=0
many=1GB/s$(printf ',%sGB/s' {2..50})
refuses "a sweep without an end" 2 \
    "crystal: predict: --sweep: 125000 combinations of values, at most 65536" \
    predict job.graph --sweep=bandwidth="$many" --sweep=node-bandwidth="$many" \
    --sweep=latency="$(printf '%sus,' {1..49})50us"

refuses "ranks that are none, to export" 2 \
    "crystal: graph: rank list '99' names ranks beyond 15" \
    graph export --chakra=et --ranks=99 job.graph

# --- layout ---
refuses "bad GPUs" 2 \
    "crystal: layout: --gpus-per-node: 'x' is no whole number from 1 to 4294967295" \
    layout --logical-ranks=8 --gpus-per-node=x
refuses "bad GPUs beside ranks" 2 \
    "crystal: layout: --gpus-per-node: '0' is no whole number from 1 to 4294967295" \
    layout --logical-ranks=8 --ranks-per-node=2 --gpus-per-node=0
for option in job-dir job-name config sandbox parallel; do
    refuses "empty --$option" 2 \
        "crystal: layout: --$option: is empty; give a value or leave it out" \
        layout --logical-ranks=8 --$option=
done
# --- options that none has: one sentence as of all other faults, then the usage
for command in layout capture graph verify predict plan emulate agent report show coord doctor \
    "graph synth" "graph import" "graph export"; do
    # shellcheck disable=SC2086 # a verb is a word of its own
    "$CRYSTAL_BUILDDIR/scrystal" $command --banana >out 2>err
    code=$?
    [ $code -eq 2 ] &&
        [ "$(head -n 1 err)" = "crystal: ${command%% *}: unrecognized option '--banana'" ]
    ok "$command --banana" $? "exit code $code
$(cat err)"
done
echo "1..$count"

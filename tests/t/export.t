#!/bin/sh
# scrystal graph export: a small job as Chakra traces, read back by a reader of protobuf
# of its own, and as trace events, read back as JSON.
bin=$CRYSTAL_BUILDDIR
if ! command -v python3 >/dev/null; then
    echo "1..0 # SKIP needs python3 to read what is written"
    exit 0
fi
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cat >"$dir/job.yaml" <<END
parallel: {tp: 2, pp: 2}
model: {layers: 4, hidden: 256, heads: 4, ffn: 512}
batch: {sequence: 256, microbatches: 2}
END
cd "$dir" || exit 1
"$bin/scrystal" graph synth job.yaml job.graph >/dev/null &&
    "$bin/scrystal" graph export --chakra=et job.graph &&
    "$bin/scrystal" graph export --perfetto=trace.json job.graph || exit 1
python3 - <<'END'
import json

def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7f) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at

def fields(data):
    at, out = 0, []
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        else:
            assert tag & 7 == 2, tag
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        out.append((tag >> 3, value))
    assert at == len(data)
    return out

def messages(path):
    data, at = open(path, "rb").read(), 0
    while at < len(data):
        size, at = varint(data, at)
        yield fields(data[at:at + size])
        at += size

def attributes(node):
    out = {}
    for number, value in node:
        if number == 10:
            parts = dict(fields(value))
            name = parts.pop(1).decode()
            out[name], = parts.values()
    return out

number = 0

def result(what, good):
    global number
    number += 1
    print(f"{'ok' if good else 'not ok'} {number} - {what}")

groups = json.load(open("et.json"))
sent, received, colls, order = [], [], {}, True
for rank in range(4):
    nodes = list(messages(f"et.{rank}.et"))
    order = order and nodes[0] == [(1, b"0.0.4")]
    for index, node in enumerate(nodes[1:]):
        kind = dict(node)[3]
        order = order and dict(node)[1] == index
        order = order and all(v < index for n, v in node if n == 5)
        a = attributes(node)
        if kind == 5:
            sent.append((a["comm_src"], a["comm_dst"], a["comm_tag"], a["comm_size"]))
        elif kind == 6:
            received.append((a["comm_src"], a["comm_dst"], a["comm_tag"], a["comm_size"]))
        elif kind == 7:
            colls.setdefault(a["pg_name"].decode(), {}).setdefault(rank, []).append(
                (a["comm_type"], a["comm_size"]))
result("nodes are numbered and depend on earlier ones", order)
result("what is sent is received", sorted(sent) == sorted(received) and len(sent) == 8)
result("sizes are bytes", {s[3] for s in sent} == {256 // 2 * 256 * 2})
# to ASTRA-sim "0" is all ranks
result("groups are numbered from 1", sorted(map(int, groups)) == [*range(1, 1 + len(groups))])
result("groups hold who calls", all(sorted(c) == groups[g] for g, c in colls.items()))
result("members call the same",
       len(colls) == 2 and all(len({tuple(v) for v in c.values()}) == 1
                               for c in colls.values()))
events = json.load(open("trace.json"))["traceEvents"]
spans = [e for e in events if e["ph"] == "X"]
result("events of one rank of each list", {e["pid"] for e in spans} == {0, 2})
lanes = {}
for e in spans:
    lanes.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
result("work of one stream does not overlap",
       all(a[1] <= b[0] + 0.002 for l in lanes.values()
           for a, b in zip(sorted(l), sorted(l)[1:])))

# Another reader of protobuf, where there is one, with the schema as Chakra has it: fields
# of a wrong number or type would be missing here.
def schema():
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    file = descriptor_pb2.FileDescriptorProto(name="et", package="C", syntax="proto3")
    F = descriptor_pb2.FieldDescriptorProto
    def message(name, *rows):
        m = file.message_type.add(name=name)
        for number, field, kind, repeated, of in rows:
            f = m.field.add(name=field, number=number, type=kind,
                            label=F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL)
            if of:
                f.type_name = ".C." + of
    message("Attribute", (1, "name", F.TYPE_STRING, 0, 0), (7, "int32_val", F.TYPE_INT32, 0, 0),
            (9, "int64_val", F.TYPE_INT64, 0, 0), (27, "bool_val", F.TYPE_BOOL, 0, 0),
            (29, "string_val", F.TYPE_STRING, 0, 0))
    message("Node", (1, "id", F.TYPE_UINT64, 0, 0), (2, "name", F.TYPE_STRING, 0, 0),
            (3, "type", F.TYPE_INT32, 0, 0), (5, "data_deps", F.TYPE_UINT64, 1, 0),
            (7, "duration_micros", F.TYPE_UINT64, 0, 0),
            (10, "attr", F.TYPE_MESSAGE, 1, "Attribute"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("C.Node"))

try:
    Node = schema()
except ImportError:
    Node = None
good, found = True, 0
for rank in range(4):
    data, at = open(f"et.{rank}.et", "rb").read(), 0
    while at < len(data):
        size, at = varint(data, at)
        body, at = data[at:at + size], at + size
        if Node is None or at - size - 1 == 0:
            continue
        node = Node.FromString(body)
        values = {a.name: a for a in node.attr}
        if node.type in (5, 6):
            ours = values["comm_src" if node.type == 5 else "comm_dst"].int32_val
            good = good and ours == rank and values["comm_size"].int64_val > 0
            found += 1
        elif node.type == 7:
            good = good and values["pg_name"].string_val in groups
            found += 1
# by our own fields: numbers of attributes are those of their types
for node in list(messages("et.0.et"))[1:]:
    for field, value in node:
        if field == 10:
            parts = dict(fields(value))
            name = parts.pop(1).decode()
            want = {"is_cpu_op": 27, "comm_size": 9, "comm_type": 9, "pg_name": 29,
                    "comm_src": 7, "comm_dst": 7, "comm_tag": 7}[name]
            good = good and list(parts) == [want]
result("attributes have the fields of their types", good and (Node is None or found > 50))
json.dump(number, open("number", "w"))
END
number=$(cat number)
is() { # NAME CONDITION-CODE TEXT
    number=$((number + 1))
    if [ "$2" -eq 0 ]; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        echo "$3" | sed 's/^/# /'
    fi
}

# Back again: with durations of whole microseconds the imported job takes the same time to
# the nanosecond, on any network.
cat >whole.yaml <<END
parallel: {tp: 2, pp: 4, dp: 2, interleave: 2}
model: {layers: 8, hidden: 256, heads: 4, ffn: 512}
batch: {sequence: 256, microbatches: 8}
hardware: {launch: 0, kernel: 1ms}
END
"$bin/scrystal" graph synth whole.yaml whole.graph >/dev/null &&
    "$bin/scrystal" graph export --chakra=whole whole.graph &&
    "$bin/scrystal" graph import back.graph whole.*.et
is "Chakra traces are imported" $? "exit code $?"
said=$("$bin/scrystal" verify back.graph)
[ "$said" = "sound: 16 ranks, 80 communicators, 2624 calls of collectives and 448 messages agree, nothing waits for ever" ]
is "all ranks fit" $? "$said"
for what in bandwidth=50GB/s,1GB/s,10MB/s latency=5us,1ms; do
    for name in whole back; do
        "$bin/scrystal" predict "$name.graph" --slow-link=0:1=0.3 --sweep=$what \
            --csv="$name.csv" >/dev/null
    done
    difference=$(diff whole.csv back.csv)
    is "the same times with $what" $? "$difference"
done
refuses() { # NAME CODE SENTENCE ARGUMENT...
    name=$1 code=$2 sentence=$3
    shift 3
    said=$("$bin/scrystal" graph import "$@" 2>&1)
    got=$?
    [ $got -eq "$code" ] && [ "$said" = "crystal: graph: $sentence" ]
    is "$name" $? "exit code $got: $said"
}
head -c 1000 whole.0.et >cut.0.et
refuses "a trace that is cut" 70 \
    "cut.0.et: neither a trace of the PyTorch profiler nor a Chakra execution trace" \
    new.graph cut.0.et
groups="a process group is not among the ranks given (or not written out); give the traces of all ranks, of PyTorch 2.2 or later, or, of Chakra, its groups with --groups"
echo '{"7": [0, 1]}' >others.json
refuses "groups that are not told" 70 "whole.0.et: $groups" --groups=others.json new.graph whole.*.et
echo '{"0": [0, 99]}' >others.json
refuses "a group of others" 70 "others.json: names a rank without a trace" \
    --groups=others.json new.graph whole.*.et
echo '[]' >others.json
refuses "no groups" 70 'others.json: no {"GROUP": [RANK, ...], ...}' \
    --groups=others.json new.graph whole.*.et
refuses "too few ranks" 70 "whole.json: names a rank without a trace" new.graph whole.0.et whole.1.et
# nodes 0 and 1, each behind the other
printf '\007\012\0050.0.4\006\010\000\030\004\050\001\006\010\001\030\004\050\000' >round.0.et
refuses "nodes in a circle" 70 "round.0.et: its nodes wait for each other" new.graph round.0.et
printf '\007\012\0050.0.4\006\010\000\030\004\070\005\011\010\001\030\004\052\001\000\070\007' >line.0.et
"$bin/scrystal" graph import line.graph line.0.et
said=$("$bin/scrystal" predict line.graph | head -n1)
[ "$said" = "iteration of 1 ranks: 0.012 ms (rank 0 ends last), durations modelled, 0.0 million operations" ]
is "packed dependencies" $? "$said"
echo "1..$number"

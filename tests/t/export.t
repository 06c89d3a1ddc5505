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
print(f"1..{number}")
END

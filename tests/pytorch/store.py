"""PyTorch's own TCPStore client, and its start-up, against the store of a running
scrystal coord. usage: store.py JOB_DIR; prints TAP. The job has 16 ranks, rank 0 live."""

import datetime
import os
import socket
import struct
import sys
import threading

# Only the store is looked at here: no backend attaches itself.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch.distributed as dist  # noqa: E402
import torch.testing._internal.distributed.fake_pg  # noqa: E402, F401: backend "fake"

job = sys.argv[1]
coord = dict(line.strip().split("=") for line in open(f"{job}/coord"))
host, store_port = coord["host"], int(coord["store_port"])
number = 0


def ok(name, condition):
    global number
    number += 1
    print(f"{'ok' if condition else 'not ok'} {number} - {name}", flush=True)


def message(kind, body):
    return struct.pack("=4sHHII", b"CRM2", kind, 0, 1, len(body)) + body


def begin(stage):
    """Says HELLO as the agent of node 0 and begins a stage; the stage lasts as long as
    the connection."""
    token = bytes.fromhex(open(f"{job}/token").read().strip())
    agent = socket.create_connection((host, int(coord["port"])))
    agent.sendall(message(1, token + struct.pack("=IIII", 2, 0, os.getpid(), 0)))
    welcome = agent.recv(32, socket.MSG_WAITALL)
    agent.sendall(message(4, struct.pack("=II", stage, 0)))
    answer = agent.recv(16, socket.MSG_WAITALL)
    ok("an agent begins a stage", welcome[4] == 2 and answer[4] == 5)
    return agent


def client(seconds=600):
    return dist.TCPStore(
        host, store_port, None, False, datetime.timedelta(seconds=seconds)
    )


def operations():
    store = client()
    store.set("a", "one")
    ok("set and get", store.get("a") == b"one")
    ok("add", [store.add("n", 3), store.add("n", -5)] == [3, -2])
    ok("a counter is text", store.get("n") == b"-2")
    ok("compare_set makes", store.compare_set("c", "", "new") == b"new")
    ok("compare_set keeps", store.compare_set("c", "other", "x") == b"new")
    ok("compare_set changes", store.compare_set("c", "new", "newer") == b"newer")
    ok("check", store.check(["a", "c"]) and not store.check(["a", "none"]))
    keys = store.num_keys()
    ok("delete_key", store.delete_key("c") and not store.delete_key("c"))
    ok("num_keys", store.num_keys() == keys - 1)
    store.append("s", "ab")
    store.append("s", "cd")
    ok("append", store.get("s") == b"abcd")
    store.multi_set(["m0", "m1"], ["x", "y"])
    ok("multi_set and multi_get", store.multi_get(["m1", "m0"]) == [b"y", b"x"])
    big = "k" * 8000
    store.set(big, "v" * (8 << 20))
    ok("a key of 8 kB, a value of 8 MiB", len(store.get(big)) == 8 << 20)
    try:
        store.wait(["never"], datetime.timedelta(milliseconds=300))
        ok("a wait ends after its time", False)
    except dist.DistStoreError:
        ok("a wait ends after its time", True)
    ok("and the connection lives on", store.get("a") == b"one")
    threading.Timer(0.2, lambda: client().set("late", "!")).start()
    ok("a wait for a key that comes", store.get("late") == b"!")
    store.queue_push("q", "first")
    store.queue_push("q", "second")
    ok("queue_len", store.queue_len("q") == 2)
    ok("queue_pop", [store.queue_pop("q"), store.queue_pop("q")] == [b"first", b"second"])
    try:
        store.queue_pop("q", False)
        ok("an empty queue says so", False)
    except dist.QueueEmptyError:
        ok("an empty queue says so", True)
    threading.Timer(0.2, lambda: client().queue_push("q", "third")).start()
    ok("queue_pop waits", store.queue_pop("q") == b"third")
    ok("a second client", client().get("a") == b"one")


def group_store(store, group, device):
    """As new_group makes it: within the default group's store."""
    for prefix in "default_pg", "0/", f"{group}/", f"{device}/":
        store = dist.PrefixStore(prefix, store)
    return store


def absent_ranks():
    store = client()
    store.set("exception_dump", "0")
    ok("exception_dump never exists", not store.check(["exception_dump"]))
    store.set("crystal/group/5", "8,0")
    made = group_store(store, "5", "cpu").get("0")
    ok("the id of a group whose first rank is virtual", len(made) == 128)
    ok("is the same for the next who asks", group_store(client(), "5", "cpu").get("0") == made)


def start_up():
    """init_process_group and new_group of rank 0 of 16 with PyTorch's barriers on."""
    os.environ.update(
        RANK="0",
        WORLD_SIZE="16",
        MASTER_ADDR=host,
        MASTER_PORT=str(store_port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCH_DIST_INIT_BARRIER="1",
    )
    limit = datetime.timedelta(seconds=600)
    store, rank, size = next(dist.rendezvous("env://", timeout=limit))
    store = dist.PrefixStore("default_pg", store)  # as for every real backend
    dist.init_process_group(
        "fake", store=store, rank=rank, world_size=size, timeout=limit
    )
    ok("init_process_group returns without the others", dist.get_world_size() == 16)
    groups = [dist.new_group([r, (r + 1) % 16]) for r in range(16)]
    ok("so does new_group", len(groups) == 16)
    dist.destroy_process_group()


operations()
agent = begin(1)
absent_ranks()
start_up()
agent.sendall(message(18, b""))
agent.close()
print(f"1..{number}", flush=True)

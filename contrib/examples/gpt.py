#!/usr/bin/env python3
"""A small GPT, trained with tensor, pipeline, data and expert parallelism.

    torchrun --nproc-per-node 8 gpt.py --tp 2 --pp 2 --steps 20

Ranks are numbered with tensor parallelism fastest, then pipeline, then data: rank =
t + tp * (p + pp * d). Attention heads and MLP columns are split over tp; the layers are
split over pp and run in the 1F1B schedule; gradients are summed over dp in buckets. The
token embedding serves as the output matrix too: the first and the last stage both have
it and sum its gradient. However a run is split, its losses are those of one process.

With --experts, every second layer has that many MLPs, and a router sends each character
to the two that it likes best. With --ep, replica d has the experts of d % ep only: the
characters travel there and back in all-to-alls, whose sizes are told first and change
with every microbatch. With --chunks V, a stage has V pieces of the model, which run in
the interleaved 1F1B schedule (Megatron-LM's): less waiting, more messages.

The model learns to continue a text, character by character. With --compute-ms, the
computation of a microbatch takes exactly that long on every stage (backward twice as
long), whatever the machine: what remains to be seen is the communication.
"""

import argparse
import os
import sys
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--tp", type=int, default=1, help="tensor parallel ranks")
    add("--pp", type=int, default=1, help="pipeline stages")
    add("--ep", type=int, default=1, help="replicas that share one set of experts")
    add("--experts", type=int, help="of every second layer (default: 2 per --ep above 1)")
    add("--chunks", type=int, default=1, help="pieces of the model on each stage")
    add("--steps", type=int, default=20)
    add("--layers", type=int, default=4, help="in all stages together")
    add("--hidden", type=int, default=64)
    add("--heads", type=int, default=4)
    add("--seq", type=int, default=32, help="characters of one sequence")
    add("--batch", type=int, help="sequences of one step (default: one a microbatch)")
    add("--microbatches", type=int, default=4, help="per replica and step")
    add("--lr", type=float, default=3e-3)
    add("--clip", type=float, default=1.0, help="largest norm of the gradient")
    add("--bucket-kb", type=int, default=256, help="size of a gradient bucket")
    add("--compute-ms", type=float, default=0, help="time of a microbatch's forward")
    add("--slow", default=os.environ.get("GPT_SLOW", ""), metavar="RANK=FACTOR",
        help="this rank computes so many times longer (or GPT_SLOW; comma-separated)")
    add("--seed", type=int, default=1)
    add("--data", default=os.path.join(HERE, "..", "..", "doc", "architecture.md"))
    add("--backend", default="gloo", help="nccl: on GPUs, whose number ranks may exceed")
    add("--log-all", action="store_true", help="a line per step from every rank")
    add("--check", action="store_true", help="fail unless the loss falls")
    return parser.parse_args()


def say(line):
    """Prints a line in one write. torchrun's ranks share an output without buffers, where
    print() writes the end of a line by itself: behind what another rank wrote since."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def use_gpu():
    """From now on tensors are made on this rank's GPU; several may share one."""
    gpu = int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()
    torch.cuda.set_device(gpu)
    torch.set_default_device(torch.device("cuda", gpu))


def drawn(function, *args, generator):
    """Random numbers come from the CPU's generator, wherever they are used, so that
    losses do not depend on the device."""
    numbers = function(*args, generator=generator, device="cpu")
    return numbers.to(torch.get_default_device())


class Grid:
    """Where this rank stands, and the process groups of its row in each dimension."""

    def __init__(self, tp, pp, ep, chunks):
        self.rank, world = dist.get_rank(), dist.get_world_size()
        if tp < 1 or pp < 1 or world % (tp * pp):
            sys.exit(f"gpt.py: {world} ranks are no multiple of tp={tp} times pp={pp}")
        self.tp, self.pp, self.dp = tp, pp, world // (tp * pp)
        if ep < 1 or self.dp % ep:
            sys.exit(f"gpt.py: {self.dp} replicas are no multiple of ep={ep}")
        if chunks < 1 or (chunks > 1 and pp == 1):
            sys.exit("gpt.py: --chunks above 1 needs --pp above 1")
        self.ep, self.chunks = ep, chunks
        self.t = self.rank % tp
        self.p = self.rank // tp % pp
        self.d = self.rank // (tp * pp)
        # Every rank makes all groups in the same order and keeps its own.
        ts, ps, ds, es = range(tp), range(pp), range(self.dp), range(ep)
        at = self.rank_at
        self.tp_group = self.own([[at(t, p, d) for t in ts] for d in ds for p in ps])
        self.pp_group = self.own([[at(t, p, d) for p in ps] for d in ds for t in ts])
        self.dp_group = self.own([[at(t, p, d) for d in ds] for p in ps for t in ts])
        self.model_group = self.own([[at(t, p, d) for p in ps for t in ts] for d in ds])
        self.ep_group = self.expert_dp_group = None
        if ep > 1:
            self.ep_group = self.own([[at(t, p, d + e) for e in es]
                                      for d in ds[::ep] for p in ps for t in ts])
            self.expert_dp_group = self.own(  # replicas with the same experts
                [[at(t, p, d) for d in ds[e::ep]] for e in es for p in ps for t in ts])
        # Interleaved stages pass gradients past the values on their way.
        self.back_group = None
        if chunks > 1:
            self.back_group = self.own(
                [[at(t, p, d) for p in ps] for d in ds for t in ts])
        self.tied_group = None  # first and last stage, which share the embedding
        if pp > 1:
            ends = (0, pp - 1)
            self.tied_group = self.own(
                [[at(t, p, d) for p in ends] for d in ds for t in ts])
        self.is_first, self.is_last = self.p == 0, self.p == pp - 1
        self.before = at(self.t, (self.p - 1) % pp, self.d)
        self.after = at(self.t, (self.p + 1) % pp, self.d)
        self.first_of_row = at(0, self.p, self.d)
        self.last_stage = at(self.t, pp - 1, self.d)

    def rank_at(self, t, p, d):
        return t + self.tp * (p + self.pp * d)

    def own(self, rows):
        mine = None
        for row in rows:
            group = dist.new_group(row)
            if self.rank in row:
                mine = group
        return mine


class Pace:
    """Stretches computation to a chosen time. mark() stands where computation begins,
    until(seconds) where it ends, before communication; pause() and resume() are around
    communication in its middle."""

    def __init__(self, factor):
        self.factor = factor
        self.mark()

    def mark(self):
        self.done = 0
        self.resume()

    def pause(self):
        self.done += time.monotonic() - self.began

    def resume(self):
        self.began = time.monotonic()

    def until(self, seconds):
        self.pause()
        left = (seconds or self.done) * self.factor - self.done
        if (seconds or self.factor != 1) and left > 0:
            time.sleep(left)


class EnterSplit(torch.autograd.Function):
    """Before split weights: the value goes to all ranks of a tp row as it is, its
    gradient is the sum of theirs. In the backward pass a block ends here, unless it is
    the value beside another."""

    @staticmethod
    def forward(ctx, x, model, is_beside=False):
        ctx.model, ctx.is_beside = model, is_beside
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        seconds = None if ctx.is_beside else 2 * ctx.model.seconds
        return ctx.model.tp_sum(grad, seconds), None, None


class LeaveSplit(torch.autograd.Function):
    """Behind split weights: the value is the sum over the tp row, the gradient goes to
    each of them as it is."""

    @staticmethod
    def forward(ctx, x, model):
        return model.tp_sum(x, model.seconds)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class AllToAll(torch.autograd.Function):
    """Rows to the ranks of an ep row: sent[i] of them to rank i, received[i] from it."""

    @staticmethod
    def forward(ctx, x, model, sent, received):
        ctx.model, ctx.sent, ctx.received = model, sent, received
        return model.ep_exchange(x, sent, received)

    @staticmethod
    def backward(ctx, grad):
        return ctx.model.ep_exchange(grad, ctx.received, ctx.sent), None, None, None


class Stage(torch.nn.Module):
    """The layers of one pipeline stage, this rank's share of each."""

    def __init__(self, options, grid, vocabulary, pace):
        super().__init__()
        self.options, self.grid, self.pace = options, grid, pace
        hidden, layers = options.hidden, options.layers // grid.pp
        # A layer has two blocks that end in communication: attention and MLP.
        self.seconds = options.compute_ms / 1000 / (2 * layers)
        self.heads = options.heads // grid.tp
        self.whole = {}  # is a parameter alike on all ranks of a tp row?
        self.expert = {}  # does a parameter belong to an expert?
        if grid.is_first or grid.is_last:
            self.embedding = self.parameter("embedding", (vocabulary, hidden))
        if grid.is_first:
            self.positions = self.parameter("positions", (options.seq, hidden))
        # Pieces go round the stages: the first piece of each, then the second.
        layers //= grid.chunks
        self.chunks = [[(c * grid.pp + grid.p) * layers + i for i in range(layers)]
                       for c in range(grid.chunks)]
        share = options.experts // grid.ep
        self.experts = range(grid.d % grid.ep * share, (grid.d % grid.ep + 1) * share)
        for i in sum(self.chunks, []):
            for name in ("norm1", "norm2"):
                self.parameter(f"{name}_{i}", (hidden,), value=1)
            for name in ("query", "key", "value"):
                self.parameter(f"{name}_{i}", (hidden, hidden), split=0)
            self.parameter(f"attention_{i}", (hidden, hidden), split=1)
            self.parameter(f"down_bias_{i}", (hidden,), value=0)
            if self.has_experts(i):
                self.parameter(f"router_{i}", (options.experts, hidden), scale=0.2)
                for e in self.experts:
                    self.mlp(f"{i}_{e}", is_expert=True)
            else:
                self.mlp(i)
        if grid.is_last:
            self.parameter("norm", (hidden,), value=1)

    def has_experts(self, layer):
        return self.options.experts > 0 and layer % 2 == 1

    def mlp(self, name, is_expert=False):
        hidden = self.options.hidden
        for parameter in (
                self.parameter(f"up_{name}", (4 * hidden, hidden), split=0),
                self.parameter(f"up_bias_{name}", (4 * hidden,), split=0, value=0),
                self.parameter(f"down_{name}", (hidden, 4 * hidden), split=1)):
            self.expert[parameter] = is_expert

    def parameter(self, name, shape, split=None, value=None, scale=0.02):
        """The share of this rank, cut from the same whole wherever the cuts are."""
        if value is not None:
            whole = torch.full(shape, float(value))
        else:
            generator = torch.Generator()
            generator.manual_seed(self.options.seed + zlib.crc32(name.encode()))
            whole = drawn(torch.randn, shape, generator=generator) * scale
        if split is not None:
            whole = whole.chunk(self.grid.tp, split)[self.grid.t].clone()
        parameter = torch.nn.Parameter(whole)
        self.whole[parameter] = split is None
        self.expert[parameter] = False
        setattr(self, name, parameter)
        return parameter

    def tp_sum(self, x, seconds):
        """The sum over the tp row; behind a block of so many seconds, None within one."""
        x = x.contiguous()
        if seconds is None:
            self.pace.pause()
        else:
            self.pace.until(seconds)
        if self.grid.tp > 1:
            dist.all_reduce(x, group=self.grid.tp_group)
        if seconds is None:
            self.pace.resume()
        else:
            self.pace.mark()
        return x

    def ep_exchange(self, rows, sent, received):
        if self.grid.ep == 1:
            return rows.view_as(rows)
        got = rows.new_empty((sum(received), *rows.shape[1:]))
        self.pace.pause()
        dist.all_to_all_single(got, rows.contiguous(), received, sent,
                               group=self.grid.ep_group)
        self.pace.resume()
        return got

    def ep_table(self, counts):
        """Rows for each expert (columns) from each rank of the ep row."""
        table = counts.new_empty((self.grid.ep, len(counts)))
        if self.grid.ep == 1:
            table[0] = counts
            return table
        self.pace.pause()
        dist.all_gather_into_tensor(table.view(-1), counts, group=self.grid.ep_group)
        self.pace.resume()
        return table

    def norm_of(self, x, name):
        return F.layer_norm(x, x.shape[-1:], getattr(self, name))

    def linear(self, x, name, bias=None):
        return F.linear(x, getattr(self, name), bias)

    def attention_block(self, x, i):
        query, key, value = (
            self.linear(x, f"{name}_{i}").unflatten(2, (self.heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value"))
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.linear(y.transpose(1, 2).flatten(2), f"attention_{i}")

    def mlp_block(self, x, name):
        y = F.gelu(self.linear(x, f"up_{name}", getattr(self, f"up_bias_{name}")))
        return self.linear(y, f"down_{name}")

    def expert_block(self, x, i):
        """Each row of x through the two experts that the router likes best."""
        rows = x.flatten(0, 1)
        liking, chosen = F.softmax(self.linear(rows, f"router_{i}"), 1).topk(2)
        weight = EnterSplit.apply(liking / liking.sum(1, keepdim=True), self, True)
        rows = EnterSplit.apply(rows, self)
        # Every row twice, in the order of the experts that it goes to.
        order = chosen.flatten().argsort(stable=True)
        table = self.ep_table(chosen.flatten().bincount(minlength=self.options.experts))
        mine = table[:, self.experts.start:self.experts.stop]
        sent = table[self.grid.d % self.grid.ep].view(self.grid.ep, -1).sum(1).tolist()
        received = mine.sum(1).tolist()
        got = AllToAll.apply(rows[order // 2], self, sent, received)
        parts, share = got.split(mine.flatten().tolist()), len(self.experts)
        parts = [self.mlp_block(torch.cat(parts[k::share]), f"{i}_{e}")
                 .split(mine[:, k].tolist()) for k, e in enumerate(self.experts)]
        got = torch.cat([part for parts_of_rank in zip(*parts) for part in parts_of_rank])
        y = AllToAll.apply(got, self, received, sent)
        y = y * weight.flatten()[order].unsqueeze(1)
        return torch.zeros_like(rows).index_add(0, order // 2, y).view_as(x)

    def forward(self, x, targets, chunk):
        """Tokens or the piece before's values -> this piece's values or the loss summed
        over the characters."""
        if self.begins(chunk):
            x = F.embedding(x, self.embedding) + self.positions
        for i in self.chunks[chunk]:
            y = EnterSplit.apply(self.norm_of(x, f"norm1_{i}"), self)
            x = x + LeaveSplit.apply(self.attention_block(y, i), self)
            y = self.norm_of(x, f"norm2_{i}")
            if self.has_experts(i):
                y = self.expert_block(y, i)
            else:
                y = self.mlp_block(EnterSplit.apply(y, self), i)
            x = x + LeaveSplit.apply(y, self)
            x = x + getattr(self, f"down_bias_{i}")
        if not self.ends(chunk):
            return x
        logits = F.linear(self.norm_of(x, "norm"), self.embedding)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    def begins(self, chunk):
        return self.grid.is_first and chunk == 0

    def ends(self, chunk):
        return self.grid.is_last and chunk == self.grid.chunks - 1


class Text:
    """Batches of a text. Rank 0 chooses the alphabet; in each tp row the first rank
    reads and tells the others."""

    def __init__(self, options, grid):
        self.options, self.grid = options, grid
        with open(options.data, encoding="utf-8") as file:
            text = file.read()
        alphabet = ["".join(sorted(set(text))) if grid.rank == 0 else None]
        dist.broadcast_object_list(alphabet, src=0)
        number = {c: i for i, c in enumerate(alphabet[0])}
        self.size = len(number)
        self.tokens = torch.tensor([number.get(c, 0) for c in text])
        self.share = options.batch // grid.dp

    def microbatches(self, step):
        """(inputs, targets) of this replica's microbatches, alike for all of a row."""
        generator = torch.Generator().manual_seed(self.options.seed * 1000003 + step)
        last = len(self.tokens) - self.options.seq - 1
        starts = drawn(torch.randint, 0, last, (self.options.batch,), generator=generator)
        starts = starts[self.grid.d * self.share:(self.grid.d + 1) * self.share]
        batch = torch.empty(self.share, self.options.seq + 1, dtype=torch.int64)
        if self.grid.t == 0:
            batch = self.tokens[starts[:, None] + torch.arange(self.options.seq + 1)]
        if self.grid.tp > 1:
            dist.broadcast(batch, self.grid.first_of_row, group=self.grid.tp_group)
        return [(b[:, :-1], b[:, 1:]) for b in batch.chunk(self.options.microbatches)]


class Pipeline:
    """One step's forward and backward passes in the 1F1B schedule: a few forward passes
    to fill the pipeline, then one forward and one backward in turn, then the rest."""

    def __init__(self, options, grid, stage, pace):
        self.grid, self.stage, self.pace = grid, stage, pace
        size = options.batch // grid.dp // options.microbatches
        self.shape = (size, options.seq, options.hidden)

    def exchange(self, send=(), receive=()):
        """Sends (tensor, rank) pairs and receives from ranks, all at once."""
        got = [torch.empty(self.shape) for _ in receive]
        ops = [dist.P2POp(dist.isend, x, to, self.grid.pp_group) for x, to in send]
        ops += [dist.P2POp(dist.irecv, x, rank, self.grid.pp_group)
                for x, rank in zip(got, receive)]
        if ops:
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        return got

    def forward(self, x, microbatch, chunk=0):
        if self.stage.begins(chunk):
            x = microbatch[0]
        else:
            x.requires_grad_()
        self.pace.mark()
        y = self.stage(x, microbatch[1], chunk)
        self.running[chunk].append((x, y))
        if self.stage.ends(chunk):
            self.loss += y.item()
        return y.detach()

    def backward(self, grad, chunk=0):
        x, y = self.running[chunk].pop(0)
        self.pace.mark()
        y.backward(grad)
        return x.grad

    def run(self, microbatches):
        """Leaves summed gradients in the parameters; on the last stage, returns the
        summed loss."""
        grid, self.running, self.loss = self.grid, [[]], 0.0
        before = [] if grid.is_first else [grid.before]
        after = [] if grid.is_last else [grid.after]
        to_after = lambda x: [(x, rank) for rank in after]  # noqa: E731
        to_before = lambda x: [(x, rank) for rank in before]  # noqa: E731
        one = lambda got: got[0] if got else None  # noqa: E731
        count = len(microbatches)
        filling = min(grid.pp - grid.p - 1, count)
        for i in range(filling):
            x = one(self.exchange(receive=before))
            self.exchange(send=to_after(self.forward(x, microbatches[i])))
        x = one(self.exchange(receive=before)) if filling < count else None
        for i in range(filling, count):
            y = self.forward(x, microbatches[i])
            grad = self.backward(one(self.exchange(to_after(y), after)))
            more = before if i + 1 < count else []
            x = one(self.exchange(to_before(grad), more))
        for i in range(filling):
            grad = self.backward(one(self.exchange(receive=after)))
            self.exchange(send=to_before(grad))
        return self.loss


class InterleavedPipeline(Pipeline):
    """The same where a stage has several pieces of the model. Passes are numbered: pp
    microbatches through the first piece, the same through the second, and so on, then
    the next pp microbatches; backward from the last piece. A piece's values go to the
    next stage, the last stage's to the next piece of the first. Messages travel while
    the stage computes: a pass's input is awaited from the pass before on."""

    def __init__(self, options, grid, stage, pace):
        super().__init__(options, grid, stage, pace)
        if options.backend == "nccl":
            self.meet()

    def meet(self):
        """One element to each neighbour, pair by pair: NCCL makes a communicator with
        the first message of two ranks and waits for both, which they are not ready for
        in the middle of a step. (Nor are two stages: there messages of both ways wait
        for each other in one stream.)"""
        grid = self.grid
        for p in range(grid.pp):
            x = torch.zeros(1)
            for group, sender, receiver in ((grid.pp_group, p, (p + 1) % grid.pp),
                                            (grid.back_group, (p + 1) % grid.pp, p)):
                if grid.p == sender:
                    dist.send(x, grid.rank_at(grid.t, receiver, grid.d), group=group)
                elif grid.p == receiver:
                    dist.recv(x, grid.rank_at(grid.t, sender, grid.d), group=group)

    def place(self, number):
        """(piece, microbatch) of a forward pass."""
        row, pp = self.grid.chunks * self.grid.pp, self.grid.pp
        return number % row // pp, number // row * pp + number % pp

    def passes(self, count):
        """(is_forward, piece, microbatch) of a step in the order of this stage."""
        grid, total = self.grid, count * self.grid.chunks
        filling = (grid.pp - grid.p - 1) * 2 + (grid.chunks - 1) * grid.pp
        for number in range(total + filling):
            if number < total:
                yield True, *self.place(number)
            if filling <= number:
                chunk, microbatch = self.place(number - filling)
                yield False, grid.chunks - 1 - chunk, microbatch

    def expect(self, is_forward, chunk, _):
        """Begins to receive the input of a pass, if it has one: (value, work) or None."""
        grid, stage = self.grid, self.stage
        if stage.begins(chunk) if is_forward else stage.ends(chunk):
            return None
        x = torch.empty(self.shape)
        rank, group = ((grid.before, grid.pp_group) if is_forward else
                       (grid.after, grid.back_group))
        return x, dist.irecv(x, rank, group=group)

    def run(self, microbatches):
        grid, stage = self.grid, self.stage
        self.running, self.loss = [[] for _ in stage.chunks], 0.0
        passes, sent = list(self.passes(len(microbatches))), []
        coming = self.expect(*passes[0])
        for a_pass, then in zip(passes, passes[1:] + [None]):
            is_forward, chunk, microbatch = a_pass
            x = None
            if coming:
                x, work = coming
                work.wait()
            coming = self.expect(*then) if then else None
            if is_forward:
                y = self.forward(x, microbatches[microbatch], chunk)
                if not stage.ends(chunk):
                    sent.append(dist.isend(y, grid.after, group=grid.pp_group))
            else:
                y = self.backward(x, chunk)
                if not stage.begins(chunk):
                    sent.append(dist.isend(y, grid.before, group=grid.back_group))
        for work in sent:
            work.wait()
        return self.loss


def start_buckets(options, gradients, group):
    """Starts to sum gradients over a group, in buckets that fly all at once."""
    buckets, size = [[]], 0
    for grad in gradients:
        if size > options.bucket_kb * 1024:
            buckets.append([])
            size = 0
        buckets[-1].append(grad)
        size += grad.nbytes
    for bucket in buckets:
        flat = torch.cat([grad.flatten() for grad in bucket])
        yield bucket, flat, dist.all_reduce(flat, group=group, async_op=True)


def sum_gradients(options, grid, stage):
    """Sums the gradients over the replicas, an expert's over those that have it."""
    if grid.tied_group and (grid.is_first or grid.is_last):
        dist.all_reduce(stage.embedding.grad, group=grid.tied_group)
    shared, experts = [], []
    for parameter in reversed(list(stage.parameters())):
        is_own = grid.ep > 1 and stage.expert[parameter]
        (experts if is_own else shared).append(parameter.grad)
    flying = []
    if grid.dp > 1:
        flying += start_buckets(options, shared, grid.dp_group)
    if experts and grid.dp > grid.ep:
        flying += start_buckets(options, experts, grid.expert_dp_group)
    for bucket, flat, work in flying:
        work.wait()
        for grad, part in zip(bucket, flat.split([grad.numel() for grad in bucket])):
            grad.copy_(part.view_as(grad))


def clip_gradients(options, grid, stage):
    """Scales the gradient to a norm of at most --clip; a parameter counts once, however
    many ranks have it."""
    square, experts = torch.zeros(1), torch.zeros(1)
    for parameter in stage.parameters():
        is_copy = stage.whole[parameter] and grid.t > 0
        if grid.tied_group and grid.is_last and parameter is stage.embedding:
            is_copy = True
        if not is_copy:
            own = experts if stage.expert[parameter] else square
            own += parameter.grad.pow(2).sum()
    if grid.ep > 1:
        dist.all_reduce(experts, group=grid.ep_group)
    square += experts
    dist.all_reduce(square, group=grid.model_group)
    norm = square.sqrt().item()
    if norm > options.clip:
        for parameter in stage.parameters():
            parameter.grad.mul_(options.clip / norm)
    return norm


def mean_loss(grid, loss, characters):
    """The mean over all characters of all replicas, on every rank."""
    mean = torch.tensor([loss, float(characters)])
    if grid.is_last:
        dist.all_reduce(mean, group=grid.dp_group)
    if grid.pp > 1:
        dist.broadcast(mean, src=grid.last_stage, group=grid.pp_group)
    return (mean[0] / mean[1]).item()


def check_sizes(options, grid):
    options.batch = options.batch or grid.dp * options.microbatches
    if options.experts is None:
        options.experts = 2 * grid.ep if grid.ep > 1 else 0
    for name, part in (("layers", grid.pp * grid.chunks), ("heads", grid.tp),
                       ("hidden", options.heads),
                       ("microbatches", grid.pp if grid.chunks > 1 else 1),
                       ("batch", grid.dp * options.microbatches)):
        if getattr(options, name) < 1 or getattr(options, name) % part:
            sys.exit(f"gpt.py: --{name} must be a multiple of {part}")
    if options.experts and (options.experts < 2 or options.experts % grid.ep):
        sys.exit(f"gpt.py: --experts must be a multiple of {grid.ep} above 1")
    if grid.ep > 1 and options.experts == 0:
        sys.exit("gpt.py: --ep shares experts; give --experts too")


def main():
    options = parse_options()
    torch.set_num_threads(1)
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29471")
    if options.backend == "nccl":
        use_gpu()
    dist.init_process_group(options.backend)
    grid = Grid(options.tp, options.pp, options.ep, options.chunks)
    check_sizes(options, grid)
    slow = dict(entry.split("=") for entry in options.slow.split(",") if entry)
    pace = Pace(float(slow.get(str(grid.rank), 1)))
    text = Text(options, grid)
    stage = Stage(options, grid, text.size, pace)
    schedule = InterleavedPipeline if grid.chunks > 1 else Pipeline
    pipeline = schedule(options, grid, stage, pace)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=options.lr)
    characters = options.batch * options.seq
    if grid.rank == 0:
        say(f"gpt: tp={grid.tp} pp={grid.pp} dp={grid.dp} ep={grid.ep}, "
            f"{options.layers} layers of {options.hidden}, a step of {options.batch} "
            f"sequences of {options.seq} of {text.size} characters")
    dist.barrier()
    losses = []
    for step in range(options.steps):
        began = time.monotonic_ns()
        optimizer.zero_grad()
        loss = pipeline.run(text.microbatches(step))
        for parameter in stage.parameters():
            parameter.grad.div_(characters)
        sum_gradients(options, grid, stage)
        norm = clip_gradients(options, grid, stage)
        optimizer.step()
        losses.append(mean_loss(grid, loss, characters // grid.dp))
        ms = (time.monotonic_ns() - began) / 1e6
        if grid.rank == 0:
            say(f"step {step} loss {losses[-1]:.5f} norm {norm:.3f} time {ms:.2f} ms")
        if options.log_all:
            say(f"gpt rank={grid.rank} step={step} start_ns={began} "
                f"time_ms={ms:.3f} loss={losses[-1]:.7f} norm={norm:.7f}")
    dist.barrier()
    dist.destroy_process_group()
    if options.check and not losses[-1] < losses[0]:
        sys.exit(f"gpt.py: the loss did not fall, {losses[0]:.5f} to {losses[-1]:.5f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A GPT of megatron-core, as its wheel has it, trained on random characters.

    torchrun --nproc-per-node 8 megatron_gpt.py --tp 2 --pp 2 --steps 20

Only megatron-core and PyTorch are needed: layers are megatron-core's own, not Transformer
Engine's. Ranks are numbered as Megatron numbers them: tensor parallelism fastest, then
data, then pipeline. With --experts every layer has that many MLPs, of which the router
gives each token to two; with --ep, replicas share them out.

Every rank of one replica draws the same tokens, so that a step needs no data files and
the same run gives the same losses. The last stage prints its loss, rank 0 the time.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (DistributedDataParallel,
                                       DistributedDataParallelConfig,
                                       finalize_model_grads)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_block import (TransformerBlockSubmodules,
                                                         get_num_layers_to_build)
from megatron.core.transformer.transformer_config import TransformerConfig


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--tp", type=int, default=1, help="tensor parallel ranks")
    add("--pp", type=int, default=1, help="pipeline stages")
    add("--ep", type=int, default=1, help="replicas that share one set of experts")
    add("--experts", type=int, help="of every layer (default: 2 per --ep above 1)")
    add("--chunks", type=int, default=1, help="pieces of the model on each stage")
    add("--steps", type=int, default=20)
    add("--layers", type=int, default=4, help="in all stages together")
    add("--hidden", type=int, default=256)
    add("--heads", type=int, default=4)
    add("--seq", type=int, default=128, help="tokens of one sequence")
    add("--vocabulary", type=int, default=1024)
    add("--batch", type=int, default=1, help="sequences of one microbatch")
    add("--microbatches", type=int, default=4, help="per replica and step")
    add("--pad", action="store_true",
        help="give every expert as many tokens as its capacity, so that sizes never change")
    add("--distinct", type=int,
        help="only so many replicas draw tokens of their own, the others the same again")
    add("--lr", type=float, default=1e-3)
    add("--fp32", action="store_true", help="float32 instead of bfloat16")
    add("--shard", action="store_true", help="Megatron's distributed optimizer")
    add("--overlap", action="store_true",
        help="reduce gradients beside the backward pass, gather weights beside the "
             "forward pass (--shard), receive early (--chunks)")
    add("--seed", type=int, default=1)
    add("--backend", default="nccl")
    return parser.parse_args()


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Norm(torch.nn.LayerNorm):
    """A LayerNorm that tells Megatron that its gradient is to be summed over tensor
    parallel ranks, which have parts of the sequence (PyTorch's own, as megatron-core
    takes it, refuses them)."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


def configuration(options):
    dtype = torch.float32 if options.fp32 else torch.bfloat16
    moe = {}
    if options.experts:
        moe = {"num_moe_experts": options.experts, "moe_router_topk": 2,
               "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.01,
               "moe_token_dispatcher_type": "alltoall", "add_bias_linear": False}
    if options.experts and options.pad:
        moe |= {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
    return TransformerConfig(
        num_layers=options.layers, hidden_size=options.hidden,
        num_attention_heads=options.heads,
        tensor_model_parallel_size=options.tp, pipeline_model_parallel_size=options.pp,
        virtual_pipeline_model_parallel_size=options.chunks if options.chunks > 1 else None,
        expert_model_parallel_size=options.ep, sequence_parallel=options.tp > 1,
        pipeline_dtype=dtype, params_dtype=dtype, bf16=not options.fp32,
        hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False,
        bias_dropout_fusion=False, persist_layer_norm=False, use_cpu_initialization=True,
        overlap_p2p_comm=options.overlap and options.chunks > 1,
        batch_p2p_comm=not (options.overlap and options.chunks > 1), **moe)


def layers(options, config, chunk):
    """The stage's layers with our norm in the place of PyTorch's."""
    spec = get_gpt_layer_local_spec(num_experts=options.experts)
    spec.submodules.input_layernorm = Norm
    spec.submodules.pre_mlp_layernorm = Norm
    count = get_num_layers_to_build(config, vp_stage=chunk)
    return TransformerBlockSubmodules(layer_specs=[spec] * count, layer_norm=Norm)


def make_model(options, config):
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=options.overlap,
        use_distributed_optimizer=options.shard,
        overlap_param_gather=options.overlap and options.shard)
    model = []
    for i in range(options.chunks):
        chunk = i if options.chunks > 1 else None
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=chunk is None,
                                                       vp_stage=chunk)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=chunk is None,
                                                     vp_stage=chunk)
        part = GPTModel(config, layers(options, config, chunk), options.vocabulary,
                        options.seq, pre_process=first, post_process=last,
                        share_embeddings_and_output_weights=True, vp_stage=chunk)
        part = part.to(device=torch.cuda.current_device(), dtype=config.params_dtype)
        part.vp_stage = chunk
        model.append(DistributedDataParallel(config, ddp, part,
                                             disable_bucketing=i > 0))
    return model


def batches(options):
    """This replica's microbatches, for ever: tokens, and each one's next as its label."""
    generator = torch.Generator()
    replica = parallel_state.get_data_parallel_rank() % (options.distinct or 1 << 30)
    generator.manual_seed(options.seed + 1000 * replica)
    while True:
        text = torch.randint(options.vocabulary, (options.batch, options.seq + 1),
                             generator=generator)
        yield text.to(torch.cuda.current_device())


def loss_of(output):
    loss = output.float().mean()
    return loss, {"loss": loss.detach().clone()}  # the schedule scales loss


def forward_step(iterator, model):
    text = next(iterator)
    seq = text.shape[1] - 1
    positions = torch.arange(seq, device=text.device).expand(text.shape[0], seq)
    mask = torch.ones((seq, seq), dtype=torch.bool, device=text.device).triu(1)
    output = model(text[:, :-1].contiguous(), positions, mask[None, None],
                   labels=text[:, 1:].contiguous())
    return output, loss_of


def prepare(options):
    if options.experts is None:
        options.experts = 2 * options.ep if options.ep > 1 else None
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"),
                        ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29472")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0))
                              % torch.cuda.device_count())
    dist.init_process_group(options.backend)
    parallel_state.initialize_model_parallel(
        options.tp, options.pp, options.chunks if options.chunks > 1 else None,
        expert_model_parallel_size=options.ep, create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(options.seed)


def main():
    options = parse_options()
    prepare(options)
    config = configuration(options)
    model = make_model(options, config)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=options.lr, bf16=not options.fp32,
                        params_dtype=config.params_dtype, clip_grad=1.0,
                        use_distributed_optimizer=options.shard,
                        overlap_param_gather=options.overlap and options.shard),
        model, use_gloo_process_groups=False)
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if options.overlap:
        config.no_sync_func = [part.no_sync for part in model]
        if options.chunks == 1:
            config.no_sync_func = config.no_sync_func[0]
    iterators = [batches(options) for _ in model]
    run = get_forward_backward_func()
    is_last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    dist.barrier()
    for step in range(options.steps):
        began = time.monotonic()
        for part in model:
            part.zero_grad_buffer()
        optimizer.zero_grad()
        losses = run(forward_step_func=forward_step,
                     data_iterator=iterators if options.chunks > 1 else iterators[0],
                     model=model if options.chunks > 1 else model[0],
                     num_microbatches=options.microbatches, seq_length=options.seq,
                     micro_batch_size=options.batch)
        is_done, norm, _ = optimizer.step()
        seconds = time.monotonic() - began
        rank = dist.get_rank()
        if is_last and parallel_state.get_tensor_model_parallel_rank() == 0:
            mean = sum(l["loss"].item() for l in losses) / len(losses)
            say(f"megatron rank={rank} step={step} loss={mean:.6f} norm={norm:.6f}")
        if rank == 0:
            say(f"megatron rank=0 step={step} time_ms={1000 * seconds:.2f}"
                + ("" if is_done else " left out"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

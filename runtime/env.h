/* The environment variables by which the parts of Crystal find each other. Set by the
 * SPANK plugin (task_init) or the agent for every rank of an emulated step; a program
 * needs none of them. Names only; a secret never stands in an environment (the token is
 * in a file of mode 0600 whose path is here).
 */
#ifndef CRYSTAL_ENV_H
#define CRYSTAL_ENV_H

#define CRYSTAL_ENV_STAGE          "CRYSTAL_STAGE"   /* capture, plan or emulate */
#define CRYSTAL_ENV_JOB_DIR        "CRYSTAL_JOB_DIR" /* absolute path */
#define CRYSTAL_ENV_LRANK          "CRYSTAL_LRANK"   /* this process's logical rank */
#define CRYSTAL_ENV_LOGICAL_RANKS  "CRYSTAL_LOGICAL_RANKS"
#define CRYSTAL_ENV_RANKS_PER_NODE "CRYSTAL_RANKS_PER_NODE" /* of a target node */
/* Under Slurm: all settings of the task, NAME=VALUE lines, so that they can be put
 * right behind a container's start that has changed them (`scrystal rank`). */
#define CRYSTAL_ENV_RANK_ENV "CRYSTAL_RANK_ENV"
/* Agents under Slurm: the crystal.yaml of the node, by its plugstack.conf. */
#define CRYSTAL_ENV_NODE_CONFIG "CRYSTAL_NODE_CONFIG"
/* "HOST:PORT" of the store, as MASTER_ADDR and MASTER_PORT have it until the program's
 * own script, or a container's start, sets others. */
#define CRYSTAL_ENV_STORE "CRYSTAL_STORE"
/* File with key=value lines host, port, store_port, pid of the coordinator; and the
 * file with its token (64 hexadecimal digits). Both of mode 0600 in the job directory.
 */
#define CRYSTAL_ENV_COORD_FILE "CRYSTAL_COORD_FILE"
#define CRYSTAL_ENV_TOKEN_FILE "CRYSTAL_TOKEN_FILE"
/* What contrib/pytorch loads as NCCL on host memory: libcrystal-nccl.so in capture and
 * plan, libcrystal-hostccl.so in emulate. */
#define CRYSTAL_ENV_NCCL_LIBRARY "CRYSTAL_NCCL_LIBRARY"
/* In capture on a GPU, NCCL_NET: the name of a net that no communicator gets
 * (capture/bypass.c). */
#define CRYSTAL_BYPASS_NET "crystal-capture"
/* Where set, libcrystal-nccl.so passes every call through to this library and only
 * records (plan); where not, it parks and asks the coordinator (capture). */
#define CRYSTAL_ENV_PASS_LIBRARY "CRYSTAL_PASS_LIBRARY"
/* Beside it, on a node with a GPU: programs that do not ask for streams on host memory
 * have their calls passed through to their own NCCL. */
#define CRYSTAL_ENV_PASS_DEVICE "CRYSTAL_PASS_DEVICE"
#define CRYSTAL_ENV_TRACE_DIR                                                          \
    "CRYSTAL_TRACE_DIR"                             /* recorder: LRANK.trace goes here \
                                                     */
#define CRYSTAL_ENV_ITERATIONS "CRYSTAL_ITERATIONS" /* recorder: stop after K marks */
/* Recorder: iterations begin where NVTX ranges of that name begin (capture/nvtx.h),
 * which the library hears of where NVTX_INJECTION64_PATH names it, too. */
#define CRYSTAL_ENV_ITERATION_RANGE "CRYSTAL_ITERATION_RANGE"
/* Recorder: what goes into the headers of its files; "all" keeps every contribution,
 * anything else only those that steer control flow. */
#define CRYSTAL_ENV_FINGERPRINT "CRYSTAL_FINGERPRINT"
#define CRYSTAL_ENV_PAYLOAD     "CRYSTAL_PAYLOAD"
/* Recorder: "replica" where live ranks stand for others, so that a rank's buffer may be
 * asked for although the rank is not the root of a broadcast; anything else: not. */
#define CRYSTAL_ENV_LIVE "CRYSTAL_LIVE"
/* Recorder, plugin: the most bytes of host memory that this rank may lock for copies to
 * and from its GPU; unset = as many as it needs. */
#define CRYSTAL_ENV_PINNED "CRYSTAL_PINNED_BYTES"
/* Recorder: "off" leaves CUPTI to the program, whose profiler then sees the GPU, and
 * records no work of the GPU; anything else: it is recorded. */
#define CRYSTAL_ENV_CUPTI "CRYSTAL_CUPTI"
/* Coordinator in capture, agents in plan and emulate: a rank that keeps others waiting
 * and uses no CPU for so many seconds (default 600) ends the stage. */
#define CRYSTAL_ENV_HANG_SECONDS "CRYSTAL_HANG_SECONDS"
/* Plugin (NET, PROFILER): the board of this node, and where LRANK.run goes. */
#define CRYSTAL_ENV_BOARD   "CRYSTAL_BOARD"
#define CRYSTAL_ENV_RUN_DIR "CRYSTAL_RUN_DIR"
/* Plugin without a board (every rank is real): pace as a wire of
 * "BYTES_PER_S,LATENCY_NS"; unset = as fast as it goes. */
#define CRYSTAL_ENV_WIRE "CRYSTAL_WIRE"
/* Plugin: "off" leaves out the contents of floating-point messages of virtual ranks
 * (times, sizes, flags and integers stay right); anything else: they are produced. */
#define CRYSTAL_ENV_VALUES "CRYSTAL_VALUES"
/* Plugin: "last" repeats the integers of the last recorded iteration behind the
 * recording, also where recorded iterations differ; "same": only where they do not. */
#define CRYSTAL_ENV_REPEAT "CRYSTAL_REPEAT"
/* Plugin: "gpu" lets NCCL keep its network buffers on the GPU, as with GPU Direct (set
 * NCCL_NET_GDR_LEVEL=SYS with it); anything else: in host memory. */
#define CRYSTAL_ENV_BUFFERS "CRYSTAL_BUFFERS"
/* Plugin: how many NICs NCCL sees, crystal0 and so on, each of the wire's speed;
 * unset = 1. */
#define CRYSTAL_ENV_NICS "CRYSTAL_NICS"
/* Plugin with a board: the versions of NCCL whose set-up the virtual ranks answer,
 * NCCL_VERSION_CODEs "22807-22809"; another one ends the job with a sentence. Unset:
 * none is refused. */
#define CRYSTAL_ENV_NCCL_VERSIONS "CRYSTAL_NCCL_VERSIONS"
/* Plugin: where those NICs are in this machine, PCI addresses (0000:18:00.0) with
 * commas, one for each; unset = nowhere, NCCL takes them for far from every GPU. */
#define CRYSTAL_ENV_NIC_PCI "CRYSTAL_NIC_PCI"
/* Plugin: another NCCL net plugin (a path, NET v11) for connections between real ranks;
 * unset = our own TCP. */
#define CRYSTAL_ENV_NET_BACKEND "CRYSTAL_NET_BACKEND"
/* Plugin: "1" lets ranks of one host give each other messages through shared memory, of
 * 4 MiB a connection; "0" (default): through the socket. */
#define CRYSTAL_ENV_SHARE "CRYSTAL_SHARE"
/* Plugin: so many threads (0 to 16) copy large messages in host memory; unset: one for
 * each four CPUs that the process may run on, at most 4. */
#define CRYSTAL_ENV_COPIERS "CRYSTAL_COPIERS"
/* Plugin: a list of all messages goes to the file PATH.LRANK (replay/net_messages.h).
 */
#define CRYSTAL_ENV_MESSAGES "CRYSTAL_MESSAGES"
/* NCCL_NET_PLUGIN and NCCL_PROFILER_PLUGIN name libnccl-net-crystal.so for NCCL and for
 * hostccl alike. */

#endif

/* The state behind coord.h, shared by the coordinator's files only. */
#ifndef CRYSTAL_COORD_STATE_H
#define CRYSTAL_COORD_STATE_H

#include "runtime/coord.h"
#include "runtime/coord_link.h"
#include "runtime/exchange.h"
#include "runtime/groups.h"
#include "runtime/listen.h"
#include "runtime/loop.h"
#include "runtime/message.h"
#include "runtime/store.h"
#include "runtime/store_rules.h"

enum stage { STAGE_NONE = 0, STAGE_CAPTURE = 1, STAGE_PLAN = 2, STAGE_EMULATE = 3 };

struct client {
    struct client *next, *prev;
    struct crystal_coord *coord;
    struct crystal_link *link;
    enum crystal_role role; /* 0 = it has not said HELLO */
    uint32_t lrank;         /* of a rank; node of an agent */
    uint32_t pid;
    uint8_t in_stage; /* takes part in the stage that runs */
    uint8_t may_drop; /* said BYE, or was told that it has done enough */
    uint8_t has_node; /* agent: it has asked for the nodes */
    uint32_t node_request;
    struct crystal_msg_node node;
};

/* An id that an agent was asked to make. */
struct forge {
    struct forge *next;
    uint32_t request;
    char *key; /* owned */
};

/* coord_watch.c's */
struct crystal_watch_state {
    uint64_t active_ns; /* a rank did something */
    int is_told;        /* since then: that nothing comes */
    int is_warned;      /* and that a rank uses no CPU */
    unsigned told_count;
    char **maps;                      /* by lrank: crystal_process_maps; owned */
    uint64_t cpu_ticks, cpu_since_ns; /* of the ranks that do not wait */
};

/* coord_early.c's, of one rank */
struct crystal_early {
    uint64_t cpu_ticks;
    uint32_t idle_looks;  /* in a row */
    int is_seen, is_told; /* looked at once; the user knows */
};

struct crystal_coord {
    struct crystal_coord_config config;
    char host[256];
    uint8_t token[CRYSTAL_TOKEN_BYTES];
    struct crystal_loop *loop;
    struct crystal_access *access;
    struct crystal_store *store;
    struct crystal_watch listener, signals;
    int listen_fd, signal_fd;
    uint16_t port, store_port;
    int files_written;
    struct client *clients;

    /* The stage that runs; everything here is made anew by its first BEGIN. */
    enum stage stage;
    int failed; /* stopped with a sentence, until the next BEGIN */
    char sentence[CRYSTAL_ERROR_TEXT_BYTES];
    uint32_t lost;    /* as in struct crystal_msg_stop, for that sentence */
    uint8_t *is_real; /* by lrank: runs for real in this stage */
    uint32_t real_count;
    struct crystal_groups *groups;
    struct crystal_exchange *exchange; /* capture only */
    /* Whom the exchange takes for live: the layout's, or one rank of its list. Borrows
     * all but that rank. */
    struct crystal_layout exchange_layout;
    uint32_t only_live;
    struct crystal_inject *inject; /* live=LIST: lives through all its ranks */
    char **made;                   /* names that are in comms.tab by then; owned */
    uint32_t made_count;
    struct forge *forges;
    struct held_init *held_inits; /* questions for ids that are not known yet */
    struct crystal_timer held_timer;
    uint32_t next_forge;
    struct crystal_watch_state watch; /* capture only */
    int has_id;                       /* a communicator is being made */
    struct crystal_early *early;      /* [lrank_count]; owned; NULL: not yet */
    struct crystal_timer early_timer;
    uint32_t node_count; /* that agents have told; 0: none has */
    int have_met;        /* all of them, once */
    struct crystal_timer nodes_timer;
    struct crystal_timer watch_timer, reset_timer;

    /* The end of the job. */
    int emulated; /* a stage emulate has begun */
    int finishing;
    uint32_t finish_request;
    struct client *finisher; /* NULL where it has gone */
    struct crystal_timer finish_timer;
    int result; /* of run */
};

/* coord.c: ends the stage with a sentence, once; everybody is told. */
void crystal_coord_fail(struct crystal_coord *coord, const char *sentence);
void crystal_coord_tell_stop(struct client *c, const char *text);
/* A client asks for the end of the job: once agents have left, or time is up. */
void crystal_coord_finish(struct client *c, uint32_t request);
/* Where that was asked for and the last agent has left: now. */
void crystal_coord_finish_soon(struct crystal_coord *coord);

/* coord_clients.c: the client of a rank of the stage; NULL where there is none. */
struct client *crystal_coord_rank(const struct crystal_coord *coord, uint32_t lrank);
int crystal_coord_has_agents(const struct crystal_coord *coord);
/* The client's last message. */
void crystal_coord_answer_error(struct client *c, const char *sentence);
/* Somebody connects; context: the coordinator. */
void crystal_coord_on_listener(void *context, uint32_t events);
/* To the user, through the agents; the exchange's hook, too. */
void crystal_coord_notice(void *context, const char *text);
/* The same for what needs the user, who sees it under Slurm, too. */
void crystal_coord_warn(struct crystal_coord *coord, const char *text);

/* coord_stage.c: begins a stage, ends whatever runs. beginner: the agent whose
 * connection goes on; slice as in struct crystal_msg_begin, has_slice says whether
 * there is one. */
int crystal_coord_stage_begin(struct crystal_coord *coord, enum stage stage,
                              uint32_t slice, const struct client *beginner,
                              struct crystal_error *err);
int crystal_coord_stage_has_slice(const struct crystal_coord *coord, enum stage stage,
                                  uint32_t slice);
/* Forgets the stage; end: also what its passes share. */
void crystal_coord_stage_clear(struct crystal_coord *coord);
void crystal_coord_stage_end(struct crystal_coord *coord);
const char *crystal_coord_stage_name(enum stage stage);

/* coord_watch.c: a rank did something; begins to watch where it does not yet. */
void crystal_coord_watch(struct crystal_coord *coord);
/* coord_early.c: watches the ranks of a stage that has begun until there is a
 * communicator; the other forgets them. */
void crystal_coord_early(struct crystal_coord *coord);
void crystal_coord_early_end(struct crystal_coord *coord);
/* A rank of the stage has come. */
void crystal_coord_keep_maps(struct crystal_coord *coord, uint32_t lrank, uint32_t pid);
/* Stops and forgets everything. */
void crystal_coord_watch_end(struct crystal_coord *coord);
/* Ends the stage with a sentence about its ranks, and writes what each does. */
void crystal_coord_diagnose(struct crystal_coord *coord,
                            const struct crystal_error *err);
/* A hook of the exchange. */
int crystal_coord_site(void *context, uint32_t lrank, uint64_t address, char *text,
                       size_t text_bytes);

/* coord_files.c */
int crystal_coord_write_files(struct crystal_coord *coord, struct crystal_error *err);
void crystal_coord_remove_files(const struct crystal_coord *coord);

/* coord_init.c: COMM_INIT. */
void crystal_coord_comm_init(struct crystal_coord *coord, uint32_t lrank,
                             uint32_t request,
                             const struct crystal_msg_comm_init *init);
/* The exchange has learned an id. */
void crystal_coord_id_learned(struct crystal_coord *coord);
void crystal_coord_forget_inits(struct crystal_coord *coord);

/* coord_nodes.c: NODE. Negative: close the client. */
int crystal_coord_node(struct client *c, const struct crystal_message_head *head,
                       const struct crystal_blob *body);
/* MEET; the same. */
int crystal_coord_meet(struct client *c, const struct crystal_message_head *head,
                       const struct crystal_blob *body);
void crystal_coord_forget_nodes(struct crystal_coord *coord);
/* The stage's agent of the node that makes a communicator of these members: the lowest
 * one that runs any of them. NULL where there is none. */
struct client *crystal_coord_owner(const struct crystal_coord *coord,
                                   const uint32_t *members, uint32_t count);

/* coord_ids.c: the store's hooks and the ids of communicators. */
extern const struct crystal_store_hooks crystal_coord_store_hooks;
int crystal_coord_forged(struct crystal_coord *coord,
                         const struct crystal_message_head *head,
                         const struct crystal_blob *body);
void crystal_coord_forget_forges(struct crystal_coord *coord);

#endif

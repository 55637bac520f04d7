/* Gradwire for C, version 1 of its symbols. Made by cbindgen from bindings/c/src: do not change it by hand.
 *
 * Every function that can fail returns a GradwireCode; gradwire_last_error says why, for people. Nothing aborts, and
 * nothing is thrown. Pointers to objects come from the library and are freed by the function named with their type, once,
 * after which they must not be used. Null where an object is needed is GRADWIRE_CODE_NULL_ARGUMENT.
 *
 * Lengths are in bytes where their name says so, times in milliseconds. Functions may be called from any thread, also
 * several at once with one object, but freeing it has to be the last one. */


#ifndef GRADWIRE_H
#define GRADWIRE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Calls of one worker to one handler of one server that may be under way; more wait at the worker.
 */
#define GRADWIRE_CALLS_IN_FLIGHT_MAX 128

/**
 * As the setting `node.rank`: the highest rank that is free, for members that must not take one that others ask for.
 */
#define GRADWIRE_LAST_RANK UINT32_MAX

/**
 * A time for waits: as long as the operation's own deadline (`deadlines.operation_ms`) lets it.
 */
#define GRADWIRE_UNTIL_DEADLINE UINT64_MAX

/**
 * In place of a rank: every member of the group.
 */
#define GRADWIRE_EVERYONE UINT32_MAX

/**
 * What every function that can fail returns. The numbers never change; new ones may be added.
 */
enum GradwireCode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It worked.
     */
    GRADWIRE_CODE_OK = 0,
    /**
     * A pointer that has to point to something is null.
     */
    GRADWIRE_CODE_NULL_ARGUMENT = 1,
    /**
     * Another argument is wrong: a length, a key, a number out of range, text that is not UTF-8.
     */
    GRADWIRE_CODE_BAD_ARGUMENT = 2,
    /**
     * The handle was waited for before. Each one gives its result once.
     */
    GRADWIRE_CODE_ALREADY_WAITED = 3,
    /**
     * The buffer belongs to an operation in flight, or to one that failed.
     */
    GRADWIRE_CODE_BUFFER_IN_USE = 4,
    /**
     * The time given to a wait is over. The operation goes on: wait again.
     */
    GRADWIRE_CODE_NOT_DONE = 5,
    /**
     * A setting is wrong or missing.
     */
    GRADWIRE_CODE_SETTING = 6,
    /**
     * The scheduler or a server cannot be reached, refused this process, or a connection to it broke.
     */
    GRADWIRE_CODE_UNREACHABLE = 7,
    /**
     * Somebody who was waited for did not come or answer before the deadline. The message names them.
     */
    GRADWIRE_CODE_DEADLINE = 8,
    /**
     * A member of the cluster died. The message names it.
     */
    GRADWIRE_CODE_MEMBER_DIED = 9,
    /**
     * The declaration, or the operation, was refused by the cluster. The message says why.
     */
    GRADWIRE_CODE_REFUSED = 10,
    /**
     * A round's value does not fit the tensor's type, or a value that a codec cannot encode.
     */
    GRADWIRE_CODE_VALUE = 11,
    /**
     * The client is closed, or the job has ended.
     */
    GRADWIRE_CODE_CLOSED = 12,
    /**
     * No memory, no registered memory, or too much asked for.
     */
    GRADWIRE_CODE_MEMORY = 13,
    /**
     * No transport that the settings require can be had.
     */
    GRADWIRE_CODE_TRANSPORT = 14,
    /**
     * Whoever was to answer a call let go of it, or has no handler for it.
     */
    GRADWIRE_CODE_NO_REPLY = 15,
    /**
     * A bug in the library. Please report the message.
     */
    GRADWIRE_CODE_INTERNAL = 99,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireCode GradwireCode;
#else
typedef int32_t GradwireCode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What servers do with a round's contributions.
 */
enum GradwireRule
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * value += sum of contributions.
     */
    GRADWIRE_RULE_SUM = 0,
    /**
     * value = sum of contributions (an all-reduce).
     */
    GRADWIRE_RULE_ASSIGN = 1,
    /**
     * Gradient descent; `momentum`, `nesterov`.
     */
    GRADWIRE_RULE_SGD = 2,
    /**
     * AdaGrad; `epsilon`.
     */
    GRADWIRE_RULE_ADA_GRAD = 3,
    /**
     * RMSProp; `decay`, `epsilon`.
     */
    GRADWIRE_RULE_RMS_PROP = 4,
    /**
     * Adam; `beta1`, `beta2`, `epsilon`.
     */
    GRADWIRE_RULE_ADAM = 5,
    /**
     * Adam with decoupled weight decay; as Adam.
     */
    GRADWIRE_RULE_ADAM_W = 6,
    /**
     * LAMB; as Adam.
     */
    GRADWIRE_RULE_LAMB = 7,
    /**
     * FTRL-proximal; `beta1` stands for its beta, `l1`, `l2`.
     */
    GRADWIRE_RULE_FTRL = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireRule GradwireRule;
#else
typedef int32_t GradwireRule;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How the learning rate changes with the rounds after the warm-up.
 */
enum GradwireDecay
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It stays.
     */
    GRADWIRE_DECAY_CONSTANT = 0,
    /**
     * It is multiplied by `decay_factor` every `decay_rounds` rounds.
     */
    GRADWIRE_DECAY_STEP = 1,
    /**
     * It is multiplied by `decay_factor` every round.
     */
    GRADWIRE_DECAY_EXPONENTIAL = 2,
    /**
     * It falls in a line to `decay_factor` of itself within `decay_rounds` rounds.
     */
    GRADWIRE_DECAY_LINEAR = 3,
    /**
     * The same by half a cosine wave.
     */
    GRADWIRE_DECAY_COSINE = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireDecay GradwireDecay;
#else
typedef int32_t GradwireDecay;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Types of elements.
 */
enum GradwireDtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * `float`.
     */
    GRADWIRE_DTYPE_F32 = 1,
    /**
     * `double`.
     */
    GRADWIRE_DTYPE_F64 = 2,
    /**
     * IEEE 754 binary16, 2 bytes; summed and kept in f32.
     */
    GRADWIRE_DTYPE_F16 = 3,
    /**
     * bfloat16, 2 bytes; summed and kept in f32.
     */
    GRADWIRE_DTYPE_BF16 = 4,
    /**
     * `int8_t`; integers are summed in 64 bits, and a value that does not fit is an error.
     */
    GRADWIRE_DTYPE_I8 = 5,
    /**
     * `uint8_t`.
     */
    GRADWIRE_DTYPE_U8 = 6,
    /**
     * `int32_t`.
     */
    GRADWIRE_DTYPE_I32 = 7,
    /**
     * `int64_t`.
     */
    GRADWIRE_DTYPE_I64 = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireDtype GradwireDtype;
#else
typedef int32_t GradwireDtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How contributions of several workers become versions.
 */
enum GradwireMode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * What the cluster's settings say (`cluster.mode`).
     */
    GRADWIRE_MODE_CLUSTER = 0,
    /**
     * One version a round, from the contributions of all workers.
     */
    GRADWIRE_MODE_SYNC = 1,
    /**
     * Every contribution makes a version, and workers may be at most `staleness` contributions apart.
     */
    GRADWIRE_MODE_BOUNDED = 2,
    /**
     * Every contribution makes a version.
     */
    GRADWIRE_MODE_ASYNC = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireMode GradwireMode;
#else
typedef int32_t GradwireMode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Members of a cluster, to be added up: who meets at a barrier.
 */
enum GradwireGroup
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The scheduler.
     */
    GRADWIRE_GROUP_SCHEDULER = 1,
    /**
     * All servers.
     */
    GRADWIRE_GROUP_SERVERS = 2,
    /**
     * All workers.
     */
    GRADWIRE_GROUP_WORKERS = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireGroup GradwireGroup;
#else
typedef uint32_t GradwireGroup;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Which of the forms that frameworks give a rule is meant. They differ by rounding where nothing else is said.
 */
enum GradwireForm
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * As published.
     */
    GRADWIRE_FORM_PUBLISHED = 0,
    /**
     * As MXNet's optimizers have it: momentum holds steps, with the rate they had; epsilon of AdaGrad and RMSProp is under the
     * root, and AdaGrad's weight decay beside the gradient; epsilon of Adam and AdamW is added before the bias is corrected.
     */
    GRADWIRE_FORM_MXNET = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireForm GradwireForm;
#else
typedef int32_t GradwireForm;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a row holds before anybody has pushed to it.
 */
enum GradwireInitial
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * All elements are `low`.
     */
    GRADWIRE_INITIAL_CONSTANT = 0,
    /**
     * Evenly spread from `low` to below `high`; a function of `seed`, the row's id and the element's place only.
     */
    GRADWIRE_INITIAL_UNIFORM = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireInitial GradwireInitial;
#else
typedef int32_t GradwireInitial;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Memory that the client has registered with its transports: what is sent from it, and what lands in it, is not copied
 * by this process. Freed with `gradwire_buffer_free`.
 *
 * It belongs to an operation from the call that starts it until the wait that ends it well. Meanwhile its data pointer is
 * null, and memory got from an earlier one must be neither read nor written. A call that starts nothing leaves it with the
 * program. After an operation that failed it stays with that operation, because a server may still write it: free the
 * buffer and allocate another.
 */
typedef struct GradwireBuffer GradwireBuffer;

/**
 * A call in flight. It ends by itself, with a reply or an error, by its deadline. Freed with `gradwire_call_free`.
 */
typedef struct GradwireCallHandle GradwireCallHandle;

/**
 * A worker of a cluster. All functions on it may be called from any thread at any time. A process may have several, of
 * one cluster or of many. Freed with `gradwire_client_free`.
 *
 * After a `fork` the child must not use it: its threads stay with the parent.
 */
typedef struct GradwireClient GradwireClient;

/**
 * An operation in flight. It ends by itself, well or not, also where nobody waits. Freed with `gradwire_handle_free`.
 */
typedef struct GradwireHandle GradwireHandle;

/**
 * A message that came. Freed with `gradwire_message_free`; head and body are valid until then. One that is freed without an
 * answer is `GRADWIRE_CODE_NO_REPLY` at its sender.
 */
typedef struct GradwireMessage GradwireMessage;

/**
 * The messages of one client, server or scheduler. Outlives it; what is sent then fails. Freed with
 * `gradwire_messages_free`.
 */
typedef struct GradwireMessages GradwireMessages;

/**
 * What a handler answered. Freed with `gradwire_reply_free`; head and body are valid until then.
 */
typedef struct GradwireReply GradwireReply;

/**
 * A worker's call on its way through the program. Freed with `gradwire_request_free`; head and body are valid until then,
 * also after the reply. One that is freed without a reply is `GRADWIRE_CODE_NO_REPLY` at the worker.
 */
typedef struct GradwireRequest GradwireRequest;

/**
 * A push of rows in flight. It ends by itself. Freed with `gradwire_rows_free`.
 */
typedef struct GradwireRowsHandle GradwireRowsHandle;

/**
 * The scheduler of a cluster. Its functions may be called from any thread. Freed with `gradwire_scheduler_free`.
 */
typedef struct GradwireScheduler GradwireScheduler;

/**
 * A server of a cluster. Its functions may be called from any thread. Freed with `gradwire_server_free`.
 */
typedef struct GradwireServer GradwireServer;

/**
 * What a client, server or scheduler is started with. Weakest first: defaults, settings file, `DMLC_*` and `GRADWIRE_*`
 * variables of the environment, what was set here. Freed with `gradwire_settings_free`; may be used for several
 * starts, and by several threads.
 */
typedef struct GradwireSettings GradwireSettings;

/**
 * A declared table. Its functions may be called from any thread. Freed with `gradwire_table_free`, which leaves the table
 * itself where it is.
 */
typedef struct GradwireTable GradwireTable;

/**
 * A declared tensor. Its functions may be called from any thread. Freed with `gradwire_tensor_free`, which leaves the
 * tensor itself where it is: declaring it again, or `gradwire_tensor_of`, finds it.
 */
typedef struct GradwireTensor GradwireTensor;

/**
 * A piece of a body. Without `release` it is copied during the call. With it the library may read the memory until it calls
 * `release` with the context: exactly once, from any thread, also where the call fails; nobody may change the memory before.
 * `release` has to be brief and must not call the library.
 */
typedef struct {
    /**
     * Where it starts.
     */
    const void *data;
    /**
     * Its bytes; with 0 `data` may be null.
     */
    uint64_t bytes;
    /**
     * Called when the library does not need the memory any more; may be null.
     */
    void (*release)(void *context);
    /**
     * For `release`.
     */
    void *context;
} GradwirePiece;

/**
 * A request to a handler of a server. Set all of it to zeros before filling it.
 */
typedef struct {
    /**
     * The handler's number.
     */
    uint32_t app;
    /**
     * The server's rank.
     */
    uint32_t server;
    /**
     * A few bytes for the handler, at most 512; read during the call.
     */
    const void *head;
    /**
     * Bytes of the head.
     */
    uint64_t head_bytes;
    /**
     * The body, in at most 16 pieces that the handler sees as one.
     */
    const GradwirePiece *pieces;
    /**
     * How many pieces there are.
     */
    uint64_t piece_count;
    /**
     * Higher goes first; calls to one handler of one server are never reordered.
     */
    int32_t priority;
    /**
     * Bytes that the reply's body is expected to have, so that it needs no second round trip. 0: as many as the last one.
     */
    uint64_t reply_bytes;
    /**
     * Milliseconds it has; 0: `deadlines.operation_ms`.
     */
    uint64_t timeout_ms;
} GradwireCall;

/**
 * Called once when a call has ended. With `GRADWIRE_CODE_OK` the reply is the callee's, to be freed; else it is null, and
 * `gradwire_last_error` says why. It is called on a thread of the library, or on the caller's before `gradwire_call_then`
 * returns. Be brief: take the reply, wake a thread of your own.
 */
typedef void (*GradwireOnReply)(void *context, GradwireCode code, GradwireReply *reply);

/**
 * What a client has done so far. Counts never fall.
 */
typedef struct {
    /**
     * Operations that ended well, counted once for each lane that worked on one.
     */
    uint64_t done;
    /**
     * Operations that failed, counted the same way.
     */
    uint64_t failed;
    /**
     * Payload bytes sent.
     */
    uint64_t sent_bytes;
    /**
     * The same before they were encoded.
     */
    uint64_t plain_bytes;
    /**
     * Payload bytes that landed here.
     */
    uint64_t landed_bytes;
    /**
     * Bytes of weights that were read where the servers have them.
     */
    uint64_t shown_bytes;
    /**
     * Batches sent.
     */
    uint64_t batches;
    /**
     * Parts sent again because a server had no room for them.
     */
    uint64_t retries;
    /**
     * Times a batch had to wait for room at a server.
     */
    uint64_t credit_waits;
} GradwireStats;

/**
 * How an operation ended well.
 */
typedef struct {
    /**
     * The version that was published, or landed.
     */
    uint64_t version;
    /**
     * Bytes that landed; of a dynamic tensor fewer than it may have.
     */
    uint64_t landed_bytes;
    /**
     * Chunks of the contribution that came when their round had ended without them, and were dropped: only of tensors with
     * backup workers. Their weights are newer than the round's.
     */
    uint32_t late_chunks;
} GradwireEnded;

/**
 * Called once when an operation has ended, with the context it was registered with: `code` says how, and
 * `gradwire_last_error` why. It is called on a thread of the library, or at once if the operation has ended. Be brief, and
 * call no function of the library but `gradwire_last_error`: wake a thread that does.
 */
typedef void (*GradwireOnEnd)(void *context, GradwireCode code, uint64_t version);

/**
 * One receiver's answer.
 */
typedef struct {
    /**
     * `GRADWIRE_CODE_OK`, or why there is no answer; then `gradwire_last_error` has the words during the call.
     */
    GradwireCode code;
    /**
     * Whose it is: one `GradwireGroup` constant.
     */
    uint32_t from_group;
    /**
     * Whose it is: the rank there.
     */
    uint32_t from_rank;
    /**
     * How many receivers there are.
     */
    uint32_t of;
    /**
     * The answer's number.
     */
    int32_t head;
    /**
     * The answer's bytes.
     */
    const void *body;
    /**
     * How many.
     */
    uint64_t body_bytes;
} GradwireAnswer;

/**
 * Takes one receiver's answer; the body is valid during the call. It is called `of` times for a message, once for each
 * receiver, or once with an error and `of` 1 where the message reached nobody.
 */
typedef void (*GradwireOnAnswer)(void *context, const GradwireAnswer *answer);

/**
 * Takes a message, which is the callee's to answer and free, then or later and on any thread. All handlers and callbacks of
 * messages of one member run on one thread, one after the other: be brief, and wait for no message there.
 */
typedef void (*GradwireOnMessage)(void *context, GradwireMessage *message);

/**
 * An update rule with its constants. Fill it with `gradwire_optimizer_default` and change what is to differ: constants
 * that a rule does not use are ignored.
 */
typedef struct {
    /**
     * A `GradwireRule`.
     */
    int32_t rule;
    /**
     * Divides the sum by the number of contributors first, where not 0.
     */
    int32_t average;
    /**
     * What the sum is multiplied by, too; not 0.
     */
    float rescale;
    /**
     * Step size; not used by sum and assign.
     */
    float learning_rate;
    /**
     * Share of the weight that is added to its gradient; of AdamW and LAMB to its step.
     */
    float weight_decay;
    /**
     * Of SGD: share of the last step that is kept, 0 to below 1.
     */
    float momentum;
    /**
     * Of SGD: looks ahead by the momentum, where not 0.
     */
    int32_t nesterov;
    /**
     * Share of the mean that is kept; of FTRL its beta.
     */
    float beta1;
    /**
     * Share of the mean square that is kept.
     */
    float beta2;
    /**
     * Added to denominators.
     */
    float epsilon;
    /**
     * Of RMSProp: share of the mean square that is kept.
     */
    float decay;
    /**
     * Of FTRL: weight of the absolute values.
     */
    float l1;
    /**
     * Of FTRL: weight of the squares.
     */
    float l2;
    /**
     * Rounds in which the learning rate grows to its value.
     */
    uint32_t warmup_rounds;
    /**
     * A `GradwireDecay`.
     */
    int32_t decay_kind;
    /**
     * See `GradwireDecay`.
     */
    uint32_t decay_rounds;
    /**
     * See `GradwireDecay`.
     */
    float decay_factor;
    /**
     * A `GradwireForm`.
     */
    int32_t form;
} GradwireOptimizer;

/**
 * Takes a call, which is the callee's to answer and free, then or later and on any thread. Handlers run on a thread of
 * their own, one call at a time, and each worker's calls in the order in which it made them. No exception may leave it.
 */
typedef void (*GradwireHandler)(void *context, GradwireRequest *request);

/**
 * What a table is. Every worker declares the same. Set all of it to zeros before filling it: then rows begin with zeros, are
 * made at their first touch, and stay.
 */
typedef struct {
    /**
     * Its key, below 65536; tensors' keys are others.
     */
    uint32_t key;
    /**
     * Floats of a row, at most 65536.
     */
    uint32_t width;
    /**
     * A `GradwireInitial`.
     */
    int32_t initial;
    /**
     * See `GradwireInitial`.
     */
    float low;
    /**
     * See `GradwireInitial`.
     */
    float high;
    /**
     * See `GradwireInitial`.
     */
    uint64_t seed;
    /**
     * Pushes before a row gets memory: with this one it does, and those before are left out. 0 and 1: at its first push. Pulls do
     * not count: they bring what a row would begin with.
     */
    uint32_t admit_after;
    /**
     * Rows that are kept: beyond that those go that were pushed to least recently. 0: no limit.
     */
    uint64_t rows_max;
    /**
     * Applied to each row by itself, at once, with what one push has for it. Any rule but LAMB.
     */
    GradwireOptimizer optimizer;
} GradwireTableSpec;

/**
 * What a tensor is. Every worker declares the same. Set all of it to zeros before filling it: zeros are the defaults of
 * what is not filled.
 */
typedef struct {
    /**
     * Its key, any number.
     */
    uint64_t key;
    /**
     * Its elements; the most it may have in a round, where it is dynamic.
     */
    uint64_t elements;
    /**
     * A name for people; may be null.
     */
    const char *name;
    /**
     * A `GradwireDtype`.
     */
    int32_t dtype;
    /**
     * A `GradwireMode`.
     */
    int32_t mode;
    /**
     * Of bounded mode: contributions that workers may be apart.
     */
    uint32_t staleness;
    /**
     * Workers whose contribution a round does not wait for (sync mode); the cluster's where 0.
     */
    uint32_t backup_workers;
    /**
     * Operations carry a length of their own, where not 0.
     */
    int32_t dynamic;
    /**
     * How contributions are encoded: null or "plain", "f16", "bf16", "onebit", "twobit:THRESHOLD", "topk:SHARE",
     * "randomk:SHARE", "dither:BITS". Only of f32 tensors that are not dynamic.
     */
    const char *codec;
    /**
     * Of a codec: whether the next gradient gets what the encoding of this one left out. 0: where the codec leaves something
     * out; 1: it does; -1: it does not.
     */
    int32_t feedback;
    /**
     * Of a codec: momentum before the encoding, 0 to below 1 (Nesterov's). A rule with momentum of its own would have it
     * twice.
     */
    float momentum;
    /**
     * What servers do with contributions.
     */
    GradwireOptimizer optimizer;
} GradwireTensorSpec;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Registered memory of so many bytes, at a multiple of 64 bytes; what is in it is not defined. Fails with `GRADWIRE_CODE_MEMORY` where
 * `memory.pool_bytes` is used up. May be passed to operations of this client only.
 */
GradwireCode gradwire_buffer_allocate(const GradwireClient *client,
                                      uint64_t bytes,
                                      GradwireBuffer **buffer);

/**
 * Where the memory starts: the same for its whole life. Null while an operation has it (see `GradwireBuffer`).
 */
void *gradwire_buffer_data(const GradwireBuffer *buffer);

/**
 * Its bytes, as they were asked for. 0 for null.
 */
uint64_t gradwire_buffer_bytes(const GradwireBuffer *buffer);

/**
 * Frees a buffer. Null is fine. Memory that an operation has is freed when that has ended.
 */
void gradwire_buffer_free(GradwireBuffer *buffer);

/**
 * Calls a handler of a server's program. Calls to one handler of one server are taken in the order in which they are made,
 * each of them once.
 */
GradwireCode gradwire_call(const GradwireClient *client,
                           const GradwireCall *call,
                           GradwireCallHandle **handle);

/**
 * As `gradwire_call`, with a callback in place of a handle. It is not called where this returns an error.
 */
GradwireCode gradwire_call_then(const GradwireClient *client,
                                const GradwireCall *call,
                                GradwireOnReply callback,
                                void *context);

/**
 * Waits for the reply, which comes by the call's deadline or never. A second wait is `GRADWIRE_CODE_ALREADY_WAITED`.
 */
GradwireCode gradwire_call_wait(const GradwireCallHandle *handle,
                                GradwireReply **reply);

/**
 * 1 where the call has ended, so that waiting takes no time; else 0. 1 for null and after a wait.
 */
int32_t gradwire_call_is_done(const GradwireCallHandle *handle);

/**
 * Frees a call's handle. Null is fine. The call goes on.
 */
void gradwire_call_free(GradwireCallHandle *handle);

/**
 * The reply's head, and its length in `bytes`, which may be null.
 */
const void *gradwire_reply_head(const GradwireReply *reply, uint64_t *bytes);

/**
 * The reply's body, and its length in `bytes`, which may be null.
 */
const void *gradwire_reply_body(const GradwireReply *reply, uint64_t *bytes);

/**
 * Frees a reply. Null is fine.
 */
void gradwire_reply_free(GradwireReply *reply);

/**
 * Joins the cluster that the settings name (null: the environment's and the settings file's) and waits until all its
 * members are there. Each step has its deadline (`deadlines.assemble_ms`, `deadlines.connect_ms`), and the message names
 * who was waited for.
 */
GradwireCode gradwire_client_connect(const GradwireSettings *settings,
                                     GradwireClient **client);

/**
 * Leaves the cluster in good order and frees the client. Null is fine. Operations in flight fail with
 * `GRADWIRE_CODE_CLOSED`; their handles, tensors and buffers stay valid until they are freed.
 */
void gradwire_client_free(GradwireClient *client);

/**
 * Leaves the cluster in good order: other members go on. The client stays valid, and each call fails from then on with
 * `GRADWIRE_CODE_CLOSED`. Another thread's operations end at once.
 */
GradwireCode gradwire_client_close(const GradwireClient *client);

/**
 * Leaves because the program failed: every other member is told why, and ends.
 */
GradwireCode gradwire_client_fail(const GradwireClient *client, const char *reason);

/**
 * This worker's rank, 0 to one less than there are workers. `UINT32_MAX` for null.
 */
uint32_t gradwire_client_rank(const GradwireClient *client);

/**
 * How many workers the cluster has. 0 for null.
 */
uint32_t gradwire_client_workers(const GradwireClient *client);

/**
 * How many servers the cluster has. 0 for null.
 */
uint32_t gradwire_client_servers(const GradwireClient *client);

/**
 * The transports in use, such as "shm" or "shm+tcp". Valid as long as the client is; null for null.
 */
const char *gradwire_client_transport(const GradwireClient *client);

/**
 * What the client has done. Asks its data threads, which takes microseconds.
 */
GradwireCode gradwire_client_stats(const GradwireClient *client, GradwireStats *stats);

/**
 * Why the job has ended, if it has: `GRADWIRE_CODE_OK` while it goes on, else what killed it, with the message.
 */
GradwireCode gradwire_client_check(const GradwireClient *client);

/**
 * Its messages and barriers with a time of their own.
 */
GradwireCode gradwire_client_messages(const GradwireClient *client, GradwireMessages **messages);

/**
 * Which member's death ended the job: 1, with its group (one `GradwireGroup` constant) and rank, where one did; else 0, and
 * nothing is written.
 */
int32_t gradwire_client_dead_member(const GradwireClient *client,
                                    uint32_t *group,
                                    uint32_t *rank);

/**
 * Reports a number of the training by name, such as its loss: the scheduler's page, `gradwire status --json`, `gradwire top` and
 * this worker's `/metrics` show the newest value of each name. At most 16 names of 1 to 48 bytes; the value must be finite.
 */
GradwireCode gradwire_report_metric(const GradwireClient *client,
                                    const char *name,
                                    double value);

/**
 * Waits at the barrier of this name until every member of the group (`GradwireGroup` constants added up; this worker is
 * in it) has come, at most `deadlines.barrier_ms`. The message names the missing.
 */
GradwireCode gradwire_barrier(const GradwireClient *client,
                              const char *name,
                              uint32_t group);

/**
 * Why the last function that failed on this thread failed: cause and fix, for people. Never null; empty where none
 * has failed. It is valid until the next failure on this thread, and must not be freed.
 */
const char *gradwire_last_error(void);

/**
 * A code's name for people and logs, such as "deadline". Never null; "unknown" for a number that is none. The text is
 * static.
 */
const char *gradwire_code_name(int32_t code);

/**
 * Waits until the operation has ended, at most `timeout_ms` milliseconds (`GRADWIRE_UNTIL_DEADLINE`: until its own
 * deadline, which is quickest, because the waiting thread then does the library's work). `ended` may be null.
 *
 * With `GRADWIRE_CODE_NOT_DONE` the operation goes on, and may be waited for again. Everything else is its end: buffers
 * are the program's again where it ended well, and a second wait is `GRADWIRE_CODE_ALREADY_WAITED`.
 */
GradwireCode gradwire_wait(const GradwireHandle *handle,
                           uint64_t timeout_ms,
                           GradwireEnded *ended);

/**
 * The version of each chunk that the operation was about, in the tensor's order, and how many in `count`: of a tensor from
 * `gradwire_tensor_with_chunk_versions`, after a wait that ended it well; else null and 0. Valid until the handle is freed.
 */
const uint64_t *gradwire_chunk_versions(const GradwireHandle *handle,
                                        uint64_t *count);

/**
 * 1 where the operation has ended, well or not, so that waiting takes no time; else 0. 1 for null and after a wait.
 */
int32_t gradwire_is_done(const GradwireHandle *handle);

/**
 * Calls back when the operation has ended: see `GradwireOnEnd`. Several callbacks of one operation are called in the order
 * of registration. The handle may be freed before; the context has to live until the call. After a wait it is an error.
 */
GradwireCode gradwire_on_end(const GradwireHandle *handle,
                             GradwireOnEnd callback,
                             void *context);

/**
 * Frees a handle. Null is fine. The operation goes on, and its buffers stay with it: memory that a pull was to write is
 * not written any more.
 */
void gradwire_handle_free(GradwireHandle *handle);

/**
 * Sends `body_bytes` bytes, at most 1 MiB, with a number before them, to the member of this rank in the group, or with
 * `GRADWIRE_EVERYONE` to all of a group (constants added up). They are copied during the call. Receivers have `timeout_ms`
 * milliseconds; all answers have come a little after that. The scheduler can be reached where a program runs it.
 */
GradwireCode gradwire_messages_send(const GradwireMessages *messages,
                                    uint32_t group,
                                    uint32_t rank,
                                    uint32_t app,
                                    int32_t head,
                                    const void *body,
                                    uint64_t body_bytes,
                                    uint64_t timeout_ms,
                                    GradwireOnAnswer on_answer,
                                    void *context);

/**
 * Lets a handler take messages to this number. Those that came before waited for it. The context has to live until the
 * handler is unregistered.
 */
GradwireCode gradwire_messages_register(const GradwireMessages *messages,
                                        uint32_t app,
                                        GradwireOnMessage handler,
                                        void *context);

/**
 * Ends a handler when it is done with the message that it has, and waits for that, unless it is a handler or callback of
 * messages that calls.
 */
GradwireCode gradwire_messages_unregister(const GradwireMessages *messages,
                                          uint32_t app);

/**
 * Waits at the barrier of this name until every member of the group (`GradwireGroup` constants added up; this one is in it)
 * has come, at most `timeout_ms` milliseconds, of which a day is the most. The message names the missing. The scheduler is
 * waited for where a program runs it.
 */
GradwireCode gradwire_messages_barrier(const GradwireMessages *messages,
                                       const char *name,
                                       uint32_t group,
                                       uint64_t timeout_ms);

/**
 * Frees what stands for the messages. Null is fine. Handlers stay.
 */
void gradwire_messages_free(GradwireMessages *messages);

/**
 * Who sent the message: one `GradwireGroup` constant, and the rank there.
 */
GradwireCode gradwire_message_from(const GradwireMessage *message, uint32_t *group, uint32_t *rank);

/**
 * The message's number. 0 for null.
 */
int32_t gradwire_message_head(const GradwireMessage *message);

/**
 * The message's bytes, and how many in `bytes`, which may be null.
 */
const void *gradwire_message_body(const GradwireMessage *message, uint64_t *bytes);

/**
 * Answers a message, once, from any thread, with a number and at most 1 MiB, copied during the call.
 */
GradwireCode gradwire_message_reply(const GradwireMessage *message,
                                    int32_t head,
                                    const void *body,
                                    uint64_t body_bytes);

/**
 * Frees a message. Null is fine.
 */
void gradwire_message_free(GradwireMessage *message);

/**
 * Fills an update rule (a `GradwireRule`) with its usual constants: the mean of contributions with learning rate 0.01,
 * but plain sums for the rules sum and assign.
 */
GradwireCode gradwire_optimizer_default(int32_t rule,
                                        GradwireOptimizer *optimizer);

/**
 * Starts the scheduler in this process, on a thread of its own, and returns when it listens where the settings say.
 */
GradwireCode gradwire_scheduler_start(const GradwireSettings *settings,
                                      GradwireScheduler **scheduler);

/**
 * How many workers the cluster has. 0 for null.
 */
uint32_t gradwire_scheduler_workers(const GradwireScheduler *scheduler);

/**
 * How many servers the cluster has. 0 for null.
 */
uint32_t gradwire_scheduler_servers(const GradwireScheduler *scheduler);

/**
 * Its messages and barriers.
 */
GradwireCode gradwire_scheduler_messages(const GradwireScheduler *scheduler, GradwireMessages **messages);

/**
 * Waits until the job has ended: in good order when all workers have left, else with the reason. It has no deadline of its
 * own, because the job has none. Of several calls one waits.
 */
GradwireCode gradwire_scheduler_wait(const GradwireScheduler *scheduler);

/**
 * Ends the job in good order, unless it has ended or another thread waits for that, and frees the scheduler. Null is fine.
 */
void gradwire_scheduler_free(GradwireScheduler *scheduler);

/**
 * Starts a server in this process, on threads of its own, and returns when the scheduler has given it a rank.
 */
GradwireCode gradwire_server_start(const GradwireSettings *settings, GradwireServer **server);

/**
 * Its rank among servers. `UINT32_MAX` for null.
 */
uint32_t gradwire_server_rank(const GradwireServer *server);

/**
 * How many workers the cluster has. 0 for null.
 */
uint32_t gradwire_server_workers(const GradwireServer *server);

/**
 * How many servers the cluster has. 0 for null.
 */
uint32_t gradwire_server_servers(const GradwireServer *server);

/**
 * Its messages and barriers.
 */
GradwireCode gradwire_server_messages(const GradwireServer *server, GradwireMessages **messages);

/**
 * Lets a handler take calls to this number. Calls that came before waited for it. The context has to live until the
 * handler is unregistered or the server freed.
 */
GradwireCode gradwire_server_register(const GradwireServer *server,
                                      uint32_t app,
                                      GradwireHandler handler,
                                      void *context);

/**
 * Ends a handler when it is done with the call that it has, and waits for that, unless it is the handler itself that
 * calls. Nothing happens where there is none.
 */
GradwireCode gradwire_server_unregister(const GradwireServer *server,
                                        uint32_t app);

/**
 * Waits until the job has ended: in good order when all workers have left, else with the reason. It has no deadline of its
 * own, because the job has none; deaths and the loss of the scheduler end it. Of several calls one waits.
 */
GradwireCode gradwire_server_wait(const GradwireServer *server);

/**
 * Leaves the cluster in good order, unless another thread waits for the end, and frees the server. Null is fine.
 */
void gradwire_server_free(GradwireServer *server);

/**
 * The rank of the worker that asks. `UINT32_MAX` for null.
 */
uint32_t gradwire_request_from(const GradwireRequest *request);

/**
 * The request's head, and its length in `bytes`, which may be null.
 */
const void *gradwire_request_head(const GradwireRequest *request, uint64_t *bytes);

/**
 * The request's body, whole, and its length in `bytes`, which may be null. A large one lies at a multiple of 64 bytes.
 */
const void *gradwire_request_body(const GradwireRequest *request,
                                  uint64_t *bytes);

/**
 * Answers a request, once, from any thread, with a head of at most 512 bytes and a body of pieces. A body of one long piece
 * with a `release` is sent from where it lies; everything else is copied during the call.
 */
GradwireCode gradwire_request_reply(const GradwireRequest *request,
                                    const void *head,
                                    uint64_t head_bytes,
                                    const GradwirePiece *pieces,
                                    uint64_t piece_count);

/**
 * Frees a request. Null is fine.
 */
void gradwire_request_free(GradwireRequest *request);

/**
 * New settings: the environment's and a settings file's, where there is one.
 */
GradwireCode gradwire_settings_new(GradwireSettings **settings);

/**
 * Sets one setting by its dotted name, such as `scheduler.port`, to a value as it stands in a settings file, without
 * quotes. `gradwire config` lists them all. Wrong names and values are told when something is started with them.
 */
GradwireCode gradwire_settings_set(const GradwireSettings *settings,
                                   const char *name,
                                   const char *value);

/**
 * Names the settings file. It has to exist; without this call the usual places are looked at.
 */
GradwireCode gradwire_settings_file(const GradwireSettings *settings, const char *path);

/**
 * Adds a variable as if it stood in the environment, such as `DMLC_PS_ROOT_URI`. It hides the environment's own.
 */
GradwireCode gradwire_settings_variable(const GradwireSettings *settings,
                                        const char *name,
                                        const char *value);

/**
 * Leaves the process's environment alone: only the file, and what is set here, counts.
 */
GradwireCode gradwire_settings_without_environment(const GradwireSettings *settings);

/**
 * Lets the library log to stderr, as `log.filter` and `log.json` say, from the first start with these settings on. It
 * logs nothing otherwise. Logging is the process's: the first one to ask decides.
 */
GradwireCode gradwire_settings_log(const GradwireSettings *settings);

/**
 * Frees settings. Null is fine. What was started with them goes on.
 */
void gradwire_settings_free(GradwireSettings *settings);

/**
 * Declares a table at all servers. Repeating it is harmless; another declaration of a known key is refused. Waits for the
 * servers, at most `deadlines.operation_ms`.
 */
GradwireCode gradwire_declare_table(const GradwireClient *client,
                                    const GradwireTableSpec *spec,
                                    GradwireTable **table);

/**
 * Pushes values to rows: `count` ids, and `width` floats for each of them, in their order. The memory is copied during the
 * call. Values of an id that stands there several times are summed first. This worker's later pulls see the push.
 */
GradwireCode gradwire_push_rows(const GradwireClient *client,
                                const GradwireTable *table,
                                const uint64_t *ids,
                                uint64_t count,
                                const float *values,
                                uint64_t value_count,
                                GradwireRowsHandle **handle);

/**
 * As `gradwire_push_rows`, in a step of the trainer, a number that only grows: what servers have of a step that is repeated after
 * `gradwire_resume` counts once, where the same rows are pushed in the same order. An earlier step than the last one is an error,
 * and nothing is pushed. A process that takes the place of one that has left begins behind that one's last step, or its pushes
 * are not applied.
 */
GradwireCode gradwire_push_rows_in_step(const GradwireClient *client,
                                        const GradwireTable *table,
                                        uint64_t step,
                                        const uint64_t *ids,
                                        uint64_t count,
                                        const float *values,
                                        uint64_t value_count,
                                        GradwireRowsHandle **handle);

/**
 * Brings rows into `out`: `width` floats for each of the `count` ids, in their order. Waits for them, at most
 * `deadlines.operation_ms`.
 */
GradwireCode gradwire_pull_rows(const GradwireClient *client,
                                const GradwireTable *table,
                                const uint64_t *ids,
                                uint64_t count,
                                float *out,
                                uint64_t out_count);

/**
 * Waits until all rows of a push have been pushed to. A second wait is `GRADWIRE_CODE_ALREADY_WAITED`.
 */
GradwireCode gradwire_rows_wait(const GradwireRowsHandle *handle);

/**
 * 1 where the push has ended, so that waiting takes no time; else 0. 1 for null and after a wait.
 */
int32_t gradwire_rows_is_done(const GradwireRowsHandle *handle);

/**
 * Frees a push's handle. Null is fine. The push goes on.
 */
void gradwire_rows_free(GradwireRowsHandle *handle);

/**
 * Floats of one of its rows. 0 for null.
 */
uint32_t gradwire_table_width(const GradwireTable *table);

/**
 * Frees what stands for the table. Null is fine.
 */
void gradwire_table_free(GradwireTable *table);

/**
 * Declares `count` tensors and writes them to `tensors`, in the order given: room for `count` pointers. Every worker
 * declares the same ones, in any number of calls; repeating a declaration is harmless. A new tensor is all zeros. Waits
 * for the servers, at most `deadlines.operation_ms`. On an error nothing is written.
 */
GradwireCode gradwire_declare(const GradwireClient *client,
                              const GradwireTensorSpec *specs,
                              uint64_t count,
                              GradwireTensor **tensors);

/**
 * A tensor that this client has declared, by its key.
 */
GradwireCode gradwire_tensor_of(const GradwireClient *client, uint64_t key, GradwireTensor **tensor);

/**
 * Gives a tensor another update rule, from this worker's next contribution on; one worker's call is enough. `round`
 * may be null; it gets the first round of the new rule.
 */
GradwireCode gradwire_change_rule(const GradwireClient *client,
                                  const GradwireTensor *tensor,
                                  const GradwireOptimizer *optimizer,
                                  uint64_t *round);

/**
 * Where training is: `round` gets the one that every worker has finished of these `count` tensors, which are all that the
 * program contributes to; 0 in a job that has just begun. To be called once, after declaring them and before anything is pushed:
 * this worker's next contribution is to the round after it, and its first pull brings the weights that the round left. That is
 * how a program goes on whose earlier life died where rounds wait for it (`cluster.worker_loss = "wait"`), or that begins from
 * a checkpoint; with 0 it sets initial values. What a codec had left over in a process that died is lost.
 */
GradwireCode gradwire_resume(const GradwireClient *client,
                             const GradwireTensor *const *tensors,
                             uint64_t count,
                             uint64_t *round);

/**
 * Has servers write a checkpoint of the round that this worker has finished of these `count` tensors, which are all that the
 * program contributes to; returns when it is complete, after `timeout_ms` at the latest. `name` gets what
 * `checkpoint.restore` is to be to go on from it, as text that ends with a nul, of at most `name_bytes` bytes with it; 256 are
 * enough, and null with 0 says that nobody asks. To be called between rounds: when the operations of one were waited for, and
 * before anything is pushed to the next. One worker is enough; training stands still meanwhile.
 */
GradwireCode gradwire_checkpoint(const GradwireClient *client,
                                 const GradwireTensor *const *tensors,
                                 uint64_t count,
                                 uint64_t timeout_ms,
                                 char *name,
                                 uint64_t name_bytes);

/**
 * Its bytes: how many a contribution has, and how many a pull brings. 0 for null.
 */
uint64_t gradwire_tensor_bytes(const GradwireTensor *tensor);

/**
 * Bytes of a contribution as it is sent: fewer than the tensor's where it has a codec. 0 for null.
 */
uint64_t gradwire_tensor_sent_bytes(const GradwireTensor *tensor);

/**
 * How contributions to it travel now: "slot", "static", "rendezvous-read" or "rendezvous-write". It is chosen when the tensor is
 * declared, once more after the first round, and by the setting `transport.placement`. Never freed; null for null.
 */
const char *gradwire_tensor_placement(const GradwireTensor *tensor);

/**
 * The same tensor, whose operations tell the version of each chunk, too: see `gradwire_chunk_versions`. Another object, to
 * be freed by itself.
 */
GradwireCode gradwire_tensor_with_chunk_versions(const GradwireTensor *tensor,
                                                 GradwireTensor **with_versions);

/**
 * Its key. 0 for null.
 */
uint64_t gradwire_tensor_key(const GradwireTensor *tensor);

/**
 * Frees what stands for the tensor. Null is fine.
 */
void gradwire_tensor_free(GradwireTensor *tensor);

/**
 * Contributes a gradient of `data_bytes` bytes to the tensor's next round. The memory is copied during the call and is the
 * program's afterwards. The operation ends when the round is published: in sync mode when all workers have contributed.
 * Higher `priority` goes first; operations of one tensor are never reordered.
 */
GradwireCode gradwire_push(const GradwireClient *client,
                           const GradwireTensor *tensor,
                           const void *data,
                           uint64_t data_bytes,
                           int32_t priority,
                           GradwireHandle **handle);

/**
 * As `gradwire_push` from registered memory, which is sent from where it lies and belongs to the operation until the wait
 * ends it well.
 */
GradwireCode gradwire_push_buffer(const GradwireClient *client,
                                  const GradwireTensor *tensor,
                                  const GradwireBuffer *gradient,
                                  int32_t priority,
                                  GradwireHandle **handle);

/**
 * Brings the weights of the last round this worker contributed to, or later, into `into`: as many bytes as the tensor has,
 * at a multiple of an element's size. They are written by the wait and at no other time, so the memory has to live until
 * then. A handle that is freed without a wait writes nothing. `priority` is as that of a push.
 */
GradwireCode gradwire_pull(const GradwireClient *client,
                           const GradwireTensor *tensor,
                           void *into,
                           uint64_t into_bytes,
                           int32_t priority,
                           GradwireHandle **handle);

/**
 * As `gradwire_pull` into registered memory: the servers write it where it lies. It belongs to the operation until the
 * wait ends it well.
 */
GradwireCode gradwire_pull_buffer(const GradwireClient *client,
                                  const GradwireTensor *tensor,
                                  const GradwireBuffer *weights,
                                  int32_t priority,
                                  GradwireHandle **handle);

/**
 * Contributes a gradient and brings the weights of that round: `gradwire_push` and `gradwire_pull` in one, with their
 * rules for memory. `data` and `into` may be the same. Higher `priority` goes first; operations of one tensor are never
 * reordered. Not of a dynamic tensor.
 */
GradwireCode gradwire_push_pull(const GradwireClient *client,
                                const GradwireTensor *tensor,
                                const void *data,
                                uint64_t data_bytes,
                                void *into,
                                uint64_t into_bytes,
                                int32_t priority,
                                GradwireHandle **handle);

/**
 * As `gradwire_push_pull` with registered memory, of two different buffers.
 */
GradwireCode gradwire_push_pull_buffers(const GradwireClient *client,
                                        const GradwireTensor *tensor,
                                        const GradwireBuffer *gradient,
                                        const GradwireBuffer *weights,
                                        int32_t priority,
                                        GradwireHandle **handle);

/**
 * Sets the tensor's initial value, before its first round: rank 0's counts, and every rank's operation ends when it is
 * set. The memory is copied during the call.
 */
GradwireCode gradwire_init(const GradwireClient *client,
                           const GradwireTensor *tensor,
                           const void *data,
                           uint64_t data_bytes,
                           GradwireHandle **handle);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GRADWIRE_H */

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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Element types.
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
     * IEEE 754 binary16, 2 bytes; summed and stored in f32.
     */
    GRADWIRE_DTYPE_F16 = 3,
    /**
     * bfloat16, 2 bytes; summed and stored in f32.
     */
    GRADWIRE_DTYPE_BF16 = 4,
    /**
     * `int8_t`. Integers are summed in 64 bits; a value that does not fit its type is an error.
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
 * The update rule on the servers.
 */
enum GradwireRule
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * value += sum of the contributions of the round (ps-lite's default handle).
     */
    GRADWIRE_RULE_SUM = 0,
    /**
     * value = sum of the contributions of the round (an all-reduce).
     */
    GRADWIRE_RULE_ASSIGN = 1,
    /**
     * Stochastic gradient descent, optionally with momentum and Nesterov momentum.
     */
    GRADWIRE_RULE_SGD = 2,
    /**
     * AdaGrad (Duchi et al. 2011).
     */
    GRADWIRE_RULE_ADA_GRAD = 3,
    /**
     * RMSProp (Hinton's lecture 6e), not centred.
     */
    GRADWIRE_RULE_RMS_PROP = 4,
    /**
     * Adam (Kingma and Ba 2015), with bias correction.
     */
    GRADWIRE_RULE_ADAM = 5,
    /**
     * Adam with decoupled weight decay (Loshchilov and Hutter 2019).
     */
    GRADWIRE_RULE_ADAM_W = 6,
    /**
     * LAMB (You et al. 2020, algorithm 2, without bounds on the norms). It needs the norm of the whole tensor, so all of the tensor is on one lane of one server.
     */
    GRADWIRE_RULE_LAMB = 7,
    /**
     * FTRL-proximal (McMahan et al. 2013). It does not support a schedule.
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
 * The constants of each rule.
 */
typedef union {
    /* Constants of any rule in their order. */
    float values[8];
    struct {
        /* Share of the last step that is kept. It is from 0 to below 1, and 0 by default. */
        float momentum;
        /* Nesterov momentum, in the form of Sutskever et al. 2013. Without momentum it has no effect. It is 0 or 1, and 0 by default. */
        float nesterov;
    } sgd;
    struct {
        /* Added to the denominator. It is above 0, and 0.0000000001 by default. */
        float epsilon;
    } ada_grad;
    struct {
        /* Share of the mean square that is kept. It is from 0 to below 1, and 0.99 by default. */
        float decay;
        /* Added to the denominator. It is above 0, and 0.00000001 by default. */
        float epsilon;
    } rms_prop;
    struct {
        /* Share of the mean that is kept. It is from 0 to below 1, and 0.9 by default. */
        float beta1;
        /* Share of the mean square that is kept. It is from 0 to below 1, and 0.999 by default. */
        float beta2;
        /* Added to the denominator. It is above 0, and 0.00000001 by default. */
        float epsilon;
    } adam;
    struct {
        /* Share of the mean that is kept. It is from 0 to below 1, and 0.9 by default. */
        float beta1;
        /* Share of the mean square that is kept. It is from 0 to below 1, and 0.999 by default. */
        float beta2;
        /* Added to the denominator. It is above 0, and 0.00000001 by default. */
        float epsilon;
    } adam_w;
    struct {
        /* Share of the mean that is kept. It is from 0 to below 1, and 0.9 by default. */
        float beta1;
        /* Share of the mean square that is kept. It is from 0 to below 1, and 0.999 by default. */
        float beta2;
        /* Added to the denominator. It is above 0, and 0.00000001 by default. */
        float epsilon;
    } lamb;
    struct {
        /* Added to the root of the sum of squares. It is at least 0, and 1 by default. */
        float beta;
        /* L1 weight. It is at least 0, and 0 by default. */
        float l1;
        /* L2 weight. It is at least 0, and 0 by default. */
        float l2;
    } ftrl;
} GradwireConstants;

/**
 * Calls of one worker to one handler of one server that may be in flight; further ones wait at the worker.
 */
#define GRADWIRE_CALLS_IN_FLIGHT_MAX 128

/**
 * Value of the setting `node.rank`: the highest free rank, for members that must not take a rank that others ask for.
 */
#define GRADWIRE_LAST_RANK UINT32_MAX

/**
 * Time limit for waits: the operation's own deadline (`deadlines.operation_ms`, or `deadlines.busy_ms` for other workers).
 */
#define GRADWIRE_UNTIL_DEADLINE UINT64_MAX

/**
 * Instead of a rank: all members of the group.
 */
#define GRADWIRE_EVERYONE UINT32_MAX

/**
 * The result of every function that can fail. The numbers never change; new ones may be added.
 */
enum GradwireCode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Success.
     */
    GRADWIRE_CODE_OK = 0,
    /**
     * A required pointer is null.
     */
    GRADWIRE_CODE_NULL_ARGUMENT = 1,
    /**
     * Another argument is invalid: a length, a key, a number out of range, text that is not UTF-8.
     */
    GRADWIRE_CODE_BAD_ARGUMENT = 2,
    /**
     * The handle was waited for before. Each handle returns its result once.
     */
    GRADWIRE_CODE_ALREADY_WAITED = 3,
    /**
     * The buffer belongs to an operation in flight, or to a failed one.
     */
    GRADWIRE_CODE_BUFFER_IN_USE = 4,
    /**
     * The time limit of the wait has passed. The operation continues: wait again.
     */
    GRADWIRE_CODE_NOT_DONE = 5,
    /**
     * A setting is invalid or missing.
     */
    GRADWIRE_CODE_SETTING = 6,
    /**
     * The scheduler or a server cannot be reached, has refused this process, or a connection to it broke.
     */
    GRADWIRE_CODE_UNREACHABLE = 7,
    /**
     * A member did not arrive or answer before the deadline. The message names it.
     */
    GRADWIRE_CODE_DEADLINE = 8,
    /**
     * A member of the cluster failed. The message names it.
     */
    GRADWIRE_CODE_MEMBER_DIED = 9,
    /**
     * The cluster refused the declaration or the operation. The message has the reason.
     */
    GRADWIRE_CODE_REFUSED = 10,
    /**
     * A round's value does not fit the tensor's type, or a codec cannot encode a value.
     */
    GRADWIRE_CODE_VALUE = 11,
    /**
     * The client is closed, or the job has ended.
     */
    GRADWIRE_CODE_CLOSED = 12,
    /**
     * There is not enough memory or registered memory, or too much was requested.
     */
    GRADWIRE_CODE_MEMORY = 13,
    /**
     * No transport that the settings require is available.
     */
    GRADWIRE_CODE_TRANSPORT = 14,
    /**
     * The receiver of a call dropped it without an answer, or has no handler for it.
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
 * The decay of the learning rate after the warm-up.
 */
enum GradwireDecay
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Constant.
     */
    GRADWIRE_DECAY_CONSTANT = 0,
    /**
     * Multiplied by `decay_factor` every `decay_rounds` rounds.
     */
    GRADWIRE_DECAY_STEP = 1,
    /**
     * Multiplied by `decay_factor` every round.
     */
    GRADWIRE_DECAY_EXPONENTIAL = 2,
    /**
     * Decays linearly to `decay_factor` of itself within `decay_rounds` rounds.
     */
    GRADWIRE_DECAY_LINEAR = 3,
    /**
     * The same along half a cosine wave.
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
 * How contributions of several workers become versions.
 */
enum GradwireMode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The cluster's mode (`cluster.mode`).
     */
    GRADWIRE_MODE_CLUSTER = 0,
    /**
     * One version per round, from the contributions of all workers.
     */
    GRADWIRE_MODE_SYNC = 1,
    /**
     * Every contribution makes a version. Workers may be at most `staleness` contributions apart.
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
 * Members of a cluster, as flags to be added: the group of a barrier.
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
 * The form of a rule, because frameworks differ. Unless noted, the forms differ in rounding only.
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
     * As MXNet's optimizers: momentum stores steps, with the rate they had; epsilon of AdaGrad and RMSProp is under
     * the root, and AdaGrad's weight decay is separate from the gradient; epsilon of Adam and AdamW is added before
     * the bias correction.
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
 * Initial values of a row.
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
     * Uniformly distributed from `low` to below `high`. The values depend only on `seed`, the row's id and the
     * element's position.
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
 * The allowed values of a parameter. All are finite.
 */
enum GradwireRange
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Every finite number.
     */
    GRADWIRE_RANGE_ANY = 0,
    /**
     * At least 0.
     */
    GRADWIRE_RANGE_NOT_NEGATIVE = 1,
    /**
     * Above 0.
     */
    GRADWIRE_RANGE_POSITIVE = 2,
    /**
     * From 0 to below 1.
     */
    GRADWIRE_RANGE_SHARE = 3,
    /**
     * From 0 to 1.
     */
    GRADWIRE_RANGE_UP_TO_ONE = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireRange GradwireRange;
#else
typedef int32_t GradwireRange;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Memory that the client has registered with its transports. This process does not copy what is sent from it or
 * received into it. Free it with `gradwire_buffer_free`.
 *
 * It belongs to an operation from the call that starts it until the wait that completes it successfully. Meanwhile
 * its data pointer is null, and the program must not read or write memory from an earlier pointer. If the call fails,
 * the buffer stays with the program. After a failed operation the buffer stays with that operation, because a server
 * may still write it: free the buffer and allocate another one.
 */
typedef struct GradwireBuffer GradwireBuffer;

/**
 * A call in flight. It ends by itself, with a reply or an error, at its deadline at the latest. Free it with
 * `gradwire_call_free`.
 */
typedef struct GradwireCallHandle GradwireCallHandle;

/**
 * A worker of a cluster. Any thread may call its functions at any time. A process may have several clients, of one
 * cluster or of several. Free it with `gradwire_client_free`.
 *
 * Do not use it in a child process after a `fork`: its threads exist only in the parent.
 */
typedef struct GradwireClient GradwireClient;

/**
 * An operation in flight. It completes or fails by itself, even if the program does not wait. Free it with
 * `gradwire_handle_free`.
 */
typedef struct GradwireHandle GradwireHandle;

/**
 * A received message. Free it with `gradwire_message_free`; head and body are valid until then. If it is freed
 * without an answer, its sender gets `GRADWIRE_CODE_NO_REPLY`.
 */
typedef struct GradwireMessage GradwireMessage;

/**
 * The messages of one client, server or scheduler. It may outlive that member; sending then fails. Free it with
 * `gradwire_messages_free`.
 */
typedef struct GradwireMessages GradwireMessages;

/**
 * A handler's reply. Free it with `gradwire_reply_free`; head and body are valid until then.
 */
typedef struct GradwireReply GradwireReply;

/**
 * A worker's call to a handler of this program. Free it with `gradwire_request_free`; head and body are valid until
 * then, also after the reply. If it is freed without a reply, the worker gets `GRADWIRE_CODE_NO_REPLY`.
 */
typedef struct GradwireRequest GradwireRequest;

/**
 * A push of rows in flight. It ends by itself. Free it with `gradwire_rows_free`.
 */
typedef struct GradwireRowsHandle GradwireRowsHandle;

/**
 * The scheduler of a cluster. Any thread may call its functions. Free it with `gradwire_scheduler_free`.
 */
typedef struct GradwireScheduler GradwireScheduler;

/**
 * A server of a cluster. Any thread may call its functions. Free it with `gradwire_server_free`.
 */
typedef struct GradwireServer GradwireServer;

/**
 * The settings for a client, server or scheduler. In increasing priority: defaults, settings file, `DMLC_*` and
 * `GRADWIRE_*` variables of the environment, values set here. Free them with `gradwire_settings_free`. They may be
 * used several times, and by several threads.
 */
typedef struct GradwireSettings GradwireSettings;

/**
 * Receives the bytes of a handler's state while `GradwireSave` runs. It is valid until that returns.
 */
typedef struct GradwireState GradwireState;

/**
 * A declared table. Any thread may call its functions. `gradwire_table_free` frees only this object and not the
 * table.
 */
typedef struct GradwireTable GradwireTable;

/**
 * A declared tensor. Any thread may call its functions. `gradwire_tensor_free` frees only this object and not the
 * tensor: a repeated declaration, or `gradwire_tensor_of`, returns it again.
 */
typedef struct GradwireTensor GradwireTensor;

/**
 * A piece of a body. Without `release` it is copied during the call. With `release` the library may read the memory
 * until it calls `release` with the context: exactly once, from any thread, and also if the call fails. Nothing may
 * change the memory before that. `release` must return quickly and must not call the library.
 */
typedef struct {
    /**
     * Its address.
     */
    const void *data;
    /**
     * Its size in bytes; if 0, `data` may be null.
     */
    uint64_t bytes;
    /**
     * Called when the library no longer needs the memory; may be null.
     */
    void (*release)(void *context);
    /**
     * The context for `release`.
     */
    void *context;
} GradwirePiece;

/**
 * A request to a handler of a server. Initialise the structure with zeros.
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
     * The head: a few bytes for the handler, at most 512; read during the call.
     */
    const void *head;
    /**
     * Bytes of the head.
     */
    uint64_t head_bytes;
    /**
     * The body, in at most 16 pieces that the handler receives as one.
     */
    const GradwirePiece *pieces;
    /**
     * The number of pieces.
     */
    uint64_t piece_count;
    /**
     * Calls with higher priority go first; calls to one handler of one server are never reordered.
     */
    int32_t priority;
    /**
     * The expected size of the reply's body, so that a long one needs no second round trip. 0: unknown.
     */
    uint64_t reply_bytes;
    /**
     * Where the reply's body is to land, if this is memory of a buffer of the client (`gradwire_buffer_data`), the body is not
     * longer, and it does not travel with the result. Otherwise it lands elsewhere. `gradwire_reply_body` says where it
     * is. Nobody may use the memory until `release` is called. A call to a server that stands still may fail before that.
     */
    GradwirePiece reply_into;
    /**
     * Deadline in milliseconds; 0: `deadlines.operation_ms`.
     */
    uint64_t timeout_ms;
} GradwireCall;

/**
 * Called once when a call has ended. With `GRADWIRE_CODE_OK` the callee owns the reply and must free it; otherwise
 * the reply is null, and `gradwire_last_error` returns the reason. The library calls it on one of its threads, or on
 * the caller's thread before `gradwire_call_then` returns. Return quickly: take the reply and wake your own thread.
 */
typedef void (*GradwireOnReply)(void *context, GradwireCode code, GradwireReply *reply);

/**
 * Returns nonzero when what a program waits for is over. It is called very often, and must not block.
 */
typedef int32_t (*GradwireIsOver)(void *context);

/**
 * Returns when what a program waits for is over.
 */
typedef void (*GradwireSleep)(void *context);

/**
 * What a client has done so far. The counts never decrease.
 */
typedef struct {
    /**
     * Completed operations, counted once for each lane that worked on one.
     */
    uint64_t done;
    /**
     * Failed operations, counted in the same way.
     */
    uint64_t failed;
    /**
     * Payload bytes sent.
     */
    uint64_t sent_bytes;
    /**
     * The same bytes before encoding.
     */
    uint64_t plain_bytes;
    /**
     * Bytes of weights that servers wrote into this client's memory.
     */
    uint64_t landed_bytes;
    /**
     * Bytes of weights that were read in the servers' memory (views).
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
     * How many times a batch had to wait for a credit.
     */
    uint64_t credit_waits;
} GradwireStats;

/**
 * The result of a successful operation.
 */
typedef struct {
    /**
     * The version that was published or returned.
     */
    uint64_t version;
    /**
     * Bytes that were returned; for a dynamic tensor possibly fewer than its maximum.
     */
    uint64_t landed_bytes;
    /**
     * Chunks of the contribution that were late: their round had ended without them, and they were dropped. Only for
     * tensors with backup workers. The returned weights of these chunks are newer than the round's.
     */
    uint32_t late_chunks;
} GradwireEnded;

/**
 * Called once when an operation has ended, with the context given at registration. `code` is the result, and
 * `gradwire_last_error` returns the reason. The library calls it on one of its threads, or at once if the operation
 * has already ended. Return quickly, and call no function of the library except `gradwire_last_error`: wake another
 * thread instead.
 */
typedef void (*GradwireOnEnd)(void *context, GradwireCode code, uint64_t version);

/**
 * One receiver's answer.
 */
typedef struct {
    /**
     * `GRADWIRE_CODE_OK`, or why there is no answer; then `gradwire_last_error` returns the reason during the call.
     */
    GradwireCode code;
    /**
     * The receiver's group: one `GradwireGroup` constant.
     */
    uint32_t from_group;
    /**
     * The receiver's rank in the group.
     */
    uint32_t from_rank;
    /**
     * The number of receivers.
     */
    uint32_t of;
    /**
     * The head of the answer.
     */
    int32_t head;
    /**
     * The body of the answer.
     */
    const void *body;
    /**
     * Bytes of the body.
     */
    uint64_t body_bytes;
} GradwireAnswer;

/**
 * Receives one receiver's answer; the body is valid during the call. It is called `of` times for a message, once for
 * each receiver, or once with an error and `of` 1 if the message reached no receiver.
 */
typedef void (*GradwireOnAnswer)(void *context, const GradwireAnswer *answer);

/**
 * Receives a message. The callee must answer and free it, at once or later and on any thread. All handlers and
 * callbacks for messages of one member run on one thread, one after the other: return quickly, and do not wait for a
 * message there.
 */
typedef void (*GradwireOnMessage)(void *context, GradwireMessage *message);

/**
 * A parameter's value.
 */
typedef struct {
    /**
     * Its name.
     */
    const char *name;
    /**
     * Its value.
     */
    float value;
} GradwireParameter;

/**
 * A declaration's choice of a rule that the servers' program has registered.
 */
typedef struct {
    /**
     * The rule's name.
     */
    const char *name;
    /**
     * Parameters, in any order. Those that are missing have their usual values.
     */
    const GradwireParameter *parameters;
    /**
     * The number of parameters given.
     */
    uint64_t parameter_count;
} GradwireOwn;

/**
 * An update rule with its constants. Fill it with `gradwire_optimizer_default` and change single fields.
 */
typedef struct {
    /**
     * A `GradwireRule`.
     */
    int32_t rule;
    /**
     * Not 0: divide the sum by the number of contributors first.
     */
    int32_t average;
    /**
     * Factor of the sum; not 0.
     */
    float rescale;
    /**
     * Step size; not used by sum and assign.
     */
    float learning_rate;
    /**
     * Share of the weight that is added to its gradient; for AdamW and LAMB to its step.
     */
    float weight_decay;
    /**
     * The rule's own constants, such as `constants.sgd.momentum`. Those of other rules are not set.
     */
    GradwireConstants constants;
    /**
     * Warm-up: rounds in which the learning rate grows to its value.
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
    /**
     * A rule that the servers' program has registered; null for none. `rule` and `constants` are not used with it. It
     * must exist until the declaration has returned.
     */
    const GradwireOwn *own;
} GradwireOptimizer;

/**
 * A parameter of a registered rule.
 */
typedef struct {
    /**
     * Its name: at most 12 of `a` to `z`, `0` to `9` and `_`.
     */
    const char *name;
    /**
     * A `GradwireRange`.
     */
    int32_t range;
    /**
     * Its value in declarations that do not give it.
     */
    float usual;
} GradwireOwnParameter;

/**
 * The numbers of one round.
 */
typedef struct {
    /**
     * The round, from 1; outside mode sync the chunk's version.
     */
    uint64_t round;
    /**
     * The step size, by the declaration's learning rate and schedule.
     */
    float rate;
    /**
     * The declaration's weight decay. The rule applies it, or not.
     */
    float decay;
    /**
     * The rule's parameters, in the order in which it names them.
     */
    const float *parameters;
} GradwireOwnStep;

/**
 * One round over part of a chunk: changes `weights`, and the rule's state in `first` and `second`, which begins with
 * zeros and is null for arrays that the rule does not keep. `gradient` is the sum of the contributions, divided by
 * their number and multiplied by `rescale` if the declaration says so. All arrays have `elements` elements. What becomes
 * of an element may depend on this element and on `step` only, because chunks are cut into blocks of any length. The
 * server's data threads call it, several at once. No exception may leave it.
 */
typedef void (*GradwireUpdate)(void *context,
                               const GradwireOwnStep *step,
                               uint64_t elements,
                               float *weights,
                               const float *gradient,
                               float *first,
                               float *second);

/**
 * An update rule of this program. All servers of a job must have the same ones.
 */
typedef struct {
    /**
     * Its name: at most 24 of `a` to `z`, `0` to `9` and `_`.
     */
    const char *name;
    /**
     * Its parameters.
     */
    const GradwireOwnParameter *parameters;
    /**
     * The number of its parameters, at most 8.
     */
    uint64_t parameter_count;
    /**
     * The number of arrays that it keeps, at most 2.
     */
    uint32_t arrays;
    /**
     * Its arithmetic.
     */
    GradwireUpdate update;
    /**
     * Passed to `update`. It must exist until the server is freed.
     */
    void *context;
} GradwireOwnRule;

/**
 * Receives a call. The callee must answer and free it, at once or later and on any thread. Handlers run on a separate
 * thread, one call at a time, and each worker's calls in the order in which it made them. No exception may leave the
 * handler.
 */
typedef void (*GradwireHandler)(void *context, GradwireRequest *request);

/**
 * Writes the state of a handler with `gradwire_state_write`, and returns true; on the handler's thread, between calls, while every
 * call has been answered. False: the state cannot be saved now, and is asked for again; the journal keeps the earlier state, if it
 * has one, and the calls since. No exception may leave it.
 */
typedef bool (*GradwireSave)(void *context, GradwireState *state);

/**
 * Takes over the state that `GradwireSave` wrote in an earlier process; on the handler's thread, before its first call. The bytes
 * are valid during the call. False: the state cannot be loaded; the handler is not started, and calls to it fail. No exception
 * may leave it.
 */
typedef bool (*GradwireLoad)(void *context, const void *bytes, uint64_t count);

/**
 * Declaration of a table. All workers must declare the same. Initialise the structure with zeros: then rows begin
 * with zeros, are created at their first push, and stay.
 */
typedef struct {
    /**
     * The key, below 65536. Tensors have separate keys.
     */
    uint32_t key;
    /**
     * Floats per row, at most 65536.
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
     * How many pushes a row needs before it gets memory; earlier ones are dropped. 0 and 1: at its first push. Pulls
     * do not count: they return initial values.
     */
    uint32_t admit_after;
    /**
     * The largest number of rows. Beyond that, the rows with the oldest last push are evicted. 0: no limit.
     */
    uint64_t rows_max;
    /**
     * The update rule, applied to each row separately, with the sum of one push's gradients for it. Any rule except
     * LAMB.
     */
    GradwireOptimizer optimizer;
} GradwireTableSpec;

/**
 * Declaration of a tensor. All workers must declare the same. Initialise the structure with zeros: zero is the
 * default of every field.
 */
typedef struct {
    /**
     * The key, any number.
     */
    uint64_t key;
    /**
     * The number of elements; for a dynamic tensor the largest number in a round.
     */
    uint64_t elements;
    /**
     * A name for logs and errors; may be null.
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
     * Mode bounded: how many contributions workers may be apart.
     */
    uint32_t staleness;
    /**
     * Mode sync: how many workers a round does not wait for. 0: the cluster's setting.
     */
    uint32_t backup_workers;
    /**
     * Not 0: dynamic, each operation has its own length.
     */
    int32_t dynamic;
    /**
     * The codec of contributions: null or "plain", "f16", "bf16", "onebit", "twobit:THRESHOLD", "topk:SHARE",
     * "randomk:SHARE", "dither:BITS". Only for f32 tensors that are not dynamic.
     */
    const char *codec;
    /**
     * Error feedback of the codec: whether what this encoding left out is added to the next gradient. 0: yes if the
     * codec is lossy; 1: yes; -1: no.
     */
    int32_t feedback;
    /**
     * Momentum before the encoding, from 0 to below 1 (Nesterov's). With a rule that has momentum, it would be
     * applied twice.
     */
    float momentum;
    /**
     * The update rule on the servers.
     */
    GradwireOptimizer optimizer;
} GradwireTensorSpec;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Allocates registered memory of this many bytes, aligned to 64 bytes, with undefined contents. Fails with
 * `GRADWIRE_CODE_MEMORY` if `memory.pool_bytes` is used up. Only operations of this client may use it.
 */
GradwireCode gradwire_buffer_allocate(const GradwireClient *client, uint64_t bytes, GradwireBuffer **buffer);

/**
 * As `gradwire_buffer_allocate`, for memory that the program keeps for long: it is no part of `memory.pool_bytes`, and at
 * most as much again. Null if that is used up: use memory of the program's then.
 */
GradwireBuffer *gradwire_buffer_allocate_kept(const GradwireClient *client,
                                              uint64_t bytes);

/**
 * The address of the memory, which never changes. Null while an operation has it (see `GradwireBuffer`).
 */
void *gradwire_buffer_data(const GradwireBuffer *buffer);

/**
 * Its size in bytes, as requested. 0 for null.
 */
uint64_t gradwire_buffer_bytes(const GradwireBuffer *buffer);

/**
 * Frees a buffer. Null is allowed. If an operation has the memory, it is freed when the operation has ended.
 */
void gradwire_buffer_free(GradwireBuffer *buffer);

/**
 * Calls a handler of a server's program. Calls to one handler of one server are handled in the order in which they
 * are made, each of them once. The function waits if `GRADWIRE_CALLS_IN_FLIGHT_MAX` earlier calls to the handler are in
 * flight, or if the pool (`memory.pool_bytes`) has no room for the request and its reply: as long as earlier operations
 * end within the call's time limit. The library's callbacks must not call it.
 */
GradwireCode gradwire_call(const GradwireClient *client,
                           const GradwireCall *call,
                           GradwireCallHandle **handle);

/**
 * As `gradwire_call`, with a callback instead of a handle. If this function returns an error, the callback is not
 * called.
 */
GradwireCode gradwire_call_then(const GradwireClient *client,
                                const GradwireCall *call,
                                GradwireOnReply callback,
                                void *context);

/**
 * Waits for the reply, at most until the call's deadline. A second wait returns `GRADWIRE_CODE_ALREADY_WAITED`.
 */
GradwireCode gradwire_call_wait(const GradwireCallHandle *handle,
                                GradwireReply **reply);

/**
 * 1 if the call has ended, so that a wait returns at once; otherwise 0. 1 for null and after a wait.
 */
int32_t gradwire_call_is_done(const GradwireCallHandle *handle);

/**
 * Frees a call's handle. Null is allowed. The call continues.
 */
void gradwire_call_free(GradwireCallHandle *handle);

/**
 * The reply's head, and its length in `bytes`, which may be null.
 */
const void *gradwire_reply_head(const GradwireReply *reply, uint64_t *bytes);

/**
 * The reply's body, and its length in `bytes`, which may be null. The address is that of `reply_into` if it landed there.
 */
const void *gradwire_reply_body(const GradwireReply *reply,
                                uint64_t *bytes);

/**
 * Frees a reply. Null is allowed.
 */
void gradwire_reply_free(GradwireReply *reply);

/**
 * Joins the cluster that the settings name (null: settings from the environment and the settings file), and waits
 * until all its members have registered. Each step has a deadline (`deadlines.assemble_ms`, `deadlines.connect_ms`),
 * and the error names the missing members.
 */
GradwireCode gradwire_client_connect(const GradwireSettings *settings,
                                     GradwireClient **client);

/**
 * Leaves the cluster in good order and frees the client. Null is allowed. Operations in flight fail with
 * `GRADWIRE_CODE_CLOSED`; their handles, tensors and buffers stay valid until they are freed.
 */
void gradwire_client_free(GradwireClient *client);

/**
 * Leaves the cluster in good order; the other members continue. The client stays valid, but all later calls fail with
 * `GRADWIRE_CODE_CLOSED`. Operations of other threads end at once.
 */
GradwireCode gradwire_client_close(const GradwireClient *client);

/**
 * Leaves because the program failed. All other members are notified of the reason, and exit.
 */
GradwireCode gradwire_client_fail(const GradwireClient *client, const char *reason);

/**
 * Waits for what only the program knows to be over, such as the callbacks of its calls. This thread works for the client
 * meanwhile, which saves hand-overs between threads; callbacks run on it, too. When there has been nothing to do for
 * `memory.spin_us`, `sleep` is called, once. No exception may leave the functions.
 */
GradwireCode gradwire_client_wait(const GradwireClient *client,
                                  GradwireIsOver is_over,
                                  GradwireSleep sleep,
                                  void *context);

/**
 * This worker's rank, from 0 to the number of workers minus one. `UINT32_MAX` for null.
 */
uint32_t gradwire_client_rank(const GradwireClient *client);

/**
 * The number of workers in the cluster. 0 for null.
 */
uint32_t gradwire_client_workers(const GradwireClient *client);

/**
 * The number of servers in the cluster. 0 for null.
 */
uint32_t gradwire_client_servers(const GradwireClient *client);

/**
 * The transports in use, such as "shm" or "shm+tcp". Valid as long as the client; null for null.
 */
const char *gradwire_client_transport(const GradwireClient *client);

/**
 * What the client has done so far. The call asks its data threads, which takes microseconds.
 */
GradwireCode gradwire_client_stats(const GradwireClient *client, GradwireStats *stats);

/**
 * Whether the job has ended: `GRADWIRE_CODE_OK` while it runs, otherwise the error that ended it, with the message.
 */
GradwireCode gradwire_client_check(const GradwireClient *client);

/**
 * The client's messages, and barriers with their own time limit.
 */
GradwireCode gradwire_client_messages(const GradwireClient *client, GradwireMessages **messages);

/**
 * Which member's failure ended the job. Returns 1 and writes its group (one `GradwireGroup` constant) and rank if a
 * failure ended it; otherwise returns 0 and writes nothing.
 */
int32_t gradwire_client_dead_member(const GradwireClient *client,
                                    uint32_t *group,
                                    uint32_t *rank);

/**
 * Reports a value of the training by name, such as its loss. The scheduler's page, `gradwire status --json`,
 * `gradwire top` and this worker's `/metrics` show the newest value of each name. At most 16 names of 1 to 48 bytes;
 * the value must be finite.
 */
GradwireCode gradwire_report_metric(const GradwireClient *client,
                                    const char *name,
                                    double value);

/**
 * Waits at the barrier with this name until all members of the group have arrived, at most `deadlines.busy_ms`.
 * The group is the sum of `GradwireGroup` constants and must include this worker. The error names the missing
 * members.
 */
GradwireCode gradwire_barrier(const GradwireClient *client,
                              const char *name,
                              uint32_t group);

/**
 * The reason of the last failure on this thread, with its cause and a fix. Never null; empty if there was no failure.
 * Valid until the next failure on this thread. Do not free it.
 */
const char *gradwire_last_error(void);

/**
 * The name of a code for logs, such as "deadline". Never null; "unknown" for an unknown number. The text is static.
 */
const char *gradwire_code_name(int32_t code);

/**
 * Waits until the operation has ended, at most `timeout_ms` milliseconds. `GRADWIRE_UNTIL_DEADLINE`: until its own
 * deadline; this is fastest, because the waiting thread then does the library's work. `ended` may be null.
 *
 * With `GRADWIRE_CODE_NOT_DONE` the operation continues, and may be waited for again. Every other code is its end:
 * after success the buffers belong to the program again, and a second wait returns `GRADWIRE_CODE_ALREADY_WAITED`.
 */
GradwireCode gradwire_wait(const GradwireHandle *handle,
                           uint64_t timeout_ms,
                           GradwireEnded *ended);

/**
 * The version of each chunk of the operation, in the tensor's order, and their number in `count`. Only for a tensor
 * from `gradwire_tensor_with_chunk_versions`, after a successful wait; otherwise null and 0. Valid until the handle
 * is freed.
 */
const uint64_t *gradwire_chunk_versions(const GradwireHandle *handle,
                                        uint64_t *count);

/**
 * 1 if the operation has ended, successfully or not, so that a wait returns at once; otherwise 0. 1 for null and
 * after a wait.
 */
int32_t gradwire_is_done(const GradwireHandle *handle);

/**
 * Registers a callback for the end of the operation: see `GradwireOnEnd`. Several callbacks of one operation are
 * called in the order of registration. The handle may be freed before; the context must exist until the call. After a
 * wait this is an error.
 */
GradwireCode gradwire_on_end(const GradwireHandle *handle,
                             GradwireOnEnd callback,
                             void *context);

/**
 * Frees a handle. Null is allowed. The operation continues and keeps its buffers. The target memory of a pull is then
 * not written any more.
 */
void gradwire_handle_free(GradwireHandle *handle);

/**
 * Sends `body_bytes` bytes, at most 1 MiB, with a number as head, to the member with this rank in the group, or with
 * `GRADWIRE_EVERYONE` to all members of a group (constants added). The bytes are copied during the call. Receivers
 * have `timeout_ms` milliseconds; all answers have arrived shortly after that. The scheduler can receive messages if
 * a program runs it.
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
 * Waits until this member has fewer than half of the unanswered messages that it may have, at most `timeout_ms`
 * milliseconds. Call it before `gradwire_messages_send`, except in handlers and callbacks, which must not wait for
 * messages: if members' handlers waited for each other, no message would be answered.
 */
GradwireCode gradwire_messages_wait_for_room(const GradwireMessages *messages,
                                             uint64_t timeout_ms);

/**
 * Registers a handler for messages with this number. Earlier messages have waited for it. The context must exist
 * until the handler is unregistered.
 */
GradwireCode gradwire_messages_register(const GradwireMessages *messages,
                                        uint32_t app,
                                        GradwireOnMessage handler,
                                        void *context);

/**
 * Unregisters a handler, and waits until it has finished its current message, unless a handler or callback for
 * messages makes this call.
 */
GradwireCode gradwire_messages_unregister(const GradwireMessages *messages,
                                          uint32_t app);

/**
 * Waits at the barrier with this name until all members of the group have arrived, at most `timeout_ms` milliseconds
 * (at most a day). The group is the sum of `GradwireGroup` constants and must include this member. The error names
 * the missing members. The scheduler is waited for if a program runs it.
 */
GradwireCode gradwire_messages_barrier(const GradwireMessages *messages,
                                       const char *name,
                                       uint32_t group,
                                       uint64_t timeout_ms);

/**
 * Frees the object. Null is allowed. Handlers stay registered.
 */
void gradwire_messages_free(GradwireMessages *messages);

/**
 * The sender: one `GradwireGroup` constant, and the rank in the group.
 */
GradwireCode gradwire_message_from(const GradwireMessage *message, uint32_t *group, uint32_t *rank);

/**
 * The head of the message. 0 for null.
 */
int32_t gradwire_message_head(const GradwireMessage *message);

/**
 * The body of the message, and its length in `bytes`, which may be null.
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
 * Frees a message. Null is allowed.
 */
void gradwire_message_free(GradwireMessage *message);

/**
 * Fills an update rule (a `GradwireRule`) with its usual constants: the mean of contributions with learning rate
 * 0.01; for the rules sum and assign plain sums.
 */
GradwireCode gradwire_optimizer_default(int32_t rule,
                                        GradwireOptimizer *optimizer);

/**
 * Starts the scheduler in this process, on a separate thread, and returns when it listens at the address in the
 * settings.
 */
GradwireCode gradwire_scheduler_start(const GradwireSettings *settings,
                                      GradwireScheduler **scheduler);

/**
 * The number of workers in the cluster. 0 for null.
 */
uint32_t gradwire_scheduler_workers(const GradwireScheduler *scheduler);

/**
 * The number of servers in the cluster. 0 for null.
 */
uint32_t gradwire_scheduler_servers(const GradwireScheduler *scheduler);

/**
 * Its messages and barriers.
 */
GradwireCode gradwire_scheduler_messages(const GradwireScheduler *scheduler, GradwireMessages **messages);

/**
 * Waits until the job has ended: successfully when all workers have left, otherwise with the reason. It has no
 * deadline, because a job has none. If several threads call it, one of them waits.
 */
GradwireCode gradwire_scheduler_wait(const GradwireScheduler *scheduler);

/**
 * Ends the job in good order, unless it has ended or another thread waits for that, and frees the scheduler. Null is
 * allowed.
 */
void gradwire_scheduler_free(GradwireScheduler *scheduler);

/**
 * Starts a server in this process, on separate threads, and returns when the scheduler has assigned a rank.
 */
GradwireCode gradwire_server_start(const GradwireSettings *settings, GradwireServer **server);

/**
 * As `gradwire_server_start`, with update rules of this program, which workers then name in declarations. All servers
 * of a job must have the same ones. The structures may be freed afterwards.
 */
GradwireCode gradwire_server_start_with(const GradwireSettings *settings,
                                        const GradwireOwnRule *rules,
                                        uint64_t rule_count,
                                        GradwireServer **server);

/**
 * Its rank among servers. `UINT32_MAX` for null.
 */
uint32_t gradwire_server_rank(const GradwireServer *server);

/**
 * The number of workers in the cluster. 0 for null.
 */
uint32_t gradwire_server_workers(const GradwireServer *server);

/**
 * The number of servers in the cluster. 0 for null.
 */
uint32_t gradwire_server_servers(const GradwireServer *server);

/**
 * True if this process has taken the place of a failed server. False for null.
 */
bool gradwire_server_is_recovery(const GradwireServer *server);

/**
 * Its messages and barriers.
 */
GradwireCode gradwire_server_messages(const GradwireServer *server, GradwireMessages **messages);

/**
 * Registers a handler for calls to this number. Earlier calls have waited for it. The context must exist until the
 * handler is unregistered or the server is freed.
 */
GradwireCode gradwire_server_register(const GradwireServer *server,
                                      uint32_t app,
                                      GradwireHandler handler,
                                      void *context);

/**
 * As `gradwire_server_register`, for a handler whose state must outlive this process. If `cluster.replicas` is at least 1, another
 * server keeps a journal of it: the saved state, and the requests since. A process that takes a failed server's place and
 * registers the handler loads that state, handles those requests again, and continues. Workers' calls wait for it, and each counts
 * once. The same requests in the same order must lead to the same state: the handler must not depend on clocks or random numbers.
 * All three functions run on the handler's thread.
 */
GradwireCode gradwire_server_register_with_state(const GradwireServer *server,
                                                 uint32_t app,
                                                 GradwireHandler handler,
                                                 GradwireSave save,
                                                 GradwireLoad load,
                                                 void *context);

/**
 * Appends bytes to a state; for `GradwireSave`, which may call it several times. The bytes are copied during the call. If it
 * fails, the state is not saved, whatever `GradwireSave` returns.
 */
GradwireCode gradwire_state_write(GradwireState *state,
                                  const void *bytes,
                                  uint64_t count);

/**
 * Unregisters a handler, and waits until it has finished its current call, unless the handler itself makes this call.
 * Does nothing if there is no handler.
 */
GradwireCode gradwire_server_unregister(const GradwireServer *server,
                                        uint32_t app);

/**
 * Waits until the job has ended: successfully when all workers have left, otherwise with the reason. It has no
 * deadline, because a job has none; failures and the loss of the scheduler end it. If several threads call it, one of
 * them waits.
 */
GradwireCode gradwire_server_wait(const GradwireServer *server);

/**
 * Leaves the cluster in good order, unless another thread waits for the end, and frees the server. Null is allowed.
 */
void gradwire_server_free(GradwireServer *server);

/**
 * The rank of the calling worker. `UINT32_MAX` for null.
 */
uint32_t gradwire_request_from(const GradwireRequest *request);

/**
 * The request's head, and its length in `bytes`, which may be null.
 */
const void *gradwire_request_head(const GradwireRequest *request, uint64_t *bytes);

/**
 * The request's complete body, and its length in `bytes`, which may be null. A large body is aligned to 64 bytes. As
 * `gradwire_request_part` of all of it.
 */
const void *gradwire_request_body(const GradwireRequest *request,
                                  uint64_t *bytes);

/**
 * `count` bytes of the request's body, from `offset` on. Null if the body is shorter. A long piece that a worker on the same host has
 * sent may lie in the worker's memory, and is not copied; then `is_lent`, which may be null, becomes true. The bytes stay valid until
 * the request is freed, also after the reply. The program may write there, and the worker does not see it. If the program still reads
 * them some milliseconds after the reply, the library copies them in place. From then on only accesses of this process are safe:
 * a forked child, a device, or an asynchronous system call may see what the worker writes next.
 */
const void *gradwire_request_part(const GradwireRequest *request,
                                  uint64_t offset,
                                  uint64_t count,
                                  bool *is_lent);

/**
 * The program uses no lent part of the request's body any more, not even one of `gradwire_request_body`. Other parts stay valid. A
 * program that calls this, or frees the request, right after the reply, or before it, saves the copy.
 */
void gradwire_request_release(const GradwireRequest *request);

/**
 * Answers a request, once, from any thread, with a head of at most 512 bytes and a body of pieces. A body of one long
 * piece with a `release` is sent in place; everything else is copied during the call.
 */
GradwireCode gradwire_request_reply(const GradwireRequest *request,
                                    const void *head,
                                    uint64_t head_bytes,
                                    const GradwirePiece *pieces,
                                    uint64_t piece_count);

/**
 * Frees a request. Null is allowed.
 */
void gradwire_request_free(GradwireRequest *request);

/**
 * New settings: from the environment and a settings file, if there is one.
 */
GradwireCode gradwire_settings_new(GradwireSettings **settings);

/**
 * Sets one setting by its dotted name, such as `scheduler.port`, to a value as in a settings file, without quotes.
 * `gradwire config` lists all settings. Invalid names and values are reported when something is started with them.
 */
GradwireCode gradwire_settings_set(const GradwireSettings *settings,
                                   const char *name,
                                   const char *value);

/**
 * Names the settings file, which must exist. Without this call the default locations are searched.
 */
GradwireCode gradwire_settings_file(const GradwireSettings *settings, const char *path);

/**
 * Adds an environment variable, such as `DMLC_PS_ROOT_URI`, for these settings only. It overrides the process's own
 * variable.
 */
GradwireCode gradwire_settings_variable(const GradwireSettings *settings,
                                        const char *name,
                                        const char *value);

/**
 * Ignores the process's environment: only the file and values set here count.
 */
GradwireCode gradwire_settings_without_environment(const GradwireSettings *settings);

/**
 * Enables logging to stderr according to `log.filter` and `log.json`, from the first start with these settings on.
 * Without it the library logs nothing. Logging is configured once per process, by the first settings that enable it.
 */
GradwireCode gradwire_settings_log(const GradwireSettings *settings);

/**
 * Frees settings. Null is allowed. Clients and roles that were started with them continue.
 */
void gradwire_settings_free(GradwireSettings *settings);

/**
 * Declares a table on all servers. A repeated declaration has no effect; a different declaration of a known key is
 * refused. Waits for the servers, at most `deadlines.operation_ms`.
 */
GradwireCode gradwire_declare_table(const GradwireClient *client,
                                    const GradwireTableSpec *spec,
                                    GradwireTable **table);

/**
 * Pushes values to rows: `count` ids, and `width` floats for each of them, in the same order. The memory is copied
 * during the call. Values of repeated ids are summed first. This worker's later pulls include the push.
 */
GradwireCode gradwire_push_rows(const GradwireClient *client,
                                const GradwireTable *table,
                                const uint64_t *ids,
                                uint64_t count,
                                const float *values,
                                uint64_t value_count,
                                GradwireRowsHandle **handle);

/**
 * As `gradwire_push_rows`, in a step of the trainer, a number that only grows. If a step is repeated after
 * `gradwire_resume`, what servers already have of it counts once, provided the same rows are pushed in the same
 * order. A step before the last one is an error, and nothing is pushed. A process that replaces one that has left
 * must begin after that one's last step; otherwise its pushes are not applied.
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
 * Reads rows into `out`: `width` floats for each of the `count` ids, in the same order. Waits for them, at most
 * `deadlines.operation_ms`.
 */
GradwireCode gradwire_pull_rows(const GradwireClient *client,
                                const GradwireTable *table,
                                const uint64_t *ids,
                                uint64_t count,
                                float *out,
                                uint64_t out_count);

/**
 * Waits until a push of rows is complete. A second wait returns `GRADWIRE_CODE_ALREADY_WAITED`.
 */
GradwireCode gradwire_rows_wait(const GradwireRowsHandle *handle);

/**
 * 1 if the push has ended, so that a wait returns at once; otherwise 0. 1 for null and after a wait.
 */
int32_t gradwire_rows_is_done(const GradwireRowsHandle *handle);

/**
 * Frees a push's handle. Null is allowed. The push continues.
 */
void gradwire_rows_free(GradwireRowsHandle *handle);

/**
 * Floats per row. 0 for null.
 */
uint32_t gradwire_table_width(const GradwireTable *table);

/**
 * Frees the object, and not the table. Null is allowed.
 */
void gradwire_table_free(GradwireTable *table);

/**
 * Declares `count` tensors and writes them to `tensors`, in the given order: it needs room for `count` pointers. All
 * workers must declare the same tensors, in any number of calls. A repeated declaration has no effect. A new tensor
 * is all zeros. Waits for the servers, at most `deadlines.operation_ms`. On an error nothing is written.
 */
GradwireCode gradwire_declare(const GradwireClient *client,
                              const GradwireTensorSpec *specs,
                              uint64_t count,
                              GradwireTensor **tensors);

/**
 * The tensor with this key, if this client has declared it.
 */
GradwireCode gradwire_tensor_of(const GradwireClient *client, uint64_t key, GradwireTensor **tensor);

/**
 * Changes a tensor's update rule, from this worker's next contribution on. One worker's call is enough. `round`
 * receives the first round of the new rule; it may be null.
 */
GradwireCode gradwire_change_rule(const GradwireClient *client,
                                  const GradwireTensor *tensor,
                                  const GradwireOptimizer *optimizer,
                                  uint64_t *round);

/**
 * Where training is. `round` receives the last round of these `count` tensors that all workers have finished; 0 in a
 * job that has just begun. Pass all tensors that the program contributes to. Call it once, after they are declared
 * and before anything is pushed. This worker's next contribution is to the round after `round`, and its first pull
 * returns the weights of `round`. A restarted program continues in this way if rounds wait for it
 * (`cluster.worker_loss = "wait"`), and so does a program that begins from a checkpoint. If `round` is 0, set initial
 * values. What a codec had left over in the failed process is lost.
 */
GradwireCode gradwire_resume(const GradwireClient *client,
                             const GradwireTensor *const *tensors,
                             uint64_t count,
                             uint64_t *round);

/**
 * Has servers write a checkpoint of the round that this worker has finished, for these `count` tensors; pass all
 * tensors that the program contributes to. Returns when the checkpoint is complete, after `timeout_ms` at the latest.
 * `name` receives the value of `checkpoint.restore` that continues from it, with a terminating nul, in at most
 * `name_bytes` bytes; 256 are enough, and null with 0 omits the name. Call it between rounds: after the wait for a
 * round's operations, and before anything is pushed to the next one. One worker is enough. Training stands still
 * meanwhile.
 */
GradwireCode gradwire_checkpoint(const GradwireClient *client,
                                 const GradwireTensor *const *tensors,
                                 uint64_t count,
                                 uint64_t timeout_ms,
                                 char *name,
                                 uint64_t name_bytes);

/**
 * The size in bytes of a contribution, and of a pull. 0 for null.
 */
uint64_t gradwire_tensor_bytes(const GradwireTensor *tensor);

/**
 * Bytes of a contribution as it is sent; with a codec fewer than the tensor's. 0 for null.
 */
uint64_t gradwire_tensor_sent_bytes(const GradwireTensor *tensor);

/**
 * The current placement of its contributions: "slot", "static", "rendezvous-read" or "rendezvous-write". It is chosen
 * when the tensor is declared and again after the first round, or by the setting `transport.placement`. Never freed;
 * null for null.
 */
const char *gradwire_tensor_placement(const GradwireTensor *tensor);

/**
 * The same tensor, with operations that also return the version of each chunk: see `gradwire_chunk_versions`. A
 * separate object, to be freed separately.
 */
GradwireCode gradwire_tensor_with_chunk_versions(const GradwireTensor *tensor,
                                                 GradwireTensor **with_versions);

/**
 * Its key. 0 for null.
 */
uint64_t gradwire_tensor_key(const GradwireTensor *tensor);

/**
 * Frees the object, and not the tensor. Null is allowed.
 */
void gradwire_tensor_free(GradwireTensor *tensor);

/**
 * Contributes a gradient of `data_bytes` bytes to the tensor's next round. The memory is copied during the call;
 * after it the program may use it again. The operation ends when the round is published: in mode sync when all
 * workers have contributed. Operations with higher `priority` go first; operations of one tensor are never reordered.
 */
GradwireCode gradwire_push(const GradwireClient *client,
                           const GradwireTensor *tensor,
                           const void *data,
                           uint64_t data_bytes,
                           int32_t priority,
                           GradwireHandle **handle);

/**
 * As `gradwire_push`, from registered memory. The memory is sent in place, and belongs to the operation until a wait
 * completes it successfully.
 */
GradwireCode gradwire_push_buffer(const GradwireClient *client,
                                  const GradwireTensor *tensor,
                                  const GradwireBuffer *gradient,
                                  int32_t priority,
                                  GradwireHandle **handle);

/**
 * Reads the weights of the last round this worker contributed to, or a later one, into `into`: as many bytes as the
 * tensor has, aligned to the element size. The wait writes them, and nothing else does, so the memory must exist
 * until then. A handle that is freed without a wait writes nothing. `priority` is as for a push.
 */
GradwireCode gradwire_pull(const GradwireClient *client,
                           const GradwireTensor *tensor,
                           void *into,
                           uint64_t into_bytes,
                           int32_t priority,
                           GradwireHandle **handle);

/**
 * As `gradwire_pull`, into registered memory. The servers write it in place. It belongs to the operation until a wait
 * completes it successfully.
 */
GradwireCode gradwire_pull_buffer(const GradwireClient *client,
                                  const GradwireTensor *tensor,
                                  const GradwireBuffer *weights,
                                  int32_t priority,
                                  GradwireHandle **handle);

/**
 * Contributes a gradient and reads the weights of that round: `gradwire_push` and `gradwire_pull` in one, with their
 * rules for memory. `data` and `into` may be the same. Operations with higher `priority` go first; operations of one
 * tensor are never reordered. Not for dynamic tensors.
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
 * As `gradwire_push_pull`, with registered memory in two different buffers.
 */
GradwireCode gradwire_push_pull_buffers(const GradwireClient *client,
                                        const GradwireTensor *tensor,
                                        const GradwireBuffer *gradient,
                                        const GradwireBuffer *weights,
                                        int32_t priority,
                                        GradwireHandle **handle);

/**
 * Sets the tensor's initial value, before its first round. Rank 0's value counts; the operation of every rank ends
 * when it is set. The memory is copied during the call.
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

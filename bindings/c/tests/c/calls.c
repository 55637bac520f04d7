/* A whole cluster in one process, all of it through the C library: scheduler, server with handlers, worker. Calls of many
 * sizes are answered with what was asked; owners of lent memory are told once; what has no handler, or is dropped, is an
 * error at the worker. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

enum { ECHO = 7, DROPS = 8, NOBODY = 9, LATE = 10, BIG = 3 << 20 };

static atomic_int released;
static _Atomic(GradwireRequest *) kept;

static void release(void *context) {
    atomic_fetch_add(&released, 1);
    free(context);
}

/* Answers with the head it got and a lent copy of the body, byte by byte one higher. */
static void echo(void *context, GradwireRequest *request) {
    uint64_t head_bytes = 0, body_bytes = 0;
    const void *head = gradwire_request_head(request, &head_bytes);
    const unsigned char *body = gradwire_request_body(request, &body_bytes);
    unsigned char *copy = malloc(body_bytes + 1);
    GradwirePiece piece = {copy, body_bytes, release, copy};
    REQUIRE(context == &released && gradwire_request_from(request) == 0);
    for (uint64_t i = 0; i < body_bytes; i++) copy[i] = (unsigned char)(body[i] + 1);
    WORKS(gradwire_request_reply(request, head, head_bytes, &piece, 1));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "already been answered", gradwire_request_reply(request, NULL, 0, NULL, 0));
    gradwire_request_free(request);
}

static void drops(void *context, GradwireRequest *request) {
    (void)context;
    gradwire_request_free(request);
}

static bool saves(void *context, GradwireState *state) {
    (void)context;
    return gradwire_state_write(state, "nothing", 7) == GRADWIRE_CODE_OK;
}

static bool loads(void *context, const void *bytes, uint64_t count) {
    (void)context;
    return count == 7 && memcmp(bytes, "nothing", 7) == 0;
}

/* A handler with a state, which nobody keeps in a job with one server, serves as any other one. */
static void with_state(const GradwireServer *server) {
    REQUIRE(!gradwire_server_is_recovery(server) && !gradwire_server_is_recovery(NULL));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "state is null", gradwire_state_write(NULL, "x", 1));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "server is null",
          gradwire_server_register_with_state(NULL, DROPS, drops, saves, loads, NULL));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "handler is null",
          gradwire_server_register_with_state(server, DROPS, NULL, saves, loads, NULL));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "save is null",
          gradwire_server_register_with_state(server, DROPS, drops, NULL, loads, NULL));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "load is null",
          gradwire_server_register_with_state(server, DROPS, drops, saves, NULL, NULL));
    WORKS(gradwire_server_register_with_state(server, DROPS, drops, saves, loads, NULL));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "already registered",
          gradwire_server_register_with_state(server, DROPS, drops, saves, loads, NULL));
}

static void keeps(void *context, GradwireRequest *request) {
    (void)context;
    atomic_store(&kept, request);
}

static void round_trip(const GradwireClient *client, uint64_t bytes) {
    unsigned char *data = malloc(bytes + 1), small[3] = {1, 2, 3};
    GradwirePiece pieces[2] = {{data, bytes, release, data}, {small, sizeof(small), NULL, NULL}};
    GradwireCall call;
    GradwireCallHandle *handle = NULL;
    GradwireReply *reply = NULL;
    uint64_t count = 0;
    const int before = atomic_load(&released);
    memset(&call, 0, sizeof(call));
    for (uint64_t i = 0; i < bytes; i++) data[i] = (unsigned char)(i * 7);
    call.app = ECHO;
    call.head = "head";
    call.head_bytes = 4;
    call.pieces = pieces;
    call.piece_count = 2;
    WORKS(gradwire_call(client, &call, &handle));
    /* What was not lent is ours again. */
    memset(small, 0, sizeof(small));
    WORKS(gradwire_call_wait(handle, &reply));
    FAILS(GRADWIRE_CODE_ALREADY_WAITED, "once", gradwire_call_wait(handle, &reply));
    REQUIRE(gradwire_call_is_done(handle) == 1);
    gradwire_call_free(handle);
    REQUIRE(memcmp(gradwire_reply_head(reply, &count), "head", 4) == 0 && count == 4);
    const unsigned char *body = gradwire_reply_body(reply, &count);
    REQUIRE(count == bytes + 3);
    for (uint64_t i = 0; i < bytes; i++) REQUIRE(body[i] == (unsigned char)(i * 7 + 1));
    REQUIRE(body[bytes] == 2 && body[bytes + 2] == 4);
    gradwire_reply_free(reply);
    /* The request's owner at the latest now; the reply's when the server has heard that it arrived. */
    REQUIRE(atomic_load(&released) > before);
}

struct told {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int count;
    GradwireReply *reply;
};

static void on_reply(void *context, GradwireCode code, GradwireReply *reply) {
    struct told *told = context;
    REQUIRE(code == GRADWIRE_CODE_OK);
    pthread_mutex_lock(&told->mutex);
    told->count++;
    told->reply = reply;
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->mutex);
}

static int is_told(void *context) {
    struct told *told = context;
    pthread_mutex_lock(&told->mutex);
    const int count = told->count;
    pthread_mutex_unlock(&told->mutex);
    return count;
}

static void sleeps(void *context) {
    struct told *told = context;
    pthread_mutex_lock(&told->mutex);
    while (told->count == 0) pthread_cond_wait(&told->changed, &told->mutex);
    pthread_mutex_unlock(&told->mutex);
}

static void gives_back(void *context) {
    (void)context;
    atomic_fetch_add(&released, 1);
}

/* A reply to what lies in memory of the client lands in memory of the client, if there is room for it. */
static void in_place(const GradwireClient *client, uint64_t room, int lands) {
    const uint64_t bytes = 300000;
    GradwireBuffer *from = gradwire_buffer_allocate_kept(client, bytes);
    GradwireBuffer *into = gradwire_buffer_allocate_kept(client, room);
    struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, NULL};
    GradwireCall call;
    uint64_t count = 0;
    const int before = atomic_load(&released);
    REQUIRE(from != NULL && into != NULL);
    unsigned char *data = gradwire_buffer_data(from), *place = gradwire_buffer_data(into);
    for (uint64_t i = 0; i < bytes; i++) data[i] = (unsigned char)(i * 3);
    GradwirePiece piece = {data, bytes, gives_back, NULL};
    GradwirePiece landing = {place, room, gives_back, NULL};
    memset(&call, 0, sizeof(call));
    call.app = ECHO;
    call.pieces = &piece;
    call.piece_count = 1;
    call.reply_bytes = bytes;
    call.reply_into = landing;
    WORKS(gradwire_call_then(client, &call, on_reply, &told));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "sleep", gradwire_client_wait(client, is_told, NULL, &told));
    WORKS(gradwire_client_wait(client, is_told, sleeps, &told));
    const unsigned char *body = gradwire_reply_body(told.reply, &count);
    REQUIRE(count == bytes && (body == place) == lands);
    for (uint64_t i = 0; i < bytes; i++) REQUIRE(body[i] == (unsigned char)(i * 3 + 1));
    gradwire_reply_free(told.reply);
    REQUIRE(atomic_load(&released) >= before + 2);
    gradwire_buffer_free(from);
    gradwire_buffer_free(into);
}

static GradwireCall no_server(GradwireCall call) {
    call.server = 5;
    return call;
}

static GradwireCall long_head(GradwireCall call) {
    call.head = call.pieces[1].data;
    call.head_bytes = 600;
    return call;
}

static GradwireCall as_it_is(GradwireCall call) { return call; }

static void errors(const GradwireClient *client) {
    GradwireCall call;
    GradwireCallHandle *handle = NULL;
    GradwireReply *reply = NULL;
    char head[600] = "";
    memset(&call, 0, sizeof(call));
    call.app = DROPS;
    WORKS(gradwire_call(client, &call, &handle));
    FAILS(GRADWIRE_CODE_NO_REPLY, "handler 8 at server 0", gradwire_call_wait(handle, &reply));
    gradwire_call_free(handle);
    call.app = NOBODY;
    call.timeout_ms = 300;
    WORKS(gradwire_call(client, &call, &handle));
    FAILS(GRADWIRE_CODE_NO_REPLY, "no such handler", gradwire_call_wait(handle, &reply));
    gradwire_call_free(handle);
    call.server = 5;
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "the job has 1 servers", gradwire_call(client, &call, &handle));
    call.server = 0;
    call.head = head;
    call.head_bytes = sizeof(head);
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "at most 512", gradwire_call(client, &call, &handle));
    call.head = NULL;
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "head is null", gradwire_call(client, &call, &handle));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "call is null", gradwire_call(client, NULL, &handle));
    /* Each owner of a piece is told exactly once, whatever is wrong with the call. */
    GradwireCall (*const wrong[])(GradwireCall) = {no_server, long_head, as_it_is};
    for (int i = 0; i < 3; i++) {
        for (int way = 0; way < 4; way++) {
            GradwirePiece pieces[2] = {{malloc(9), 9, release, NULL}, {malloc(0x9000), 0x9000, release, NULL}};
            const int before = atomic_load(&released);
            memset(&call, 0, sizeof(call));
            for (int piece = 0; piece < 2; piece++) pieces[piece].context = (void *)pieces[piece].data;
            call.app = ECHO;
            call.pieces = pieces;
            call.piece_count = 2;
            call = wrong[i](call);
            GradwireCode code = way == 0   ? gradwire_call(client, &call, NULL)
                                : way == 1 ? gradwire_call_then(client, &call, NULL, NULL)
                                : way == 2 ? gradwire_call(NULL, &call, &handle)
                                           : gradwire_call(i < 2 ? client : NULL, &call, &handle);
            REQUIRE(code != GRADWIRE_CODE_OK && atomic_load(&released) == before + 2);
        }
    }
}

struct heard {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t count;
    uint32_t of;
    GradwireCode code;
};

/* Answers with the number's negative and what came. */
static void on_message(void *context, GradwireMessage *message) {
    uint32_t group = 0, rank = 9;
    uint64_t count = 0;
    const void *body = gradwire_message_body(message, &count);
    REQUIRE(context == NULL && count == 5 && memcmp(body, "hello", 5) == 0);
    WORKS(gradwire_message_from(message, &group, &rank));
    REQUIRE(group == GRADWIRE_GROUP_WORKERS && rank == 0);
    WORKS(gradwire_message_reply(message, -gradwire_message_head(message), body, count));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "already been answered", gradwire_message_reply(message, 0, NULL, 0));
    gradwire_message_free(message);
}

static void on_answer(void *context, const GradwireAnswer *answer) {
    struct heard *heard = context;
    pthread_mutex_lock(&heard->mutex);
    heard->code = answer->code;
    heard->of = answer->of;
    heard->count++;
    if (answer->code == GRADWIRE_CODE_OK) {
        REQUIRE(answer->head == -4 && answer->body_bytes == 5 && memcmp(answer->body, "hello", 5) == 0);
    }
    pthread_cond_signal(&heard->changed);
    pthread_mutex_unlock(&heard->mutex);
}

static GradwireCode sent(const GradwireMessages *messages, uint32_t group, uint32_t rank, uint64_t bytes) {
    static char body[(1 << 20) + 1] = "hello";
    struct heard heard = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 1, GRADWIRE_CODE_INTERNAL};
    WORKS(gradwire_messages_send(messages, group, rank, ECHO, 4, body, bytes, 60000, on_answer, &heard));
    pthread_mutex_lock(&heard.mutex);
    while (heard.count < heard.of) pthread_cond_wait(&heard.changed, &heard.mutex);
    pthread_mutex_unlock(&heard.mutex);
    return heard.code;
}

static void *meets(void *messages) {
    WORKS(gradwire_messages_barrier(messages, "all", 7, 60000));
    return NULL;
}

/* Messages to the scheduler and the servers, and a barrier of all three. */
static void messages(const GradwireScheduler *scheduler, const GradwireServer *server, const GradwireClient *client) {
    GradwireMessages *of[3] = {NULL, NULL, NULL};
    pthread_t threads[3];
    WORKS(gradwire_scheduler_messages(scheduler, &of[0]));
    WORKS(gradwire_server_messages(server, &of[1]));
    WORKS(gradwire_client_messages(client, &of[2]));
    for (int i = 0; i < 2; i++) WORKS(gradwire_messages_register(of[i], ECHO, on_message, NULL));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "already registered", gradwire_messages_register(of[0], ECHO, on_message, NULL));
    REQUIRE(sent(of[2], GRADWIRE_GROUP_SCHEDULER | GRADWIRE_GROUP_SERVERS, GRADWIRE_EVERYONE, 5) == GRADWIRE_CODE_OK);
    REQUIRE(sent(of[2], GRADWIRE_GROUP_SERVERS, 0, 5) == GRADWIRE_CODE_OK);
    REQUIRE(sent(of[2], GRADWIRE_GROUP_SERVERS, 3, 5) == GRADWIRE_CODE_BAD_ARGUMENT);
    REQUIRE(sent(of[2], GRADWIRE_GROUP_SERVERS, 0, (1 << 20) + 1) == GRADWIRE_CODE_BAD_ARGUMENT);
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "a rank needs exactly one group",
          gradwire_messages_send(of[2], 3, 0, ECHO, 4, NULL, 0, 1, on_answer, NULL));
    FAILS(GRADWIRE_CODE_DEADLINE, "missing: scheduler, server 0", gradwire_messages_barrier(of[2], "alone", 7, 50));
    for (int i = 0; i < 3; i++) REQUIRE(pthread_create(&threads[i], NULL, meets, of[i]) == 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    WORKS(gradwire_messages_unregister(of[0], ECHO));
    for (int i = 0; i < 3; i++) gradwire_messages_free(of[i]);
}

int main(int count, char **arguments) {
    GradwireScheduler *scheduler = NULL, *second = NULL;
    GradwireServer *server = NULL;
    GradwireClient *client = NULL;
    GradwireCall call;
    struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, NULL};
    REQUIRE(count == 2);
    GradwireSettings *settings = settings_of(arguments[1]);
    WORKS(gradwire_scheduler_start(settings, &scheduler));
    FAILS(GRADWIRE_CODE_UNREACHABLE, "cannot bind", gradwire_scheduler_start(settings, &second));
    WORKS(gradwire_server_start(settings, &server));
    REQUIRE(gradwire_server_rank(server) == 0);
    WORKS(gradwire_client_connect(settings, &client));
    gradwire_settings_free(settings);
    WORKS(gradwire_server_register(server, ECHO, echo, &released));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "already registered", gradwire_server_register(server, ECHO, echo, NULL));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "handler", gradwire_server_register(server, DROPS, NULL, NULL));
    with_state(server);
    WORKS(gradwire_server_register(server, LATE, keeps, NULL));
    const uint64_t sizes[] = {0, 1, 4000, 5000, 40000, BIG};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) round_trip(client, sizes[i]);
    in_place(client, 300000, 1);
    in_place(client, 299999, 0);
    REQUIRE(gradwire_buffer_allocate_kept(client, UINT64_MAX / 2) == NULL);
    errors(client);
    messages(scheduler, server, client);
    /* Answered later, from another thread than the handler's. */
    memset(&call, 0, sizeof(call));
    call.app = LATE;
    WORKS(gradwire_call_then(client, &call, on_reply, &told));
    while (atomic_load(&kept) == NULL) {
    }
    WORKS(gradwire_request_reply(atomic_load(&kept), "late", 4, NULL, 0));
    gradwire_request_free(atomic_load(&kept));
    pthread_mutex_lock(&told.mutex);
    while (told.count == 0) pthread_cond_wait(&told.changed, &told.mutex);
    pthread_mutex_unlock(&told.mutex);
    REQUIRE(memcmp(gradwire_reply_head(told.reply, NULL), "late", 4) == 0);
    gradwire_reply_free(told.reply);
    WORKS(gradwire_server_unregister(server, LATE));
    WORKS(gradwire_client_close(client));
    WORKS(gradwire_server_wait(server));
    WORKS(gradwire_scheduler_wait(scheduler));
    gradwire_client_free(client);
    gradwire_server_free(server);
    gradwire_scheduler_free(scheduler);
    puts("everything holds");
    return 0;
}

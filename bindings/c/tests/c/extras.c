/* What tensors can do beside plain rounds, and tables: priorities, the form of a rule, codecs with feedback and momentum, chunk
 * versions, backup workers and late chunks, placements, rows, checkpoints. Two workers in one process, each on a thread of its own. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>

#include "check.h"

enum { COUNT = 200000, WIDTH = 4 };

static pthread_barrier_t both;

static GradwireTensorSpec spec_of(uint64_t key, uint64_t elements, int rule) {
    GradwireTensorSpec spec;
    memset(&spec, 0, sizeof(spec));
    spec.key = key;
    spec.elements = elements;
    spec.dtype = GRADWIRE_DTYPE_F32;
    WORKS(gradwire_optimizer_default(rule, &spec.optimizer));
    return spec;
}

static GradwireTensor *declared(const GradwireClient *client, const GradwireTensorSpec *spec) {
    GradwireTensor *tensor = NULL;
    WORKS(gradwire_declare(client, spec, 1, &tensor));
    return tensor;
}

static GradwireEnded waited(GradwireHandle *handle) {
    GradwireEnded ended;
    WORKS(gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, &ended));
    gradwire_handle_free(handle);
    return ended;
}

/* Twice 0.4 with a threshold of 1 is nothing, without feedback for ever; with it the third round sends it. */
static float after_three(const GradwireClient *client, uint64_t key, int feedback) {
    GradwireTensorSpec spec = spec_of(key, 64, GRADWIRE_RULE_SUM);
    float values[64], out[64];
    GradwireHandle *handle = NULL;
    spec.codec = "twobit:1.0";
    spec.feedback = feedback;
    GradwireTensor *tensor = declared(client, &spec);
    REQUIRE(gradwire_tensor_sent_bytes(tensor) < gradwire_tensor_bytes(tensor));
    for (int i = 0; i < 64; i++) values[i] = 0.4f;
    for (int round = 0; round < 3; round++) {
        WORKS(gradwire_push_pull(client, tensor, values, sizeof(values), out, sizeof(out), 0, &handle));
        waited(handle);
    }
    gradwire_tensor_free(tensor);
    return out[0];
}

static void codecs(const GradwireClient *client) {
    GradwireTensorSpec spec = spec_of(12, 4, GRADWIRE_RULE_ASSIGN);
    GradwireTensor *tensor = NULL;
    GradwireHandle *handle = NULL;
    float values[4] = {1, 2, 3, 4}, out[4];
    REQUIRE(after_three(client, 10, 0) == 2.0f && after_three(client, 11, -1) == 0.0f);
    /* f16 leaves nothing out of these; momentum makes 1 + 0.5 of the first, and 1 + 0.5 * 1.5 of the second. */
    spec.codec = "f16";
    spec.momentum = 0.5f;
    tensor = declared(client, &spec);
    for (int round = 0; round < 2; round++) {
        WORKS(gradwire_push_pull(client, tensor, values, sizeof(values), out, sizeof(out), 0, &handle));
        waited(handle);
        for (int i = 0; i < 4; i++) REQUIRE(out[i] == 2 * values[i] * (round ? 1.75f : 1.5f));
    }
    gradwire_tensor_free(tensor);
    spec.momentum = 1.0f;
    FAILS(GRADWIRE_CODE_REFUSED, "momentum", gradwire_declare(client, &spec, 1, &tensor));
    spec.feedback = 2;
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "feedback 2", gradwire_declare(client, &spec, 1, &tensor));
}

/* MXNet's momentum holds steps with the rate they had, so that a smaller rate does not shrink what is on its way. */
static float after_slowing(const GradwireClient *client, uint64_t key, int form) {
    GradwireTensorSpec spec = spec_of(key, 1, GRADWIRE_RULE_SGD);
    float one = 1, out = 0;
    GradwireHandle *handle = NULL;
    spec.optimizer.learning_rate = 1.0f;
    spec.optimizer.constants.sgd.momentum = 0.5f;
    spec.optimizer.form = form;
    GradwireTensor *tensor = declared(client, &spec);
    WORKS(gradwire_push_pull(client, tensor, &one, 4, &out, 4, 0, &handle));
    waited(handle);
    REQUIRE(out == -1.0f);
    spec.optimizer.learning_rate = 0.5f;
    WORKS(gradwire_barrier(client, "slower", GRADWIRE_GROUP_WORKERS));
    if (gradwire_client_rank(client) == 0) WORKS(gradwire_change_rule(client, tensor, &spec.optimizer, NULL));
    WORKS(gradwire_barrier(client, "slowed", GRADWIRE_GROUP_WORKERS));
    WORKS(gradwire_push_pull(client, tensor, &one, 4, &out, 4, 0, &handle));
    waited(handle);
    gradwire_tensor_free(tensor);
    return out;
}

static void versions(const GradwireClient *client) {
    GradwireTensorSpec spec = spec_of(30, COUNT, GRADWIRE_RULE_SUM);
    GradwireTensor *tensor = NULL, *telling = NULL;
    GradwireHandle *handle = NULL;
    GradwireEnded ended;
    uint64_t count = 9;
    float *values = calloc(COUNT, sizeof(float));
    spec.mode = GRADWIRE_MODE_ASYNC;
    tensor = declared(client, &spec);
    WORKS(gradwire_tensor_with_chunk_versions(tensor, &telling));
    WORKS(gradwire_push(client, tensor, values, COUNT * sizeof(float), 0, &handle));
    REQUIRE(waited(handle).version >= 1);
    WORKS(gradwire_barrier(client, "pushed", GRADWIRE_GROUP_WORKERS));
    WORKS(gradwire_pull(client, telling, values, COUNT * sizeof(float), 5, &handle));
    REQUIRE(gradwire_chunk_versions(handle, &count) == NULL && count == 0);
    WORKS(gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, &ended));
    const uint64_t *chunks = gradwire_chunk_versions(handle, &count);
    /* 800,000 bytes in chunks of 256 KiB. */
    REQUIRE(ended.version == 2 && count == 4 && ended.late_chunks == 0);
    for (uint64_t i = 0; i < count; i++) REQUIRE(chunks[i] == 2);
    gradwire_handle_free(handle);
    /* Who does not ask is not told. */
    WORKS(gradwire_pull(client, tensor, values, COUNT * sizeof(float), -5, &handle));
    WORKS(gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, &ended));
    REQUIRE(gradwire_chunk_versions(handle, &count) == NULL && count == 0);
    gradwire_handle_free(handle);
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "tensor", gradwire_tensor_with_chunk_versions(NULL, &telling));
    gradwire_tensor_free(telling);
    gradwire_tensor_free(tensor);
    free(values);
}

/* One worker of two is enough for a round, and what the other says to it is dropped. */
static void late(const GradwireClient *client) {
    GradwireTensorSpec spec = spec_of(40, 10, GRADWIRE_RULE_SUM);
    float values[10] = {1}, out[10];
    GradwireHandle *handle = NULL;
    GradwireEnded ended;
    const int is_first = gradwire_client_rank(client) == 0;
    spec.backup_workers = 1;
    spec.mode = GRADWIRE_MODE_SYNC;
    GradwireTensor *tensor = declared(client, &spec);
    if (!is_first) pthread_barrier_wait(&both);
    WORKS(gradwire_push_pull(client, tensor, values, sizeof(values), out, sizeof(out), 0, &handle));
    ended = waited(handle);
    REQUIRE(ended.version == 1 && ended.late_chunks == (is_first ? 0 : 1) && out[0] == 1.0f);
    if (is_first) pthread_barrier_wait(&both);
    gradwire_tensor_free(tensor);
}

static void rows(const GradwireClient *client) {
    GradwireTableSpec spec;
    GradwireTable *table = NULL, *none = NULL;
    GradwireRowsHandle *handle = NULL;
    const uint64_t ids[3] = {7, UINT64_MAX, 7}, apart[3] = {100, 101, 102};
    const float values[3 * WIDTH] = {1, 2, 3, 4, 10, 20, 30, 40, 1, 1, 1, 1};
    float out[3 * WIDTH], start[WIDTH];
    memset(&spec, 0, sizeof(spec));
    spec.key = 3;
    spec.width = WIDTH;
    spec.initial = GRADWIRE_INITIAL_UNIFORM;
    spec.low = -1;
    spec.high = 1;
    spec.seed = 42;
    WORKS(gradwire_optimizer_default(GRADWIRE_RULE_SUM, &spec.optimizer));
    WORKS(gradwire_declare_table(client, &spec, &table));
    REQUIRE(gradwire_table_width(table) == WIDTH);
    WORKS(gradwire_pull_rows(client, table, ids, 1, start, WIDTH));
    for (int i = 0; i < WIDTH; i++) REQUIRE(start[i] >= -1 && start[i] < 1);
    WORKS(gradwire_barrier(client, "seen", GRADWIRE_GROUP_WORKERS));
    WORKS(gradwire_push_rows(client, table, ids, 3, values, 3 * WIDTH, &handle));
    WORKS(gradwire_rows_wait(handle));
    REQUIRE(gradwire_rows_is_done(handle) == 1);
    FAILS(GRADWIRE_CODE_ALREADY_WAITED, "wait once", gradwire_rows_wait(handle));
    gradwire_rows_free(handle);
    WORKS(gradwire_barrier(client, "pushed rows", GRADWIRE_GROUP_WORKERS));
    WORKS(gradwire_pull_rows(client, table, ids, 3, out, 3 * WIDTH));
    for (int i = 0; i < WIDTH; i++) {
        const float want = start[i] + 2 * (values[i] + 1), off = out[i] - want;
        REQUIRE(off < 1e-5f && off > -1e-5f && out[2 * WIDTH + i] == out[i]);
    }
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "3 rows of 4", gradwire_pull_rows(client, table, ids, 3, out, 11));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "ids", gradwire_pull_rows(client, table, NULL, 3, out, 12));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "handle",
          gradwire_push_rows(client, table, ids, 3, values, 3 * WIDTH, NULL));
    WORKS(gradwire_push_rows_in_step(client, table, 4, apart, 3, values, 3 * WIDTH, &handle));
    WORKS(gradwire_rows_wait(handle));
    gradwire_rows_free(handle);
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "step 3 is smaller than step",
          gradwire_push_rows_in_step(client, table, 3, apart, 3, values, 3 * WIDTH, &handle));
    spec.initial = 9;
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "initial 9", gradwire_declare_table(client, &spec, &none));
    spec.initial = GRADWIRE_INITIAL_CONSTANT;
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "table 3", gradwire_declare_table(client, &spec, &none));
    spec.width = 0;
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "width", gradwire_declare_table(client, &spec, &none));
    REQUIRE(none == NULL);
    gradwire_table_free(table);
}

/* Of the first round, before anything else is contributed to; rank 0 asks. */
static void checkpoints(const GradwireClient *client, int rank) {
    GradwireTensorSpec spec = spec_of(60, 4, GRADWIRE_RULE_SUM);
    GradwireTensor *tensor = declared(client, &spec);
    const GradwireTensor *all[1] = {tensor};
    GradwireHandle *handle = NULL;
    float one[4] = {1, 1, 1, 1}, out[4];
    char name[256], again[256];
    WORKS(gradwire_push_pull(client, tensor, one, sizeof(one), out, sizeof(out), 0, &handle));
    waited(handle);
    if (rank == 0) {
        FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "name_bytes is 8", gradwire_checkpoint(client, all, 1, 20000, name, 8));
        FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "name", gradwire_checkpoint(client, all, 1, 20000, NULL, 256));
        FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "tensors", gradwire_checkpoint(client, NULL, 1, 20000, name, 256));
        WORKS(gradwire_checkpoint(client, all, 1, 20000, name, sizeof(name)));
        REQUIRE(strcmp(name, "job-0/round-000000001") == 0);
        WORKS(gradwire_checkpoint(client, all, 1, 20000, again, sizeof(again)));
        REQUIRE(strcmp(name, again) == 0);
        WORKS(gradwire_checkpoint(client, all, 1, 20000, NULL, 0));
    }
    WORKS(gradwire_barrier(client, "saved", GRADWIRE_GROUP_WORKERS));
    gradwire_tensor_free(tensor);
}

/* A call that starts nothing leaves the buffer with the program. */
static void refusals(const GradwireClient *client, const GradwireClient *other) {
    GradwireTensorSpec spec = spec_of(50, 4, GRADWIRE_RULE_SUM);
    GradwireTensor *tensor = declared(client, &spec);
    GradwireBuffer *foreign = NULL, *own = NULL;
    GradwireHandle *handle = NULL;
    WORKS(gradwire_buffer_allocate(other, 16, &foreign));
    WORKS(gradwire_buffer_allocate(client, 16, &own));
    REQUIRE(gradwire_push_buffer(client, tensor, foreign, 0, &handle) != GRADWIRE_CODE_OK);
    REQUIRE(gradwire_pull_buffer(client, tensor, foreign, 0, &handle) != GRADWIRE_CODE_OK);
    REQUIRE(gradwire_push_pull_buffers(client, tensor, own, foreign, 0, &handle) != GRADWIRE_CODE_OK);
    REQUIRE(gradwire_push_pull_buffers(client, tensor, own, own, 0, &handle) == GRADWIRE_CODE_BUFFER_IN_USE);
    REQUIRE(gradwire_buffer_data(own) != NULL && gradwire_buffer_data(foreign) != NULL && handle == NULL);
    REQUIRE(strcmp(gradwire_tensor_placement(tensor), "slot") == 0 && gradwire_tensor_placement(NULL) == NULL);
    gradwire_buffer_free(own);
    gradwire_buffer_free(foreign);
    gradwire_tensor_free(tensor);
}

static GradwireClient *clients[2];

static void *worker(void *argument) {
    const int rank = *(const int *)argument;
    GradwireSettings *settings = NULL;
    WORKS(gradwire_settings_new(&settings));
    /* As a further customer of a process does: the one that asks for a rank has it. */
    WORKS(gradwire_settings_set(settings, "node.rank", rank ? "4294967295" : "0"));
    WORKS(gradwire_client_connect(settings, &clients[rank]));
    gradwire_settings_free(settings);
    const GradwireClient *client = clients[rank];
    REQUIRE(gradwire_client_rank(client) == (uint32_t)rank);
    checkpoints(client, rank);
    codecs(client);
    WORKS(gradwire_report_metric(client, "loss", 0.5));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "metric", gradwire_report_metric(client, "", 0.5));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "name", gradwire_report_metric(client, NULL, 0.5));
    REQUIRE(after_slowing(client, 20, GRADWIRE_FORM_PUBLISHED) == -1.75f);
    REQUIRE(after_slowing(client, 21, GRADWIRE_FORM_MXNET) == -2.0f);
    versions(client);
    late(client);
    rows(client);
    pthread_barrier_wait(&both);
    if (rank == 0) refusals(client, clients[1]);
    pthread_barrier_wait(&both);
    gradwire_client_free(clients[rank]);
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    int ranks[2] = {0, 1};
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, worker, &ranks[i]) == 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    gradwire_table_free(NULL);
    gradwire_rows_free(NULL);
    puts("everything holds");
    return 0;
}

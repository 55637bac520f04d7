/* Tensors through a real cluster of one server and one worker: right values from plain and registered memory, of several
 * types; handles waited for in time, too early and twice; callbacks; buffers in use; every kind of bad argument. */
#include <pthread.h>

#include "check.h"

enum { COUNT = 100000 };

static GradwireTensor *declared(const GradwireClient *client, uint64_t key, int dtype, uint64_t elements, int rule) {
    GradwireTensorSpec spec;
    GradwireTensor *tensor = NULL;
    memset(&spec, 0, sizeof(spec));
    spec.key = key;
    spec.elements = elements;
    spec.dtype = dtype;
    spec.name = "a test's";
    WORKS(gradwire_optimizer_default(rule, &spec.optimizer));
    WORKS(gradwire_declare(client, &spec, 1, &tensor));
    REQUIRE(gradwire_tensor_key(tensor) == key);
    return tensor;
}

static void done(GradwireHandle *handle, uint64_t version) {
    GradwireEnded ended = {0, 0, 0};
    WORKS(gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, &ended));
    REQUIRE(ended.version == version);
    REQUIRE(gradwire_is_done(handle) == 1);
    FAILS(GRADWIRE_CODE_ALREADY_WAITED, "already been waited for", gradwire_wait(handle, 0, NULL));
    gradwire_handle_free(handle);
}

/* Plain memory: init, push, pull, push_pull. */
static void plain(const GradwireClient *client) {
    GradwireTensor *tensor = declared(client, 1, GRADWIRE_DTYPE_F32, COUNT, GRADWIRE_RULE_SUM);
    const uint64_t bytes = COUNT * sizeof(float);
    float *values = malloc(bytes), *out = malloc(bytes);
    GradwireHandle *handle = NULL;
    REQUIRE(gradwire_tensor_bytes(tensor) == bytes);
    for (int i = 0; i < COUNT; i++) values[i] = (float)i;
    WORKS(gradwire_init(client, tensor, values, bytes, &handle));
    done(handle, 0);
    WORKS(gradwire_push(client, tensor, values, bytes, 0, &handle));
    /* The memory is ours again at once. */
    memset(values, 0xFF, bytes);
    done(handle, 1);
    WORKS(gradwire_pull(client, tensor, out, bytes, 0, &handle));
    done(handle, 1);
    for (int i = 0; i < COUNT; i++) REQUIRE(out[i] == 2.0f * (float)i);
    for (int i = 0; i < COUNT; i++) values[i] = 1.0f;
    WORKS(gradwire_push_pull(client, tensor, values, bytes, values, bytes, 0, &handle));
    done(handle, 2);
    for (int i = 0; i < COUNT; i++) REQUIRE(values[i] == 2.0f * (float)i + 1.0f);
    /* A handle that is freed unwaited writes nothing. */
    WORKS(gradwire_pull(client, tensor, out, bytes, 0, &handle));
    gradwire_handle_free(handle);
    free(values);
    free(out);
    gradwire_tensor_free(tensor);
}

/* Registered memory, and who has it when. */
static void registered(const GradwireClient *client) {
    GradwireTensor *tensor = declared(client, 2, GRADWIRE_DTYPE_F64, COUNT, GRADWIRE_RULE_ASSIGN);
    const uint64_t bytes = COUNT * sizeof(double);
    GradwireBuffer *gradient = NULL, *weights = NULL;
    GradwireHandle *handle = NULL, *second = NULL;
    WORKS(gradwire_buffer_allocate(client, bytes, &gradient));
    WORKS(gradwire_buffer_allocate(client, bytes, &weights));
    REQUIRE(gradwire_buffer_bytes(gradient) == bytes);
    double *in = gradwire_buffer_data(gradient);
    double *out = gradwire_buffer_data(weights);
    REQUIRE((uintptr_t)in % 64 == 0 && out != NULL);
    for (int i = 0; i < COUNT; i++) in[i] = i * 0.5;
    WORKS(gradwire_push_pull_buffers(client, tensor, gradient, weights, 1, &handle));
    REQUIRE(gradwire_buffer_data(gradient) == NULL && gradwire_buffer_data(weights) == NULL);
    FAILS(GRADWIRE_CODE_BUFFER_IN_USE, "gradient belongs to an operation",
          gradwire_push_buffer(client, tensor, gradient, 0, &second));
    done(handle, 1);
    REQUIRE(gradwire_buffer_data(gradient) == in && gradwire_buffer_data(weights) == out);
    for (int i = 0; i < COUNT; i++) REQUIRE(out[i] == i * 0.5);
    WORKS(gradwire_push_buffer(client, tensor, gradient, 0, &handle));
    done(handle, 2);
    memset(out, 0, bytes);
    WORKS(gradwire_pull_buffer(client, tensor, weights, 0, &handle));
    done(handle, 2);
    REQUIRE(out[COUNT - 1] == (COUNT - 1) * 0.5);
    /* The same buffer twice in one operation: refused, and it is still the program's. */
    FAILS(GRADWIRE_CODE_BUFFER_IN_USE, "weights belongs",
          gradwire_push_pull_buffers(client, tensor, gradient, gradient, 0, &handle));
    REQUIRE(gradwire_buffer_data(gradient) == in);
    /* Freed while an operation has it: the operation keeps the memory. */
    WORKS(gradwire_push_buffer(client, tensor, gradient, 0, &handle));
    gradwire_buffer_free(gradient);
    done(handle, 3);
    gradwire_buffer_free(weights);
    gradwire_tensor_free(tensor);
}

static void types(const GradwireClient *client) {
    GradwireTensor *tensor = declared(client, 3, GRADWIRE_DTYPE_I8, 3, GRADWIRE_RULE_SUM);
    int8_t values[3] = {100, -100, 1};
    GradwireHandle *handle = NULL;
    WORKS(gradwire_push(client, tensor, values, 3, 0, &handle));
    done(handle, 1);
    WORKS(gradwire_push(client, tensor, values, 3, 0, &handle));
    FAILS(GRADWIRE_CODE_VALUE, "do not fit i8", gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, NULL));
    gradwire_handle_free(handle);
    gradwire_tensor_free(tensor);
}

struct told {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int count;
    GradwireCode code;
    uint64_t version;
};

static void on_end(void *context, GradwireCode code, uint64_t version) {
    struct told *told = context;
    pthread_mutex_lock(&told->mutex);
    told->count++;
    told->code = code;
    told->version = version;
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->mutex);
}

static void callbacks(const GradwireClient *client) {
    GradwireTensor *tensor = declared(client, 4, GRADWIRE_DTYPE_F32, COUNT, GRADWIRE_RULE_SUM);
    float *values = calloc(COUNT, sizeof(float));
    struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, GRADWIRE_CODE_INTERNAL, 0};
    GradwireHandle *handle = NULL;
    WORKS(gradwire_push(client, tensor, values, COUNT * sizeof(float), 0, &handle));
    WORKS(gradwire_on_end(handle, on_end, &told));
    WORKS(gradwire_on_end(handle, on_end, &told));
    pthread_mutex_lock(&told.mutex);
    while (told.count < 2) pthread_cond_wait(&told.changed, &told.mutex);
    pthread_mutex_unlock(&told.mutex);
    REQUIRE(told.code == GRADWIRE_CODE_OK && told.version == 1);
    /* It has ended: called back at once, and a wait takes no time. */
    WORKS(gradwire_on_end(handle, on_end, &told));
    REQUIRE(told.count == 3);
    WORKS(gradwire_wait(handle, 0, NULL));
    FAILS(GRADWIRE_CODE_ALREADY_WAITED, "once", gradwire_on_end(handle, on_end, &told));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "callback", gradwire_on_end(handle, NULL, NULL));
    gradwire_handle_free(handle);
    free(values);
    gradwire_tensor_free(tensor);
}

static void mistakes(const GradwireClient *client) {
    GradwireTensor *tensor = declared(client, 5, GRADWIRE_DTYPE_F32, 4, GRADWIRE_RULE_SGD), *none = NULL;
    GradwireHandle *handle = NULL;
    GradwireBuffer *small = NULL;
    GradwireTensorSpec spec;
    float four[5] = {0, 0, 0, 0, 0};
    uint64_t round = 0;
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "client is null", gradwire_push(NULL, tensor, four, 16, 0, &handle));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "tensor is null", gradwire_push(client, NULL, four, 16, 0, &handle));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "data is null", gradwire_push(client, tensor, NULL, 16, 0, &handle));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "handle is null", gradwire_push(client, tensor, four, 16, 0, NULL));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "has 16 bytes of f32, but the memory has 20",
          gradwire_push(client, tensor, four, 20, 0, &handle));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "the memory has 12", gradwire_pull(client, tensor, four, 12, 0, &handle));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "multiple of 4 bytes",
          gradwire_pull(client, tensor, (char *)four + 1, 16, 0, &handle));
    WORKS(gradwire_buffer_allocate(client, 8, &small));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "the memory has 8", gradwire_push_buffer(client, tensor, small, 0, &handle));
    REQUIRE(gradwire_buffer_data(small) != NULL);
    gradwire_buffer_free(small);
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "tensor 77 is not declared", gradwire_tensor_of(client, 77, &none));
    memset(&spec, 0, sizeof(spec));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "invalid dtype 0", gradwire_declare(client, &spec, 1, &none));
    spec.dtype = GRADWIRE_DTYPE_F32;
    FAILS(GRADWIRE_CODE_REFUSED, "has no elements", gradwire_declare(client, &spec, 1, &none));
    spec.elements = 1;
    spec.codec = "zip";
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "unknown codec", gradwire_declare(client, &spec, 1, &none));
    spec.codec = "\xFF";
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "UTF-8", gradwire_declare(client, &spec, 1, &none));
    spec.codec = NULL;
    spec.optimizer.rule = 40;
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "invalid rule 40", gradwire_declare(client, &spec, 1, &none));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "specs", gradwire_declare(client, NULL, 1, &none));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "more than the address space", gradwire_declare(client, &spec, UINT64_MAX, &none));
    FAILS(GRADWIRE_CODE_MEMORY, "", gradwire_buffer_allocate(client, UINT64_MAX / 2, &small));
    REQUIRE(none == NULL && small != NULL);
    spec.optimizer.rule = GRADWIRE_RULE_ADAM;
    WORKS(gradwire_optimizer_default(GRADWIRE_RULE_ADAM, &spec.optimizer));
    WORKS(gradwire_change_rule(client, tensor, &spec.optimizer, &round));
    REQUIRE(round == 1);
    spec.optimizer.constants.adam.beta1 = 2;
    FAILS(GRADWIRE_CODE_REFUSED, "beta1", gradwire_change_rule(client, tensor, &spec.optimizer, NULL));
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "group 0", gradwire_barrier(client, "all", 0));
    FAILS(GRADWIRE_CODE_REFUSED, "is not part of the group",
          gradwire_barrier(client, "servers", GRADWIRE_GROUP_SERVERS));
    gradwire_tensor_free(tensor);
}

int main(void) {
    GradwireSettings *settings = NULL;
    GradwireClient *client = NULL;
    GradwireStats stats;
    GradwireTensor *tensor = NULL;
    GradwireHandle *handle = NULL;
    float one = 1;
    WORKS(gradwire_settings_new(&settings));
    WORKS(gradwire_settings_set(settings, "node.rank", "many"));
    FAILS(GRADWIRE_CODE_SETTING, "node.rank", gradwire_client_connect(settings, &client));
    gradwire_settings_free(settings);
    WORKS(gradwire_client_connect(NULL, &client));
    REQUIRE(gradwire_client_rank(client) == 0 && gradwire_client_workers(client) == 1);
    REQUIRE(gradwire_client_servers(client) == 1);
    printf("transport %s\n", gradwire_client_transport(client));
    WORKS(gradwire_barrier(client, "here", GRADWIRE_GROUP_WORKERS));
    plain(client);
    registered(client);
    types(client);
    callbacks(client);
    mistakes(client);
    WORKS(gradwire_client_check(client));
    WORKS(gradwire_client_stats(client, &stats));
    REQUIRE(stats.sent_bytes >= 3 * COUNT * sizeof(float) && stats.done > 0);
    tensor = declared(client, 9, GRADWIRE_DTYPE_F32, 1, GRADWIRE_RULE_SUM);
    WORKS(gradwire_client_close(client));
    FAILS(GRADWIRE_CODE_CLOSED, "closed", gradwire_push(client, tensor, &one, 4, 0, &handle));
    gradwire_tensor_free(tensor);
    gradwire_client_free(client);
    gradwire_client_free(NULL);
    gradwire_tensor_free(NULL);
    gradwire_buffer_free(NULL);
    gradwire_handle_free(NULL);
    gradwire_settings_free(NULL);
    puts("everything holds");
    return 0;
}

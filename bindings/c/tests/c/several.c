/* Several clients in one process, each on a thread of its own: rounds meet, time limits of waits tell, errors stay on their
 * thread, and a worker that fails is told to the other by name. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>

#include "check.h"

enum { COUNT = 1000 };

static pthread_barrier_t both;

static GradwireClient *joined(int rank) {
    GradwireSettings *settings = NULL;
    GradwireClient *client = NULL;
    WORKS(gradwire_settings_new(&settings));
    WORKS(gradwire_settings_set(settings, "node.rank", rank ? "1" : "0"));
    WORKS(gradwire_client_connect(settings, &client));
    gradwire_settings_free(settings);
    REQUIRE((int)gradwire_client_rank(client) == rank);
    return client;
}

static void *worker(void *argument) {
    const int rank = *(const int *)argument;
    GradwireClient *client = joined(rank);
    GradwireTensorSpec spec;
    GradwireTensor *tensor = NULL;
    GradwireHandle *handle = NULL;
    float values[COUNT], out[COUNT];
    GradwireEnded ended;
    uint32_t group = 0, who = 9;
    memset(&spec, 0, sizeof(spec));
    spec.key = 1;
    spec.elements = COUNT;
    spec.dtype = GRADWIRE_DTYPE_F32;
    WORKS(gradwire_optimizer_default(GRADWIRE_RULE_ASSIGN, &spec.optimizer));
    WORKS(gradwire_declare(client, &spec, 1, &tensor));
    for (int i = 0; i < COUNT; i++) values[i] = (float)(rank + 1);
    if (rank == 0) {
        /* Alone it cannot end: the other waits until we know. */
        WORKS(gradwire_push_pull(client, tensor, values, sizeof(values), out, sizeof(out), 0, &handle));
        FAILS(GRADWIRE_CODE_NOT_DONE, "continues", gradwire_wait(handle, 50, NULL));
        REQUIRE(gradwire_is_done(handle) == 0);
        pthread_barrier_wait(&both);
        WORKS(gradwire_wait(handle, 60000, &ended));
    } else {
        pthread_barrier_wait(&both);
        REQUIRE(gradwire_last_error()[0] == 0);
        WORKS(gradwire_push_pull(client, tensor, values, sizeof(values), out, sizeof(out), 0, &handle));
        WORKS(gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, &ended));
    }
    gradwire_handle_free(handle);
    REQUIRE(ended.version == 1 && ended.landed_bytes == sizeof(out));
    for (int i = 0; i < COUNT; i++) REQUIRE(out[i] == 3.0f);
    WORKS(gradwire_barrier(client, "end", GRADWIRE_GROUP_WORKERS));
    if (rank == 1) {
        WORKS(gradwire_client_fail(client, "the test wants it"));
    } else {
        /* Told when the push is started, or when it ends: the death may be known already. */
        handle = NULL;
        if (gradwire_push(client, tensor, values, sizeof(values), 0, &handle) == GRADWIRE_CODE_OK) {
            FAILS(GRADWIRE_CODE_MEMBER_DIED, "the test wants it",
                  gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, NULL));
        }
        gradwire_handle_free(handle);
        FAILS(GRADWIRE_CODE_MEMBER_DIED, "worker 1", gradwire_client_check(client));
        REQUIRE(gradwire_client_dead_member(client, &group, &who) == 1);
        REQUIRE(group == GRADWIRE_GROUP_WORKERS && who == 1);
    }
    gradwire_tensor_free(tensor);
    gradwire_client_free(client);
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    int ranks[2] = {0, 1};
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, worker, &ranks[i]) == 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    puts("everything holds");
    return 0;
}

/* The program of the book's page on C (docs/api.md), as it stands there. */

#include <stdio.h>
#include <stdlib.h>

#include "gradwire.h"

enum { COUNT = 1000 };

static void must(GradwireCode code) {
    if (code == GRADWIRE_CODE_OK) return;
    fprintf(stderr, "%s\n", gradwire_last_error());
    exit(1);
}

int main(void) {
    static float weights[COUNT], gradient[COUNT];
    GradwireTensorSpec spec = {.key = 1, .elements = COUNT, .dtype = GRADWIRE_DTYPE_F32, .name = "w"};
    GradwireClient *client = NULL;
    GradwireTensor *tensor = NULL;
    GradwireHandle *handle = NULL;
    must(gradwire_client_connect(NULL, &client)); /* settings of the environment */
    must(gradwire_optimizer_default(GRADWIRE_RULE_SUM, &spec.optimizer));
    must(gradwire_declare(client, &spec, 1, &tensor));
    must(gradwire_init(client, tensor, weights, sizeof weights, &handle)); /* rank 0's counts */
    must(gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, NULL));
    gradwire_handle_free(handle);
    for (int step = 0; step < 10; step++) {
        for (int i = 0; i < COUNT; i++) gradient[i] = 1;
        must(gradwire_push_pull(client, tensor, gradient, sizeof gradient, weights, sizeof weights, 0, &handle));
        must(gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, NULL));
        gradwire_handle_free(handle);
    }
    printf("worker %u of %u: %g\n", gradwire_client_rank(client), gradwire_client_workers(client), weights[0]);
    gradwire_tensor_free(tensor);
    must(gradwire_client_close(client));
    gradwire_client_free(client);
    return 0;
}

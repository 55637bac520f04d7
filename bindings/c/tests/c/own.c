/* A cluster in one process whose server has an update rule of this program: a clipped step that counts its rounds. */
#include "check.h"

enum { COUNT = 100000 };

static void clipped(void *context, const GradwireOwnStep *step, uint64_t elements, float *weights, const float *gradient,
                    float *first, float *second) {
    const float clip = step->parameters[0], gain = step->parameters[1];
    REQUIRE(context == clipped && first != NULL && second == NULL && step->round >= 1);
    for (uint64_t i = 0; i < elements; i++) {
        const float g = gradient[i] > clip ? clip : gradient[i] < -clip ? -clip : gradient[i];
        first[i] += gain;
        weights[i] -= step->rate * g * first[i];
    }
}

static void rules_that_cannot_be(GradwireSettings *settings, GradwireOwnRule rule) {
    GradwireOwnParameter parameter = {"clip", 9, 1.0f};
    GradwireServer *server = NULL;
    rule.parameters = &parameter;
    rule.parameter_count = 1;
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "GRADWIRE_RANGE_", gradwire_server_start_with(settings, &rule, 1, &server));
    parameter.range = GRADWIRE_RANGE_SHARE;
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "from 0 to below 1", gradwire_server_start_with(settings, &rule, 1, &server));
    parameter.range = GRADWIRE_RANGE_POSITIVE;
    rule.arrays = 3;
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "at most 2", gradwire_server_start_with(settings, &rule, 1, &server));
    rule.arrays = 1;
    rule.name = "no spaces";
    FAILS(GRADWIRE_CODE_BAD_ARGUMENT, "no spaces", gradwire_server_start_with(settings, &rule, 1, &server));
    rule.name = "clipped";
    rule.update = NULL;
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "rules->update", gradwire_server_start_with(settings, &rule, 1, &server));
    FAILS(GRADWIRE_CODE_NULL_ARGUMENT, "rules", gradwire_server_start_with(settings, NULL, 1, &server));
    REQUIRE(server == NULL);
}

static void training(const GradwireClient *client) {
    static float weights[COUNT], gradient[COUNT];
    GradwireParameter given[] = {{"clip", 0.5f}, {"gains", 1.0f}};
    GradwireOwn own = {"clopped", given, 1};
    GradwireTensorSpec spec = {.key = 1, .elements = COUNT, .dtype = GRADWIRE_DTYPE_F32, .name = "w"};
    GradwireTensor *tensor = NULL;
    GradwireHandle *handle = NULL;
    WORKS(gradwire_optimizer_default(GRADWIRE_RULE_SGD, &spec.optimizer));
    REQUIRE(spec.optimizer.own == NULL);
    spec.optimizer.learning_rate = 0.25f;
    spec.optimizer.own = &own;
    FAILS(GRADWIRE_CODE_REFUSED, "clipped", gradwire_declare(client, &spec, 1, &tensor));
    own.name = "clipped";
    own.parameter_count = 2;
    FAILS(GRADWIRE_CODE_REFUSED, "gains", gradwire_declare(client, &spec, 1, &tensor));
    own.parameter_count = 1;
    WORKS(gradwire_declare(client, &spec, 1, &tensor));
    for (int i = 0; i < COUNT; i++) gradient[i] = i % 2 ? 2.0f : -0.25f;
    for (int round = 0; round < 2; round++) {
        WORKS(gradwire_push_pull(client, tensor, gradient, sizeof gradient, weights, sizeof weights, 0, &handle));
        WORKS(gradwire_wait(handle, GRADWIRE_UNTIL_DEADLINE, NULL));
        gradwire_handle_free(handle);
    }
    /* Steps of 0.25 times the clipped gradient, once and then twice. */
    for (int i = 0; i < COUNT; i++) REQUIRE(weights[i] == (i % 2 ? -0.375f : 0.1875f));
    gradwire_tensor_free(tensor);
}

int main(int count, char **arguments) {
    GradwireOwnParameter parameters[] = {{"clip", GRADWIRE_RANGE_POSITIVE, 1.0f}, {"gain", GRADWIRE_RANGE_ANY, 1.0f}};
    GradwireOwnRule rule = {"clipped", parameters, 2, 1, clipped, clipped};
    GradwireScheduler *scheduler = NULL;
    GradwireServer *server = NULL;
    GradwireClient *client = NULL;
    REQUIRE(count == 2);
    GradwireSettings *settings = settings_of(arguments[1]);
    rules_that_cannot_be(settings, rule);
    WORKS(gradwire_scheduler_start(settings, &scheduler));
    WORKS(gradwire_server_start_with(settings, &rule, 1, &server));
    WORKS(gradwire_client_connect(settings, &client));
    gradwire_settings_free(settings);
    training(client);
    WORKS(gradwire_client_close(client));
    WORKS(gradwire_server_wait(server));
    WORKS(gradwire_scheduler_wait(scheduler));
    gradwire_client_free(client);
    gradwire_server_free(server);
    gradwire_scheduler_free(scheduler);
    puts("everything holds");
    return 0;
}

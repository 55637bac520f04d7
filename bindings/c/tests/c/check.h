/* What the tests' C programs share: checks that say where they failed, and end the program. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradwire.h"

#define REQUIRE(condition)                                                                            \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__,          \
                    #condition, gradwire_last_error());                                               \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

/* The call works. */
#define WORKS(call) REQUIRE((call) == GRADWIRE_CODE_OK)

/* The call fails with this code, and the message has these words in it. */
#define FAILS(wanted, words, call)                                                                    \
    do {                                                                                              \
        GradwireCode code_ = (call);                                                                  \
        if (code_ != (wanted) || !strstr(gradwire_last_error(), words)) {                             \
            fprintf(stderr, "%s:%d: %s gave \"%s\", %s; wanted %s with \"%s\"\n", __FILE__, __LINE__, \
                    #call, gradwire_code_name(code_), gradwire_last_error(), #wanted, words);         \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

/* Settings of a cluster of one scheduler, one server and one worker at this port. */
static inline GradwireSettings *settings_of(const char *port) {
    GradwireSettings *settings = NULL;
    WORKS(gradwire_settings_new(&settings));
    WORKS(gradwire_settings_without_environment(settings));
    WORKS(gradwire_settings_variable(settings, "DMLC_PS_ROOT_URI", "127.0.0.1"));
    WORKS(gradwire_settings_variable(settings, "DMLC_PS_ROOT_PORT", port));
    WORKS(gradwire_settings_set(settings, "cluster.workers", "1"));
    WORKS(gradwire_settings_set(settings, "cluster.servers", "1"));
    return settings;
}

#endif

/* test.h - the whole test framework: checks that count, cases that have names.
 *
 * A test file includes this, then the implementation, and ends in
 *     int main(void) { RUN(test_a); RUN(test_b); return finish(); }
 * A test calls CHECK and its relatives any number of times, or SKIP. One test counts once:
 * passed, failed or skipped. The last line of output is "N passed, N failed, N skipped".
 */
#ifndef TEST_H
#define TEST_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_passed, test_failed, test_skipped;  /* tests */
static int check_failed;                            /* checks of the running test */
static const char *skip_reason;

#define CHECK(condition) \
    do { if (!(condition)) { check_failed++; printf("  %s:%d: not so: %s\n", __FILE__, __LINE__, #condition); } } while (0)
#define CHECK_MSG(condition, ...) \
    do { if (!(condition)) { check_failed++; printf("  %s:%d: not so: %s: ", __FILE__, __LINE__, #condition); printf(__VA_ARGS__); printf("\n"); } } while (0)
/* |a - b| <= tolerance * max(1, |b|) */
#define CHECK_NEAR(a, b, tolerance) \
    do { double test_a = (double)(a), test_b = (double)(b), test_m = fabs(test_b) > 1 ? fabs(test_b) : 1; \
         if (!(fabs(test_a - test_b) <= (tolerance) * test_m)) { check_failed++; \
             printf("  %s:%d: %s = %.9g, expected %.9g (tolerance %g)\n", __FILE__, __LINE__, #a, test_a, test_b, (double)(tolerance)); } } while (0)
/* the call failed with this code, and its message holds this text */
#define CHECK_ERROR(err, expected, text_) \
    do { if ((err).code != (expected) || !strstr((err).text, (text_))) { check_failed++; \
             printf("  %s:%d: code %d \"%s\", expected %d with \"%s\"\n", __FILE__, __LINE__, (err).code, (err).text, (int)(expected), (text_)); } } while (0)
#define CHECK_OK(err) CHECK_MSG((err).code == 0, "%s", (err).text)
#define SKIP(reason) do { skip_reason = (reason); return; } while (0)
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

#define RUN(test) test_run(#test, test)
static void test_run(const char *name, void (*test)(void)) {
    const char *only = getenv("ONLY");  /* ONLY=text runs the tests whose names hold it */
    if (only && !strstr(name, only)) return;
    check_failed = 0;
    skip_reason = NULL;
    fflush(stdout);
    test();
    if (check_failed) test_failed++;
    else if (skip_reason) test_skipped++;
    else test_passed++;
    printf("%-7s %s%s%s\n", check_failed ? "FAILED" : skip_reason ? "skipped" : "ok", name, skip_reason ? ": " : "", skip_reason ? skip_reason : "");
}

static int finish(void) {
    printf("%d passed, %d failed, %d skipped\n", test_passed, test_failed, test_skipped);
    return test_failed != 0;
}
#endif

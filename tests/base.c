/* base - text and numbers against the C library's own, JSON, names, checksums, memory, random bits,
 * files, and the barrier.
 */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "test.h"
#include "scratch.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t random_state = 1;
static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * UINT64_C(0x2545f4914f6cdd1d);
}
static int random_below(int n) { return (int)((random_bits() >> 33) % (uint64_t)n); }

/* ---- guard pages: what is put here ends where an unreadable page begins ------------------------------ */

static unsigned char *fence;  /* the first byte that must not be touched */
enum { BEFORE_FENCE = 1 << 16 };

static int fence_begin(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (BEFORE_FENCE + page - 1) / page * page;
    unsigned char *p = (unsigned char *)mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (p == (unsigned char *)MAP_FAILED || mprotect(p + room, page, PROT_NONE)) return -1;
    fence = p + room;
    return 0;
}

static const char *fenced(const void *bytes, size_t n) {
    if (n) memcpy(fence - n, bytes, n);
    return (const char *)fence - n;
}

/* ---- versions and names -------------------------------------------------------------------------------- */

static void test_names(void) {
    static const struct { int code; const char *name; } row[] = {
        { DT_OK, "no error" },                { DT_ERR_ARGUMENT, "bad argument" },       { DT_ERR_SHAPE, "shapes do not fit" },
        { DT_ERR_MEMORY, "out of memory" },   { DT_ERR_IO, "file error" },               { DT_ERR_FORMAT, "malformed file" },
        { DT_ERR_STATE, "wrong moment" },     { DT_ERR_DISABLED, "switched off" },       { DT_ERR_NUMERIC, "not a finite number" },
        { DT_ERR_CALLBACK, "callback failed" }, { DT_ERR_STOPPED, "stopped" },           { DT_ERR_USAGE, "bad command line" },
        { -1, "unknown error" },              { DT_ERR_PEER, "another process is lost" }, { DT_ERR_CONFIG, "bad cluster" }, { 12, "unknown error" }, { 63, "unknown error" },
        { 65, "unknown error" },              { INT_MAX, "unknown error" },              { INT_MIN, "unknown error" },
    };
    char version[64];
    int i;
    for (i = 0; i < COUNT(row); i++) CHECK_MSG(!strcmp(dt_error_name(row[i].code), row[i].name), "%d: \"%s\"", row[i].code, dt_error_name(row[i].code));
    snprintf(version, sizeof version, "%d.%d.%d", DTRAIN_VERSION_MAJOR, DTRAIN_VERSION_MINOR, DTRAIN_VERSION_PATCH);
    CHECK(!strcmp(dt_version(), version));
}

static void test_first_error_stays(void) {
    dt_error err = DT_DEFAULTS, other = DT_DEFAULTS;
    char longer[400];
    CHECK(dt__fail(NULL, DT_ERR_IO, "nobody listens %d", 1) == DT_ERR_IO);
    CHECK(dt__fail(&err, DT_ERR_SHAPE, "first %d", 1) == DT_ERR_SHAPE);
    CHECK(dt__fail(&err, DT_ERR_IO, "second") == DT_ERR_IO);
    CHECK_ERROR(err, DT_ERR_SHAPE, "first 1");
    CHECK(dt__pass(&other, &err) == DT_ERR_SHAPE);
    CHECK_ERROR(other, DT_ERR_SHAPE, "first 1");
    CHECK(dt__pass(NULL, &err) == DT_ERR_SHAPE);
    memset(&other, 0, sizeof other);
    CHECK(dt__pass(&err, &other) == DT_OK);
    CHECK_ERROR(err, DT_ERR_SHAPE, "first 1");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    dt__fail(&other, DT_ERR_IO, "%s", longer);
    CHECK(strlen(other.text) == sizeof other.text - 1);
}

/* ---- dt__format ---------------------------------------------------------------------------------------- */

/* The whole text, then cut to every shorter size: what fits is written and ended, nothing behind it. */
#define FORMAT(...) \
    do { \
        char want_[512], got_[512], cut_[512]; \
        size_t length_, size_; \
        snprintf(want_, sizeof want_, __VA_ARGS__); \
        length_ = dt__format(got_, sizeof got_, __VA_ARGS__); \
        CHECK_MSG(!strcmp(got_, want_) && length_ == strlen(want_), "\"%s\" (%d), snprintf has \"%s\"", got_, (int)length_, want_); \
        for (size_ = 0; size_ <= length_; size_++) { \
            memset(cut_, 'Z', sizeof cut_); \
            if (dt__format(cut_, size_, __VA_ARGS__) != length_ || cut_[size_] != 'Z' || (size_ && (memcmp(cut_, got_, size_ - 1) || cut_[size_ - 1]))) { \
                CHECK_MSG(0, "\"%s\" cut to %d bytes", want_, (int)size_); \
                break; \
            } \
        } \
    } while (0)

static void test_format_whole_numbers(void) {
    static const int ints[] = { 0, 1, -1, 9, 10, -10, 99, 12345, -12345, INT_MAX, INT_MIN };
    static const long longs[] = { 0, -1, 1000000, LONG_MAX, LONG_MIN };
    static const ptrdiff_t differences[] = { 0, 7, -7, PTRDIFF_MAX, PTRDIFF_MIN };
    static const size_t sizes[] = { 0, 1, 4096, SIZE_MAX };
    int i;
    for (i = 0; i < COUNT(ints); i++) {
        int v = ints[i];
        unsigned u = (unsigned)v;
        FORMAT("%d", v); FORMAT("%5d|", v); FORMAT("%05d|", v); FORMAT("%14d|", v); FORMAT("%014d|", v);
        FORMAT("%u", u); FORMAT("%6u|", u); FORMAT("%012u|", u);
        FORMAT("%x", u); FORMAT("%4x|", u); FORMAT("%04x|", u); FORMAT("%02x|", u);
    }
    for (i = 0; i < COUNT(longs); i++) { FORMAT("%ld", longs[i]); FORMAT("%24ld|", longs[i]); FORMAT("%lu", (unsigned long)longs[i]); FORMAT("%lx", (unsigned long)longs[i]); }
    for (i = 0; i < COUNT(differences); i++) { FORMAT("%td", differences[i]); FORMAT("%24td|", differences[i]); FORMAT("%024td|", differences[i]); }
    for (i = 0; i < COUNT(sizes); i++) { FORMAT("%zu", sizes[i]); FORMAT("%24zu|", sizes[i]); FORMAT("%zx", sizes[i]); }
    FORMAT("%d of %u: %ld, %zu, %td", -3, 4u, -5L, (size_t)6, (ptrdiff_t)-7);
}

static void test_format_text(void) {
    static const char unended[3] = { 'a', 'b', 'c' };
    static const char *const texts[] = { "", "a", "weight", "0123456789abcdef0123456789abcdef", "100%s\n" };
    int i, n;
    for (i = 0; i < COUNT(texts); i++) {
        const char *s = texts[i];
        FORMAT("%s", s); FORMAT("<%s>", s); FORMAT("<%10s>", s); FORMAT("<%.3s>", s); FORMAT("<%10.3s>", s); FORMAT("<%.0s>", s);
        for (n = 0; n < 12; n++) FORMAT("<%.*s>", n, s);
    }
    FORMAT("%.*s", 3, unended);
    FORMAT("%c%c%c", 'a', '%', 'z');
    FORMAT("<%3c>", 'x');
    FORMAT("100%%");
    FORMAT("%d%% of %s", 50, "all");
    FORMAT("plain");
    {
        char got[8];
        const char *volatile none = NULL;
        CHECK(dt__format(got, sizeof got, "%s", none) == 6);  /* no crash, as with most snprintf */
        CHECK(dt__format(NULL, 0, "%s %d", "nowhere", 12) == 10);
        CHECK(dt__format(got, sizeof got, "%s", "") == 0 && got[0] == 0);
    }
}

static const double doubles[] = {
    0.0, -0.0, 1, -1, 0.5, 0.1, -0.1, 2.5e-3, 1e-3, 1e-4, 9.9999e-5, 1e-5, 1.5e-5, 9.99999e-6, 1e-6, -1e-6, 1e-10, 3.14159265358979, 2.71828e10, 99999, 99999.4,
    99999.6, 999999, 999999.4, 999999.6, 1e6, 1234567, 123456789, 1234567890, 999999999, 9999999999, 1e9, 1e10, 1e15, 1e16, 1e21, 1e22, 1e23, 1e100, 1e-100, 1e200, 1e-200, 1e300,
    1e-280, 1e-281, 1e-290, 1e-300, 1e-307, DBL_MAX, -DBL_MAX, DBL_MIN, DBL_MIN / 2, 4.9406564584124654e-324, 1e-320, -1.2345e-310, FLT_MAX, FLT_MIN, 1.0 / 3, 2.0 / 3,
    DBL_EPSILON, FLT_EPSILON, 9.5, 99.95, 0.99995, 0.000123456789, 65504, 16777216, 16777217, 4294967296.0, 9007199254740993.0 };

static void test_format_g(void) {
    static const double odd[3] = { NAN, INFINITY, -INFINITY };
    int i, off = 0, wrong = 0, n;
    for (i = 0; i < COUNT(doubles); i++) {
        double v = doubles[i];
        FORMAT("%g", v); FORMAT("%.9g", v); FORMAT("%.6g", v); FORMAT("%.3g", v); FORMAT("%.1g", v); FORMAT("%.12g", v); FORMAT("<%16g>", v); FORMAT("<%20.9g>", v); FORMAT("%.*g", 4, v);
    }
    for (i = 1; i < 3; i++) { FORMAT("%g", odd[i]); FORMAT("<%8g>", odd[i]); FORMAT("%.9g", odd[i]); }
    {
        char got[16];
        dt__format(got, sizeof got, "%g", odd[0]);  /* the C library may give it a sign */
        CHECK(!strcmp(got, "nan"));
    }
    /* Random bits: nearly always the same digits, and never more than one unit of the last place away. */
    for (i = 0; i < 20000; i++) {
        static const int digits[] = { 1, 2, 3, 6, 9, 12 };
        uint64_t bits = random_bits();
        double v, unit;
        char want[64], got[64];
        if (i % 3 == 0) v = (double)(float)ldexp((double)(int64_t)bits, -63 + random_below(40) - 20);
        else memcpy(&v, &bits, sizeof v);
        if (v - v != 0) continue;
        n = digits[random_below(COUNT(digits))];
        snprintf(want, sizeof want, "%.*g", n, v);
        dt__format(got, sizeof got, "%.*g", n, v);
        if (!strcmp(want, got)) continue;
        off++;
        unit = v == 0 ? 0 : pow(10, floor(log10(fabs(v))) + 1 - n);
        if (fabs(strtod(got, NULL) - strtod(want, NULL)) > unit * 1.001 + 4.95e-324) { wrong++; if (wrong < 5) printf("  %%.%dg: \"%s\", snprintf has \"%s\"\n", n, got, want); }
    }
    CHECK_MSG(wrong == 0 && off < 20, "%d differ, %d of them by more than a unit", off, wrong);
}

static void test_format_f(void) {  /* no ties: they go up here, and to the even digit in most C libraries */
    static const double fixed[] = { 0.0, -0.0, 1, -1, 0.26, 0.0004, 0.0006, 0.9994, 0.9996, -0.9996, 9.9996, 12.3456, 99.9999, 1234.5678, -1234.5678, 1e6, 123456789.123, 1e11, 1e-10, 4e-324, 0.05 };
    int i;
    for (i = 0; i < COUNT(fixed); i++) {
        double v = fixed[i];
        FORMAT("%f", v); FORMAT("%.3f", v); FORMAT("%.1f", v); FORMAT("%.0f", v); FORMAT("<%10.3f>", v); FORMAT("<%3.0f>", v); FORMAT("%.*f", 2, v);
    }
    FORMAT("%.3f %.1f", INFINITY, -INFINITY);
    FORMAT("%.16g %.15g %.4g %.3g %.1g", 0.0999999999999999778, 0.0999999999999999778, 999.96, 9.996e22, 0.95);  /* log10 rounds to -1 */
    FORMAT("%.1f %.0f %.0f", 562949953421305.875, 4503599627370497.0, 4503599627370496.5);  /* halves to even differ */
    for (i = 0; i < 5000; i++) {
        double v = ((double)random_below(2000000000) - 1e9) / (1 << random_below(30));
        char want[64], got[64];
        snprintf(want, sizeof want, "%.4f", v);
        dt__format(got, sizeof got, "%.4f", v);
        CHECK_MSG(!strcmp(want, got) || fabs(fabs(v) * 1e4 - floor(fabs(v) * 1e4) - 0.5) < 1e-3, "%s, snprintf has %s", got, want);
        if (check_failed > 5) return;
    }
}

/* ---- dt__parse_double ------------------------------------------------------------------------------------ */

/* The number of doubles between a and b. */
static double ulps(double a, double b) {
    int64_t i, j;
    memcpy(&i, &a, 8);
    memcpy(&j, &b, 8);
    if ((i < 0) != (j < 0)) return a == b ? 0 : 1e9;
    return i > j ? (double)(i - j) : (double)(j - i);
}

static double parse(const char *s, ptrdiff_t *stop) {
    size_t n = strlen(s);
    const char *p = fenced(s, n), *end;
    double v = dt__parse_double(p, p + n, &end);
    *stop = end - p;
    return v;
}

static void test_parse_double_texts(void) {
    static const char *const same[] = {  /* value and stop as strtod has them */
        "0", "-0", "+0", "1", "-1", "+1", "12345", "0.5", ".5", "5.", "-.5", "+.25", "00012", "1e3", "1E3", "1e+3", "1e-3", "1.5e10", "123456789012345678901234567890", "0.1", "3.14159265358979323846264338327950288",
        "1e308", "1.7976931348623157e308", "1e309", "-1e309", "1e400", "1e99999", "1e-99999", "-1e-99999", "1e999999999999", "1e-999999999999", "0e999999999999", "2.2250738585072014e-308", "4.9406564584124654e-324", "1e-320",
        "1e-323", "2e-324", "1e-400", "1e22", "1e23", "9007199254740993", "", " ", "-", "+", ".", "-.", "e5", ".e5", "-e", "x", "1x", "1e", "1e+", "1e-", "1ee5", "1e5e5", "1.2.3", "1..2", "1-2", "1+2", "--1", "+-1", "1,5", "1 2",
        "inf", "-inf", "INF", "+inf", "nan", "NaN", "infx", "nanx", "in", "na", "i", "-n", "1_000", "0.000000000000000000000000000000000000000000001", "1e-5f", "1e5 ", "12 \n" };
    static const char *const zeros[] = { "0.%0400d1e401", "0.%0400d1", "0.%0320d12345", "1%0300d", "1%0320d", "1%0400de-400", "0.%0999d1e1000", "%0999d1.5" };
    ptrdiff_t stop;
    double v;
    int i;
    for (i = 0; i < COUNT(same); i++) {
        char *end;
        double want = strtod(same[i], &end);
        if (same[i][0] == ' ') { want = 0; end = (char *)same[i]; }  /* no white space is skipped here */
        v = parse(same[i], &stop);
        CHECK_MSG(stop == end - same[i], "\"%s\": stops at %d, strtod at %d", same[i], (int)stop, (int)(end - same[i]));
        if (want != want) CHECK_MSG(v != v, "\"%s\": %g", same[i], v);
        else CHECK_MSG(ulps(v, want) <= 1 && !signbit(v) == !signbit(want), "\"%s\": %.17g, strtod has %.17g", same[i], v, want);
    }
    for (i = 0; i < COUNT(zeros); i++) {
        char text[1200];
        size_t n = 0;
        const char *f = zeros[i], *percent = strchr(f, '%');
        int many = atoi(percent + 1);
        memcpy(text, f, (size_t)(percent - f));
        n = (size_t)(percent - f);
        memset(text + n, '0', (size_t)many);
        strcpy(text + n + many, strchr(percent, 'd') + 1);
        v = parse(text, &stop);
        CHECK_MSG(ulps(v, strtod(text, NULL)) <= 1 && stop == (ptrdiff_t)strlen(text), "%s: %.17g, strtod has %.17g", f, v, strtod(text, NULL));
    }
    /* no hexadecimal, no "infinity", and the limit holds in the middle of a number */
    CHECK(parse("0x10", &stop) == 0 && stop == 1);
    v = parse("infinity", &stop);
    CHECK(v > DBL_MAX && stop == 3);
    {
        static const char text[] = "-12.5e+17";
        size_t n;
        for (n = 0; n <= strlen(text); n++) {
            char cut[16], *end;
            double want;
            memcpy(cut, text, n);
            cut[n] = 0;
            want = strtod(cut, &end);
            v = parse(cut, &stop);
            CHECK_MSG(v == want && stop == end - cut, "\"%s\": %g, stops at %d", cut, v, (int)stop);
        }
    }
}

static void test_parse_double_random(void) {
    double worst = 0, worst_small = 0;
    int i, wrong_stop = 0;
    for (i = 0; i < 40000; i++) {
        char text[96];
        ptrdiff_t stop;
        double want, got, u;
        int digits = 1 + random_below(25), point = random_below(digits + 1), n = 0, d, e;
        if (random_below(2)) text[n++] = '-';
        if (i % 2) {  /* as %.17g and %.9g print any double */
            uint64_t bits = random_bits();
            double v;
            memcpy(&v, &bits, sizeof v);
            if (v - v != 0) continue;
            snprintf(text, sizeof text, "%.*g", random_below(2) ? 17 : 9, v);
        } else {
            for (d = 0; d < digits; d++) { if (d == point) text[n++] = '.'; text[n++] = (char)('0' + random_below(10)); }
            e = random_below(3) ? random_below(41) - 20 : random_below(700) - 350;
            if (random_below(4)) n += snprintf(text + n, sizeof text - (size_t)n, "%c%d", random_below(2) ? 'e' : 'E', e);
            text[n] = 0;
        }
        want = strtod(text, NULL);
        got = parse(text, &stop);
        if (stop != (ptrdiff_t)strlen(text)) wrong_stop++;
        u = ulps(got, want);
        if (want != want || got != got) u = 1e9;
        if (fabs(want) > 1e-18 && fabs(want) < 1e22 && u > worst_small) worst_small = u;
        if (u > worst) { worst = u; if (u > 2) printf("  \"%s\": %.17g, strtod has %.17g: %g ulp\n", text, got, want, u); }
    }
    CHECK(wrong_stop == 0);
    CHECK_MSG(worst_small <= 2, "%g ulp between 1e-18 and 1e22", worst_small);
    CHECK_MSG(worst <= 2, "%g ulp", worst);
}

/* what is printed with enough digits comes back */
static void test_number_round_trip(void) {
    int i;
    for (i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)(random_bits() >> 32);
        float v = dt__float_from(bits), back;
        char text[64];
        const char *end;
        size_t n;
        if (v - v != 0) continue;
        n = dt__format(text, sizeof text, "%.9g", (double)v);
        back = (float)dt__parse_double(text, text + n, &end);
        CHECK_MSG(dt__float_bits(back) == bits && end == text + n, "%.9g -> %s -> %.9g", (double)v, text, (double)back);
        if (check_failed > 5) return;
    }
}

/* ---- globs ------------------------------------------------------------------------------------------------ */

static void test_glob(void) {
    static const struct { const char *globs, *name; int is; } row[] = {
        { "", "a", 0 },              { "a", "a", 1 },              { "a", "b", 0 },               { "a", "ab", 0 },                { "ab", "a", 0 },
        { "*", "", 1 },              { "*", "anything.at.all", 1 }, { "?", "a", 1 },              { "?", "", 0 },                  { "?", "ab", 0 },
        { "a*", "a", 1 },            { "a*", "abc", 1 },           { "*c", "abc", 1 },            { "*c", "abcd", 0 },             { "a*c", "ac", 1 },
        { "a*c", "abcbc", 1 },       { "a*c", "abcb", 0 },         { "*.bias", "fc1.bias", 1 },   { "*.bias", "fc1.bias2", 0 },    { "*.bias", ".bias", 1 },
        { "*.bias,*.gamma", "n.gamma", 1 }, { "*.bias, *.gamma", "n.gamma", 1 }, { "*.bias,*.gamma", "n.beta", 0 }, { "a,b,c", "b", 1 }, { "a,b,c", "a,b", 0 },
        { "**", "x", 1 },            { "a**b", "ab", 1 },          { "*a*a*a*", "aaa", 1 },       { "*a*a*a*a*", "aaa", 0 },       { "?*", "", 0 },
        { "?*", "x", 1 },            { "*?", "xy", 1 },            { "conv?.weight", "conv1.weight", 1 }, { "conv?.weight", "conv10.weight", 0 }, { ",a", "a", 1 },
        { "a,", "b", 0 },            { "[a]", "a", 0 },            { "[a]", "[a]", 1 },           { "A", "a", 0 },                 { "*x*y*z*", "1x2y3z4", 1 },
        { "*x*y*z*", "1x2z3y4", 0 }, { "*aab", "aaaaaab", 1 },     { "\303\274", "\303\274", 1 }, { "a b", "a b", 1 },
        { "*a*a*a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 0 } };
    int i;
    for (i = 0; i < COUNT(row); i++) CHECK_MSG(dt__glob(row[i].globs, row[i].name) == row[i].is, "\"%s\" and \"%s\"", row[i].globs, row[i].name);
    CHECK(dt__glob(NULL, "a") == 0);
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

static void test_crc32c(void) {  /* RFC 3720, B.4 */
    unsigned char bytes[32];
    uint32_t whole;
    int i;
    CHECK(dt__crc32c(0, "123456789", 9) == 0xE3069283u);
    CHECK(dt__crc32c(0, "", 0) == 0);
    CHECK(dt__crc32c(0, NULL, 0) == 0);
    memset(bytes, 0, 32);
    CHECK(dt__crc32c(0, bytes, 32) == 0x8A9136AAu);
    memset(bytes, 0xff, 32);
    CHECK(dt__crc32c(0, bytes, 32) == 0x62A8AB43u);
    for (i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    CHECK(dt__crc32c(0, bytes, 32) == 0x46DD794Eu);
    for (i = 0; i < 32; i++) bytes[i] = (unsigned char)(31 - i);
    whole = dt__crc32c(0, bytes, 32);
    CHECK(whole == 0x113FDB5Cu);
    for (i = 0; i <= 32; i++) CHECK(dt__crc32c(dt__crc32c(0, bytes, (size_t)i), bytes + i, (size_t)(32 - i)) == whole);
}

static void test_byte_order(void) {
    static const unsigned char be[4] = { 0x80, 1, 2, 0xff };
    unsigned char le[9];
    int n;
    CHECK(dt__read_be32(be) == 0x800102ffu);
    for (n = 1; n <= 8; n++) {
        uint64_t v = UINT64_C(0xf1e2d3c4b5a69788), kept = n == 8 ? v : v & ((UINT64_C(1) << 8 * n) - 1);
        memset(le, 0x55, sizeof le);
        dt__write_le(le, v, n);
        CHECK(le[0] == 0x88 && le[n - 1] == (unsigned char)(v >> 8 * (n - 1)) && le[n] == 0x55);
        CHECK(dt__read_le(le, n) == kept);
    }
    CHECK(dt__float_bits(1.0f) == 0x3f800000u && dt__float_from(0xc0490fdbu) < -3.14159f);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

static dt__json json_on(const void *text, size_t n) {
    dt__json j;
    j.p = fenced(text, n);
    j.end = j.p + n;
    j.error = NULL;
    return j;
}

/* one value and nothing behind it */
static int json_valid(const void *text, size_t n, const char **error) {
    dt__json j = json_on(text, n);
    int ok = dt__json_skip(&j) && dt__json_peek(&j) == 0 && j.p == j.end;
    *error = j.error ? j.error : "text behind it";
    if (j.p > j.end || (ok && j.error)) { CHECK(!"reader within its text"); return -1; }
    return ok;
}

static void test_json_documents(void) {
    static const char *const good[] = {
        "{}", "[]", "0", "-0", "1", "-1", "10", "1.5", "-0.5", "0.0", "0e0", "1e5", "1E5", "1e+5", "1e-5", "1.25e-10", "1e999", "123456789012345678901234567890", "true", "false", "null", "\"\"", "\"a\"", " 1 ", "\t\r\n[ ]\n",
        "[1]", "[1,2]", "[[],[],{}]", "[ 1 , 2 ]", "{\"a\":1}", "{ \"a\" : 1 , \"b\" : [ true , null ] }", "{\"\":\"\"}", "{\"a\":1,\"a\":2}", "{\"a\":{\"b\":{\"c\":[{}]}}}", "[true,false,null]",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\u0041\\u00e9\\u20AC\"", "\"\\ud83d\\ude00\"", "\"\\uD800\\uDC00\\uDBFF\\uDFFF\"", "\"\\u0000\"", "\"\\uffff\"",
        "\"\303\251\342\202\254\360\237\230\200\"", "\"\177\"", "\"\302\200\337\277\340\240\200\355\237\277\356\200\200\357\277\277\360\220\200\200\364\217\277\277\"", "\"{[]}:,\"" };
    static const char *const bad[] = {
        "", " ", "{", "}", "[", "]", "[1", "[1,", "[,", "[,1]", "[1,]", "[1,,2]", "[1 2]", "[1:2]", "[1}", "{]", "{1:2}", "{a:1}", "{'a':1}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}", "{\"a\":1 \"b\":2}", "{\"a\",1}", "{\"a\":1]",
        "{\"a\":1,,\"b\":2}", "{:1}", "{\"a\"::1}", "[]]", "{}}", "1 2", "[] []", "true false", "tru", "truE", "True", "nul", "nulll", "fals", "NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", "-nan", "undefined", "+1", "-", "--1", "- 1", ".5", "-.5", "5.", "5.e1", "1e", "1e+", "1e-",
        "1E", "01", "-01", "00", "0x10", "1.2.3", "1e5.5", "1e5e5", "1f", "1_0", "'a'", "\"", "\"a", "\"\\\"", "\"\\", "\"\\u", "\"\\u123\"", "\"\\u123", "\"\\u12g4\"", "\"\\x41\"", "\"\\a\"", "\"\\0\"", "\"\\U0041\"", "\"\\'\"", "\"\\u 041\"", "\"\\u+041\"",
        "\"\\ud800\"", "\"\\ud800x\"", "\"\\ud800\\n\"", "\"\\ud800\\u0041\"", "\"\\ud800\\ud800\"", "\"\\udc00\"", "\"\\udfff\\ud800\"", "\"\\ud83d\\u\"", "\"\\ud83d\\ude0\"", "\"\n\"", "\"\t\"", "\"\001\"", "\"\037\"", "\"a\rb\"",
        "\"\200\"", "\"\277\"", "\"\300\200\"", "\"\301\277\"", "\"\302\"", "\"\302x\"", "\"\302", "\"\303\303\"", "\"\340\200\200\"", "\"\340\237\277\"", "\"\342\202\"", "\"\342\202", "\"\342x\254\"", "\"\355\240\200\"", "\"\355\277\277\"",
        "\"\360\200\200\200\"", "\"\360\217\277\277\"", "\"\360\237\230\"", "\"\360\237\230", "\"\364\220\200\200\"", "\"\365\200\200\200\"", "\"\370\210\200\200\200\"", "\"\376\"", "\"\377\"", "\357\273\277{}", "{\"a\\q\":1}", "[1]x", "/**/1", "[1]//", "\v1", "\f1", "\302\2401" };
    const char *error;
    int i;
    for (i = 0; i < COUNT(good); i++) CHECK_MSG(json_valid(good[i], strlen(good[i]), &error) == 1, "%s: %s", good[i], error);
    for (i = 0; i < COUNT(bad); i++) CHECK_MSG(json_valid(bad[i], strlen(bad[i]), &error) == 0, "%s is taken", bad[i]);
    CHECK(json_valid("\"\0\"", 3, &error) == 0);
    CHECK(json_valid("[1\0]", 4, &error) == 0);
    CHECK(json_valid("\0", 1, &error) == 0);
    for (i = 0; i < 256; i++) {  /* every byte alone is a value only if it is a digit */
        unsigned char c = (unsigned char)i, quoted[3] = { '"', 0, '"' };
        quoted[1] = c;
        CHECK_MSG(json_valid(&c, 1, &error) == (c >= '0' && c <= '9'), "byte %d", i);
        CHECK_MSG(json_valid(quoted, 3, &error) == (c >= 0x20 && c < 0x80 && c != '"' && c != '\\'), "byte %d in a string", i);
    }
}

static void test_json_depth(void) {
    static const struct { int depth, good; } row[] = { { 1, 1 }, { 63, 1 }, { 64, 1 }, { 65, 0 }, { 1000, 0 }, { 20000, 0 } };
    static char text[BEFORE_FENCE];
    const char *error;
    int i, d, kind;
    for (i = 0; i < COUNT(row); i++)
        for (kind = 0; kind < 3; kind++) {  /* lists, objects, both by turns */
            size_t n = 0;
            int is_object;
            if (row[i].depth > 1000 && kind) continue;
            for (d = 0; d < row[i].depth; d++) {
                is_object = kind == 1 || (kind == 2 && d % 2);
                if (is_object) { memcpy(text + n, "{\"k\":", 5); n += 5; } else text[n++] = '[';
            }
            text[n++] = '1';
            for (d = row[i].depth - 1; d >= 0; d--) text[n++] = kind == 1 || (kind == 2 && d % 2) ? '}' : ']';
            CHECK_MSG(json_valid(text, n, &error) == row[i].good, "depth %d: %s", row[i].depth, error);
            if (!row[i].good) CHECK_MSG(!strcmp(error, "nested too deep"), "%s", error);
        }
}

static const char document[] =
    "{\"__metadata__\": {\"format\": \"pt\", \"n\\u00f6te\": \"\\ud83d\\ude00 \303\251\"}, \"layer.0.weight\" :{\"dtype\":\"F32\",\"shape\":[64,3,-0.5e-3,1E5],"
    "\"data_offsets\":[0,6912]}, \"list\":[[],{},[true,false,null,\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]]}";

static void test_json_truncated(void) {
    const char *error;
    size_t n, length = strlen(document);
    CHECK_MSG(json_valid(document, length, &error) == 1, "%s", error);
    for (n = 0; n < length; n++) CHECK_MSG(json_valid(document, n, &error) == 0, "cut to %d bytes", (int)n);
}

/* Damage must never crash, hang or read past the end; whether it is found depends on the damage. */
static void test_json_damaged(void) {
    char text[sizeof document];
    const char *error;
    size_t n = strlen(document);
    int i, k, taken = 0;
    for (i = 0; i < 20000; i++) {
        memcpy(text, document, n);
        for (k = random_below(4); k >= 0; k--) text[random_below((int)n)] = random_below(2) ? "\"\\{}[]:,u0189eE.-+ \n"[random_below(20)] : (char)random_below(256);
        taken += json_valid(text, n - (size_t)(random_below(3) ? 0 : random_below((int)n)), &error) == 1;
        if (check_failed) return;
    }
    CHECK_MSG(taken > 100 && taken < 15000, "%d of 20000", taken);
}

static void test_json_strings(void) {
    static const struct { const char *text, *value; int n; } row[] = {
        { "\"\"", "", 0 },
        { " \t\"abc\"", "abc", 3 },
        { "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8 },
        { "\"\\u0000\\u0001\\u007f\"", "\0\1\177", 3 },
        { "\"\\u0080\\u07FF\\u07ff\"", "\302\200\337\277\337\277", 6 },
        { "\"\\u0800\\uffff\\uD7FF\\uE000\"", "\340\240\200\357\277\277\355\237\277\356\200\200", 12 },
        { "\"\\ud800\\udc00\\uDBFF\\uDFFF\"", "\360\220\200\200\364\217\277\277", 8 },
        { "\"\\ud83d\\ude00!\"", "\360\237\230\200!", 5 },
        { "\"\303\251\342\202\254\360\237\230\200\"", "\303\251\342\202\254\360\237\230\200", 9 },
    };
    int i;
    for (i = 0; i < COUNT(row); i++) {
        size_t cap, n = 99;
        for (cap = 0; cap <= (size_t)row[i].n + 1; cap++) {  /* cut, exact, and with room */
            char out[32];
            size_t kept = cap < (size_t)row[i].n ? cap : (size_t)row[i].n;
            dt__json j = json_on(row[i].text, strlen(row[i].text));
            memset(out, 'Z', sizeof out);
            CHECK_MSG(dt__json_string(&j, out, cap, &n) && !j.error && j.p == j.end, "%s: %s", row[i].text, j.error ? j.error : "stops early");
            CHECK_MSG(n == (size_t)row[i].n && !memcmp(out, row[i].value, kept) && out[kept] == 'Z', "%s with room for %d", row[i].text, (int)cap);
        }
    }
    for (i = 0; i < 2; i++) {  /* what the writer escapes, the reader gives back */
        static const char *const texts[] = { "quote \" back \\ bell \a tab \t end \037", "\303\251 plain" };
        char json[128], out[64];
        size_t n;
        dt__writer w;
        dt__json j;
        w.text = json; w.size = sizeof json; w.n = 0;
        dt__put(&w, '"');
        dt__put_json(&w, texts[i]);
        dt__put(&w, '"');
        j = json_on(json, w.n);
        CHECK(dt__json_string(&j, out, sizeof out, &n) && n == strlen(texts[i]) && !memcmp(out, texts[i], n));
    }
}

static void test_json_whole_numbers(void) {
    static const struct { const char *text; int good; uint64_t value; } row[] = {
        { "0", 1, 0 }, { " 7", 1, 7 }, { "18446744073709551615", 1, UINT64_MAX }, { "18446744073709551616", 0, 0 }, { "18446744073709551620", 0, 0 }, { "99999999999999999999", 0, 0 },
        { "184467440737095516150", 0, 0 }, { "9223372036854775808", 1, UINT64_C(9223372036854775808) }, { "4294967296", 1, UINT64_C(4294967296) }, { "", 0, 0 }, { "-1", 0, 0 }, { "+1", 0, 0 }, { "01", 0, 0 }, { "00", 0, 0 }, { "1.0", 0, 0 }, { "1e3", 0, 0 }, { "1E3", 0, 0 },
        { "x", 0, 0 }, { "\"1\"", 0, 0 }, { "null", 0, 0 }, { "1.", 0, 0 } };
    int i;
    for (i = 0; i < COUNT(row); i++) {
        uint64_t v = 12345;
        dt__json j = json_on(row[i].text, strlen(row[i].text));
        int ok = dt__json_uint(&j, &v);
        CHECK_MSG(ok == row[i].good && !ok == (j.error != NULL), "%s", row[i].text);
        if (ok) CHECK_MSG(v == row[i].value && j.p == j.end, "%s", row[i].text);
    }
}

static void test_json_numbers(void) {
    static const struct { const char *text; int good; double value; } row[] = {
        { "0", 1, 0 }, { "-0", 1, 0 }, { "1.5", 1, 1.5 }, { "-2.5e-1", 1, -0.25 }, { "1e2", 1, 100 }, { "1E+2", 1, 100 }, { "00", 0, 0 }, { "-", 0, 0 }, { "", 0, 0 }, { "1.", 0, 0 }, { "1.e1", 0, 0 }, { ".1", 0, 0 }, { "+1", 0, 0 }, { "1e", 0, 0 }, { "1e+", 0, 0 },
        { "nan", 0, 0 }, { "-inf", 0, 0 }, { "-nan", 0, 0 }, { "x", 0, 0 } };
    int i;
    for (i = 0; i < COUNT(row); i++) {
        double v = 99;
        dt__json j = json_on(row[i].text, strlen(row[i].text));
        int ok = dt__json_number(&j, &v);
        CHECK_MSG(ok == row[i].good && !ok == (j.error != NULL), "%s", row[i].text);
        if (ok) CHECK_MSG(v == row[i].value && j.p == j.end, "%s: %g", row[i].text, v);
    }
}

/* The first offence stays, and every later call fails. */
static void test_json_error_stays(void) {
    static const char text[] = "{\"a\":1} 2 \"s\"";
    dt__json j = json_on(text, strlen(text));
    const char *first;
    uint64_t u;
    double d;
    size_t n;
    CHECK(!dt__json_uint(&j, &u));
    first = j.error;
    CHECK(first != NULL);
    CHECK(dt__json_peek(&j) == 0);
    CHECK(!dt__json_want(&j, '{', "second") && j.error == first);
    CHECK(!dt__json_more(&j, '}') && j.error == first);
    CHECK(!dt__json_skip(&j) && j.error == first);
    CHECK(!dt__json_string(&j, NULL, 0, &n) && j.error == first);
    j = json_on("2", 1);
    j.error = "first";
    CHECK(!dt__json_uint(&j, &u) && !strcmp(j.error, "first"));
    j = json_on("2", 1);
    j.error = "first";
    CHECK(!dt__json_number(&j, &d) && !strcmp(j.error, "first"));
}

static void test_json_members(void) {
    static const struct { const char *text; char closing; int n, good; } row[] = {
        { "[]", ']', 0, 1 }, { "[ ]", ']', 0, 1 }, { "[1]", ']', 1, 1 }, { "[ 1 , 2 , 3 ]", ']', 3, 1 }, { "[1,]", ']', 1, 0 }, { "[1 2]", ']', 1, 0 }, { "[,]", ']', 0, 0 }, { "[1", ']', 1, 0 }, { "[", ']', 0, 0 },
        { "[1,2,", ']', 2, 0 } };
    int i;
    for (i = 0; i < COUNT(row); i++) {
        dt__json j = json_on(row[i].text, strlen(row[i].text));
        int n = 0;
        CHECK(dt__json_want(&j, '[', "a list"));
        while (dt__json_more(&j, row[i].closing) && dt__json_skip(&j)) n++;
        CHECK_MSG(n == row[i].n && (j.error == NULL) == row[i].good, "%s: %d members, %s", row[i].text, n, j.error ? j.error : "no error");
        if (row[i].good) CHECK(j.p == j.end);
    }
    {
        char got[64];
        dt__writer w;
        w.text = got; w.size = sizeof got; w.n = 0;
        dt__put_json_number(&w, 0.25);
        dt__put(&w, ',');
        dt__put_json_number(&w, (double)INFINITY);
        dt__put(&w, ',');
        dt__put_json_number(&w, (double)NAN);
        CHECK_MSG(!strcmp(got, "0.25,null,null"), "%s", got);
    }
}

/* ---- sizes and memory ------------------------------------------------------------------------------------------ */

static void test_sizes(void) {
    static const struct { ptrdiff_t a, b; int fits; } row[] = {
        { 0, 0, 1 }, { 0, PTRDIFF_MAX, 1 }, { PTRDIFF_MAX, 0, 1 }, { 3, 4, 1 }, { -1, 2, 0 }, { 2, -1, 0 }, { -1, -1, 0 }, { 1, PTRDIFF_MAX / 8, 1 }, { PTRDIFF_MAX / 8, 1, 1 }, { 1, PTRDIFF_MAX / 8 + 1, 0 },
        { PTRDIFF_MAX / 8 + 1, 1, 0 }, { PTRDIFF_MAX, PTRDIFF_MAX, 0 }, { PTRDIFF_MIN, 1, 0 }, { PTRDIFF_MAX / 16, 2, 1 }, { PTRDIFF_MAX / 16 + 1, 2, 0 }, { 2, PTRDIFF_MAX / 16 + 1, 0 } };
    int i;
    for (i = 0; i < COUNT(row); i++) {
        ptrdiff_t out = -7;
        int fits = dt__times(row[i].a, row[i].b, &out);
        CHECK_MSG(fits == row[i].fits, "row %d", i);
        CHECK_MSG(out == (fits ? row[i].a * row[i].b : -7), "row %d", i);
    }
    CHECK(dt__ceil(0, 16) == 0 && dt__ceil(1, 16) == 16 && dt__ceil(16, 16) == 16 && dt__ceil(17, 16) == 32 && dt__ceil(5, 1) == 5 && dt__ceil(7, 3) == 9);
}

static int alive;
static size_t given;
static void *count_alloc(size_t bytes, void *user) {
    void *p = malloc(bytes);
    if (user && --*(int *)user < 0) { free(p); return NULL; }
    if (p) { memset(p, 0xa5, bytes); alive++; given += bytes; }
    return p;
}
static void count_release(void *p, void *user) { (void)user; if (p) alive--; free(p); }

static const size_t piece[] = { 1, 0, 15, 16, 17, 64, 100, 1000, 31, 4096, 3 };

static int all_zero(const unsigned char *p, size_t n) {
    while (n && !*p) { p++; n--; }
    return n == 0;
}

static void test_pool_counts_alike(void) {
    dt_options hooks = DT_DEFAULTS, block = DT_DEFAULTS;
    dt__pool a, b;
    size_t total, offset;
    int i;
    unsigned char *memory;
    hooks.alloc = count_alloc;
    hooks.release = count_release;
    alive = 0;
    given = 0;
    dt__pool_open(&a, &hooks, 0);
    for (i = 0; i < COUNT(piece); i++) {
        unsigned char *p = (unsigned char *)dt__take(&a, piece[i]);
        CHECK_MSG(p && (uintptr_t)p % 16 == 0 && all_zero(p, piece[i]), "piece %d", i);
        if (p) memset(p, 0xff, piece[i]);
    }
    total = a.used;
    CHECK(alive == COUNT(piece) && given == total);
    dt__pool_close(a);
    CHECK(alive == 0);

    memory = (unsigned char *)malloc(total + 128);
    if (!memory) SKIP("out of memory");
    for (offset = 0; offset < 64; offset++) {  /* the block may begin anywhere: exactly filled, or one byte short */
        int less;
        for (less = 0; less < 2; less++) {
            unsigned char *start = memory + offset, *p = NULL, *before = start;
            memset(memory, 0xa5, total + 128);
            block.memory = start;
            block.memory_size = total - (size_t)less;
            dt__pool_open(&b, &block, 0);
            for (i = 0; i < COUNT(piece); i++) {
                p = (unsigned char *)dt__take(&b, piece[i]);
                if (!p) break;
                CHECK((uintptr_t)p % 16 == 0 && p >= before && all_zero(p, piece[i]));
                CHECK_MSG(p + piece[i] <= start + total - less, "offset %d, piece %d", (int)offset, i);
                memset(p, 0xff, piece[i]);
                before = p + piece[i];
            }
            CHECK_MSG(i == COUNT(piece) - less, "offset %d, %d less: %d pieces", (int)offset, less, i);
            CHECK_MSG(b.used == total, "offset %d: %d bytes for %d", (int)offset, (int)b.used, (int)total);
            CHECK(all_zero(p, 0) && memory[offset + total - (size_t)less] == 0xa5 && (offset == 0 || memory[offset - 1] == 0xa5));
            dt__pool_close(b);
        }
    }
    free(memory);
}

/* A block that ends at the guard page, filled to the last byte. */
static void test_pool_ends_in_time(void) {
    size_t n, total;
    for (n = 0; n < 100; n++) {
        dt_options o = DT_DEFAULTS;
        dt__pool pool, measure;
        memset(&measure, 0, sizeof measure);
        dt__count_piece(&measure, n, &total);
        dt__count_piece(&measure, 40, &total);
        o.memory = fence - measure.used;
        o.memory_size = measure.used;
        memset(o.memory, 0x5a, o.memory_size);
        dt__pool_open(&pool, &o, 0);
        CHECK(dt__take(&pool, n) && dt__take(&pool, 40) && !dt__take(&pool, 0));
    }
}

static void test_pool_too_much(void) {
    static const size_t much[] = { SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15, SIZE_MAX - 31, SIZE_MAX - 47, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX / 4 };
    int i, way;
    for (i = 0; i < COUNT(much); i++)
        for (way = 0; way < 4; way++) {  /* hooks or a block; as the first piece or the second */
            static unsigned char memory[4096];
            dt_options o = DT_DEFAULTS;
            dt__pool pool;
            o.alloc = count_alloc;
            o.release = count_release;
            if (way & 1) { o.memory = memory; o.memory_size = sizeof memory; }
            alive = 0;
            dt__pool_open(&pool, &o, 0);
            if (way & 2) CHECK(dt__take(&pool, 10) != NULL);
            CHECK_MSG(dt__take(&pool, much[i]) == NULL, "%d bytes, way %d", i, way);
            CHECK_MSG(pool.used > sizeof memory && pool.used <= (size_t)PTRDIFF_MAX, "%d: counted %lu", i, (unsigned long)pool.used);
            CHECK_MSG(dt__take(&pool, 10) == NULL && pool.used <= (size_t)PTRDIFF_MAX, "%d: a piece after the one too large, way %d: counted %lu", i, way, (unsigned long)pool.used);
            dt__pool_close(pool);
            CHECK(alive == 0);
            if (check_failed > 5) return;
        }
}

static void test_pool_failing_hook(void) {
    int fail;
    for (fail = 0; fail <= COUNT(piece); fail++) {
        dt_options o = DT_DEFAULTS;
        dt__pool pool;
        int left = fail, i, got = 0;
        o.alloc = count_alloc;
        o.release = count_release;
        o.alloc_user = &left;
        alive = 0;
        dt__pool_open(&pool, &o, 0);
        for (i = 0; i < COUNT(piece); i++) got += dt__take(&pool, piece[i]) != NULL;
        CHECK(got == fail && alive == fail);
        dt__pool_close(pool);
        CHECK(alive == 0);
    }
}

/* ---- random bits -------------------------------------------------------------------------------------------------- */

static void test_random_bits(void) {
    enum { N = 50000 };
    int i, k, bit[64] = { 0 }, cell[16] = { 0 };
    double chi = 0;
    CHECK(dt__random(1, 2, 3) == dt__random(1, 2, 3));
    CHECK(dt__random(1, 2, 3) != dt__random(1, 3, 2) && dt__random(1, 2, 3) != dt__random(2, 1, 3) && dt__random(1, 2, 3) != dt__random(3, 2, 1));
    CHECK(dt__random(0, 0, 0) != 0 && dt__random(0, 0, 0) != dt__random(0, 0, 1) && dt__random(0, 0, 0) != dt__random(0, 1, 0));
    CHECK(dt__mix(0) == UINT64_C(0xe220a8397b1dcdaf));  /* SplitMix64's first number from seed 0 */
    CHECK(dt__mix(UINT64_C(0x9e3779b97f4a7c15)) == UINT64_C(0x6e789e6aa1b965f4));
    for (i = 0; i < N; i++) {
        uint64_t v = dt__random(7, 1, (uint64_t)i);
        for (k = 0; k < 64; k++) bit[k] += (int)(v >> k & 1);
        cell[dt__random(7, (uint64_t)i, 1) >> 60]++;
    }
    for (k = 0; k < 64; k++) CHECK_MSG(abs(bit[k] - N / 2) < 5 * 112, "bit %d: %d of %d", k, bit[k], N);  /* 5 sigma */
    for (k = 0; k < 16; k++) chi += (cell[k] - N / 16.0) * (cell[k] - N / 16.0) / (N / 16.0);
    CHECK_MSG(chi < 45, "chi squared with 15 degrees of freedom: %g", chi);
}

static void test_random_distributions(void) {
    enum { N = 200000 };
    double u1 = 0, u2 = 0, low = 1, high = 0, n1 = 0, n2 = 0, n3 = 0, n4 = 0, pairs = 0, previous = 0, beyond = 0;
    int i;
    for (i = 0; i < N; i++) {
        double u = dt__uniform(dt__random(3, 5, (uint64_t)i)), z = dt__normal(dt__random(4, 6, (uint64_t)i));
        u1 += u; u2 += u * u;
        if (u < low) low = u;
        if (u > high) high = u;
        n1 += z; n2 += z * z; n3 += z * z * z; n4 += z * z * z * z;
        pairs += z * previous;
        previous = z;
        beyond += fabs(z) > 1.959964;
    }
    u1 /= N; u2 = u2 / N - u1 * u1;
    CHECK(low >= 0 && high < 1 && low < 1e-4 && high > 1 - 1e-4);
    CHECK_MSG(fabs(u1 - 0.5) < 5 * 0.2887 / sqrt(N) && fabs(u2 - 1.0 / 12) < 1e-3, "uniform: mean %g, variance %g", u1, u2);
    n1 /= N; n2 /= N; n3 /= N; n4 /= N; pairs /= N; beyond /= N;
    CHECK_MSG(fabs(n1) < 5 / sqrt(N) && fabs(n2 - 1) < 5 * sqrt(2.0 / N), "normal: mean %g, variance %g", n1, n2);
    CHECK_MSG(fabs(n3) < 5 * sqrt(15.0 / N) && fabs(n4 - 3) < 5 * sqrt(96.0 / N), "normal: third moment %g, fourth %g", n3, n4);
    CHECK_MSG(fabs(pairs) < 5 / sqrt(N) && fabs(beyond - 0.05) < 5 * sqrt(0.05 * 0.95 / N), "normal: neighbours %g, tails %g", pairs, beyond);
    CHECK(dt__uniform(0) == 0 && dt__uniform(UINT64_MAX) < 1);
    CHECK(isfinite(dt__normal(0)) && isfinite(dt__normal(UINT64_MAX)));
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static int entries(const char *path) {
    DIR *d = opendir(path);
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d))) n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    if (d) closedir(d);
    return n;
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    CHECK(f && fputs(text, f) >= 0);
    if (f) CHECK(fclose(f) == 0);
}

static int holds(const char *path, const char *text) {
    char got[256] = "";
    size_t n = 0;
    FILE *f = fopen(path, "rb");
    if (f) { n = fread(got, 1, sizeof got, f); fclose(f); }
    return f && n == strlen(text) && !memcmp(got, text, n);
}

static void test_new_file(void) {
    const char *folder = at("new"), *path = at("new/weights");
    dt_error err = DT_DEFAULTS;
    dt__new_file f;
    int round;
    CHECK(mkdir(folder, 0700) == 0);
    for (round = 0; round < 2; round++) {  /* creates, then replaces */
        CHECK_MSG(dt__new_file_open(&f, "save", path, &err) == 0, "%s", err.text);
        if (err.code) return;
        fputs(round ? "second" : "first", f.f);
        fflush(f.f);
        if (round) CHECK(holds(path, "first"));  /* until it is complete, the old one stands */
        else CHECK(access(path, F_OK) != 0);
        CHECK(dt__new_file_close(&f, &err) == 0);
        CHECK_OK(err);
        CHECK(holds(path, round ? "second" : "first"));
        CHECK(entries(folder) == 1);
    }
    /* given up in the middle */
    CHECK(dt__new_file_open(&f, "save", path, &err) == 0);
    fputs("third", f.f);
    errno = ENOSPC;
    CHECK(dt__new_file_fail(&f, &err, "cannot write") == DT_ERR_IO);
    CHECK_ERROR(err, DT_ERR_IO, path);
    CHECK(holds(path, "second") && entries(folder) == 1 && f.f == NULL);
    /* a name without a folder */
    {
        char before[512];
        memset(&err, 0, sizeof err);
        if (getcwd(before, sizeof before) && !chdir(folder)) {
            CHECK(dt__new_file_open(&f, "save", "plain", &err) == 0 && fputs("here", f.f) >= 0 && dt__new_file_close(&f, &err) == 0);
            CHECK_OK(err);
            CHECK(holds("plain", "here") && entries(".") == 2);
            CHECK(chdir(before) == 0);
        }
    }
}

static void test_new_file_refusals(void) {
    static const struct { const char *what; const char *text; int code; } row[] = {
        { "", "empty", DT_ERR_ARGUMENT }, { "folder", "no regular file", DT_ERR_IO }, { "pipe", "no regular file", DT_ERR_IO }, { "missing/weights", "cannot create", DT_ERR_IO } };
    const char *folder = at("refusals");
    char longer[1100];
    int i;
    dt__new_file f;
    CHECK(mkdir(folder, 0700) == 0 && mkdir(at("refusals/folder"), 0700) == 0 && mkfifo(at("refusals/pipe"), 0600) == 0);
    for (i = 0; i < COUNT(row); i++) {
        dt_error err = DT_DEFAULTS;
        char path[600];
        path[0] = 0;
        if (row[i].what[0]) snprintf(path, sizeof path, "%s/%s", folder, row[i].what);
        CHECK_MSG(dt__new_file_open(&f, "save", path, &err) == row[i].code && f.f == NULL, "%s", path);
        if (f.f) dt__new_file_fail(&f, NULL, "");
        CHECK_ERROR(err, row[i].code, row[i].text);
    }
    {
        dt_error err = DT_DEFAULTS;
        CHECK(dt__new_file_open(&f, "save", NULL, &err) == DT_ERR_ARGUMENT);
        memset(longer, 'x', sizeof longer - 1);
        longer[sizeof longer - 1] = 0;
        memset(&err, 0, sizeof err);
        CHECK(dt__new_file_open(&f, "save", longer, &err) == DT_ERR_IO);
        CHECK_ERROR(err, DT_ERR_IO, "1099 bytes");
        CHECK(dt__new_file_open(&f, "save", longer, NULL) == DT_ERR_IO);
    }
    CHECK(entries(folder) == 2);
    {  /* something else comes to stand there while the file is written */
        dt_error err = DT_DEFAULTS;
        const char *path = at("refusals/late");
        CHECK(dt__new_file_open(&f, "save", path, &err) == 0 && fputs("x", f.f) >= 0 && mkdir(path, 0700) == 0);
        CHECK(dt__new_file_close(&f, &err) == DT_ERR_IO);
        CHECK_ERROR(err, DT_ERR_IO, "cannot write");
        CHECK(entries(folder) == 3);
    }
}

/* A full disk, as a limit on the size of files: the old file stays, and nothing is left beside it. */
static void test_new_file_full_disk(void) {
    const char *folder = at("full"), *path = at("full/weights");
    int status = -1;
    pid_t pid;
    CHECK(mkdir(folder, 0700) == 0);
    write_text(path, "old");
    fflush(stdout);
    pid = fork();
    if (pid < 0) SKIP("no fork");
    if (pid == 0) {
        struct rlimit limit;
        dt_error err = DT_DEFAULTS;
        dt__new_file f;
        int i, ok;
        signal(SIGXFSZ, SIG_IGN);
        limit.rlim_cur = limit.rlim_max = 8192;
        if (setrlimit(RLIMIT_FSIZE, &limit)) _exit(2);
        if (dt__new_file_open(&f, "save", path, &err)) _exit(3);
        for (i = 0; i < 20000; i++) fputc('x', f.f);
        ok = dt__new_file_close(&f, &err) == DT_ERR_IO && err.code == DT_ERR_IO && strstr(err.text, "cannot write");
        _exit(ok ? 0 : 4);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", (unsigned)status);
    CHECK(holds(path, "old") && entries(folder) == 1);
}

static void test_file_read(void) {
    static char text[200000];
    dt_error err = DT_DEFAULTS;
    dt__file f;
    FILE *out;
    size_t i;
    for (i = 0; i < sizeof text; i++) text[i] = (char)(i * 7 + i / 256);
    out = fopen(at("bytes"), "wb");
    CHECK(out && fwrite(text, 1, sizeof text, out) == sizeof text && fclose(out) == 0);
    CHECK(dt__file_read("data", at("bytes"), &f, &err) == 0);
    CHECK_OK(err);
    CHECK(f.size == sizeof text && f.data && !memcmp(f.data, text, sizeof text));
    dt__file_free(&f);
    CHECK(f.data == NULL);
    dt__file_free(&f);
    write_text(at("none"), "");
    CHECK(dt__file_read("data", at("none"), &f, &err) == 0 && f.size == 0);
    CHECK_OK(err);
    dt__file_free(&f);
    /* a stream that cannot be mapped, longer than the first buffer */
    out = fopen(at("bytes"), "rb");
    CHECK(out && dt__stream_read(out, &f) == 0 && f.size == sizeof text && !memcmp(f.data, text, sizeof text));
    if (out) fclose(out);
    dt__file_free(&f);
    CHECK(dt__file_read("data", at("missing"), &f, &err) == DT_ERR_IO);
    CHECK_ERROR(err, DT_ERR_IO, "cannot open");
    CHECK(strstr(err.text, "missing") && f.data == NULL);
    memset(&err, 0, sizeof err);
    CHECK(dt__file_read("data", scratch, &f, &err) == DT_ERR_IO);
    CHECK_ERROR(err, DT_ERR_IO, "data: cannot read");
    memset(&err, 0, sizeof err);
    CHECK(dt__file_read("data", at("missing.gz"), &f, &err) == DT_ERR_IO);
    CHECK_ERROR(err, DT_ERR_IO, "cannot open");
}

static void test_file_read_gz(void) {
    char command[1200];
    dt_error err = DT_DEFAULTS;
    dt__file f, packed;
    FILE *out;
    int i;
    if (system("gzip --version >/dev/null 2>&1")) SKIP("no gzip here");
    snprintf(command, sizeof command, "gzip -c >'%s'", at("lines.gz"));
    out = popen(command, "w");
    CHECK(out != NULL);
    if (!out) return;
    for (i = 0; i < 30000; i++) fprintf(out, "%05d\n", i);
    CHECK(pclose(out) == 0);
    CHECK(dt__file_read("data", at("lines.gz"), &f, &err) == 0);
    CHECK_OK(err);
    CHECK(f.size == 180000 && !memcmp(f.data, "00000\n00001\n", 12) && !memcmp(f.data + f.size - 6, "29999\n", 6));
    dt__file_free(&f);
    /* cut, damaged, not gzip at all, and a name that looks like a flag or a command */
    {
        FILE *in = fopen(at("lines.gz"), "rb");
        CHECK(in && dt__stream_read(in, &packed) == 0);
        if (in) fclose(in);
    }
    for (i = 0; i < 3; i++) {
        const char *path = at(i == 0 ? "cut.gz" : i == 1 ? "damaged.gz" : "other.gz");
        out = fopen(path, "wb");
        if (i == 1) packed.data[packed.size / 2] ^= 0x55;
        CHECK(out && (i == 2 ? fputs("no gzip", out) >= 0 : fwrite(packed.data, 1, i ? packed.size : packed.size / 2, out) > 0) && fclose(out) == 0);
        memset(&err, 0, sizeof err);
        CHECK(dt__file_read("data", path, &f, &err) == DT_ERR_FORMAT && f.data == NULL);
        CHECK_ERROR(err, DT_ERR_FORMAT, "damaged or cut");
    }
    dt__file_free(&packed);
    memset(&err, 0, sizeof err);
    snprintf(command, sizeof command, "%s", at("a b;'$(x).gz"));
    CHECK(rename(at("lines.gz"), command) == 0 && dt__file_read("data", command, &f, &err) == 0 && f.size == 180000);
    CHECK_OK(err);
    dt__file_free(&f);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);  /* nothing is left running */
}

/* ---- clock and threads ------------------------------------------------------------------------------------------------ */

static void test_clock(void) {
    double a = dt__now(), b = dt__now();
    CHECK(a > 0 && b >= a && b < a + 60);
    CHECK(dt__cores() >= 1 && dt__cores() <= 1024);
}

#ifndef DTRAIN_NO_THREADS
enum { MAX_THREADS = 24 };
static dt__meeting meeting;
static int rounds, threads, leaver;
static int slot[MAX_THREADS][32];  /* plain integers: only the barrier orders them */
static int failures[MAX_THREADS], seen_leaving[MAX_THREADS];

static void *meet_often(void *user) {
    int me = (int)(intptr_t)user, round, i;
    for (round = 1; round <= rounds; round++) {
        slot[me][0] = round;
        if (dt__meet(&meeting)) failures[me]++;
        for (i = 0; i < threads; i++) failures[me] += slot[i][0] != round;
        if (dt__meet(&meeting)) failures[me]++;
    }
    return NULL;
}

static void *meet_until_left(void *user) {
    int me = (int)(intptr_t)user, round;
    for (round = 0; round < 1000; round++) {
        int code;
        if (me == leaver && round == 20) { dt__meeting_leave(&meeting, me); return NULL; }
        code = dt__meet(&meeting);
        if (code) { seen_leaving[me] = code; failures[me] = round; return NULL; }
    }
    return NULL;
}

static int run_threads(int n, void *(*body)(void *)) {
    pthread_t thread[MAX_THREADS];
    int i, started = 0;
    threads = n;
    memset(slot, 0, sizeof slot);
    memset(failures, 0, sizeof failures);
    memset(seen_leaving, 0, sizeof seen_leaving);
    if (dt__meeting_open(&meeting, n)) return -1;
    for (i = 0; i < n; i++) started += pthread_create(&thread[i], NULL, body, (void *)(intptr_t)i) == 0;
    if (started < n) { printf("cannot start %d threads\n", n); exit(1); }
    for (i = 0; i < n; i++) pthread_join(thread[i], NULL);
    dt__meeting_close(&meeting);
    return 0;
}

static void test_meet(void) {
    int more = dt__cores() + 5, i, k;
    const int counts[] = { 1, 2, 3, more < MAX_THREADS ? more : MAX_THREADS };
    for (k = 0; k < COUNT(counts); k++) {
        int wrong = 0;
        rounds = counts[k] < 3 ? 3000 : 600;
        CHECK(run_threads(counts[k], meet_often) == 0);
        for (i = 0; i < counts[k]; i++) wrong += failures[i];
        CHECK_MSG(wrong == 0, "%d threads, %d rounds: %d times not together", counts[k], rounds, wrong);
    }
}

static void test_meet_without_one(void) {
    int n, i;
    for (n = 2; n <= 9; n += 7)
        for (leaver = 0; leaver < n; leaver += n - 1) {
            CHECK(run_threads(n, meet_until_left) == 0);
            for (i = 0; i < n; i++)
                if (i != leaver) CHECK_MSG(seen_leaving[i] == leaver + 1 && failures[i] == 20, "rank %d of %d: %d in round %d", i, n, seen_leaving[i], failures[i]);
        }
}
#endif

int main(void) {
    int status;
    if (scratch_begin() || fence_begin()) return 1;
    RUN(test_names);
    RUN(test_first_error_stays);
    RUN(test_format_whole_numbers);
    RUN(test_format_text);
    RUN(test_format_g);
    RUN(test_format_f);
    RUN(test_parse_double_texts);
    RUN(test_parse_double_random);
    RUN(test_number_round_trip);
    RUN(test_glob);
    RUN(test_crc32c);
    RUN(test_byte_order);
    RUN(test_json_documents);
    RUN(test_json_depth);
    RUN(test_json_truncated);
    RUN(test_json_damaged);
    RUN(test_json_strings);
    RUN(test_json_whole_numbers);
    RUN(test_json_numbers);
    RUN(test_json_error_stays);
    RUN(test_json_members);
    RUN(test_sizes);
    RUN(test_pool_counts_alike);
    RUN(test_pool_ends_in_time);
    RUN(test_pool_too_much);
    RUN(test_pool_failing_hook);
    RUN(test_random_bits);
    RUN(test_random_distributions);
    RUN(test_new_file);
    RUN(test_new_file_refusals);
    RUN(test_new_file_full_disk);
    RUN(test_file_read);
    RUN(test_file_read_gz);
    RUN(test_clock);
#ifndef DTRAIN_NO_THREADS
    RUN(test_meet);
    RUN(test_meet_without_one);
#endif
    status = finish();
    scratch_end();
    return status;
}

/* rows.h - a small set of images that can be learned, for tests of several processes. Behind dtrain.h. */
#define SIDE 6
#define FEATURES (SIDE * SIDE)
#define ROWS 203

static float rows[ROWS][FEATURES];
static int32_t row_label[ROWS];

static void make_rows(void) {
    for (int i = 0; i < ROWS; i++) {
        row_label[i] = (int32_t)(dt__random(7, 1, (uint64_t)i) % 4);
        for (int k = 0; k < FEATURES; k++)
            rows[i][k] = (float)dt__uniform(dt__random(7, (uint64_t)i + 2, (uint64_t)k)) + (k % 4 == row_label[i] ? 0.5f : 0);
    }
}

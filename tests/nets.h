/* nets.h - nets that between them use most operations in most ways, for tests of what is exported. Behind dtrain.h. */

static dt_tensor *digits(dt_tensor *x, void *user) {
    (void)user;
    x = dt_maxpool2d(dt_relu(dt_conv2d(x, 8, 3)), 2);
    x = dt_relu(dt_dense(dt_flatten(x), 16));
    return dt_dense(dt_dropout(x, 0.5), 3, .name = "logits");
}

static dt_tensor *convolutions(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_conv2d(x, 6, 3, .stride = 2, .padding = DT_SAME);          /* [5,4,6] */
    dt_tensor *b = dt_conv2d(x, 6, 3, .kernel_w = 5, .padding = 2, .stride = 2, .groups = 2);
    dt_tensor *c = dt_conv2d(x, 8, 3, .groups = 4, .dilation = 2, .no_bias = 1); /* two filters a channel */
    dt_tensor *d = dt_conv2d(x, 4, 3, .groups = 4, .dilation = 2, .padding = DT_SAME);  /* depthwise */
    dt_tensor *e = dt_conv2d(x, 5, 1, .stride = 3), *f = dt_conv2d(x, 2, 9, .kernel_w = 7, .name = "all of it");
    dt_tensor *g = dt_conv2d(x, 4, 2, .padding = 3, .stride = 3, .dilation = 3), *h = dt_conv2d(x, 2, 4, .padding = DT_SAME, .stride = 3);
    dt_tensor *i = dt_conv2d(x, 3, 2, .padding = DT_SAME, .kernel_w = 4), *j = dt_conv2d(x, 3, 1, .padding = DT_SAME, .stride = 3);
    x = dt_concat(dt_concat(dt_flatten(a), dt_flatten(b), 1), dt_concat(dt_flatten(c), dt_flatten(d), 1), 1);
    x = dt_concat(x, dt_concat(dt_flatten(e), dt_flatten(f), 1), 1);
    x = dt_concat(x, dt_concat(dt_flatten(g), dt_flatten(h), 1), 1);
    return dt_concat(x, dt_concat(dt_flatten(i), dt_flatten(j), 1), 1);
}

static dt_tensor *pools(dt_tensor *x, void *user) {
    (void)user;
    dt_tensor *a = dt_maxpool2d(x, 3, .stride = 2, .padding = 1), *b = dt_avgpool2d(x, 3, .stride = 2, .padding = 1);
    dt_tensor *c = dt_maxpool2d(x, 2), *d = dt_avgpool2d(x, 4, .stride = 3), *e = dt_maxpool2d(x, 5, .stride = 7, .padding = 2);
    a = dt_concat(dt_flatten(dt_add(a, b)), dt_flatten(c), 1);
    return dt_concat(dt_concat(a, dt_concat(dt_flatten(d), dt_flatten(e), 1), 1), dt_global_avgpool(x), 1);
}

static dt_tensor *embedded(dt_tensor *x, void *user) {  /* tokens [2,3] */
    (void)user;
    dt_tensor *a = dt_embedding(x, 10, 4), *b = dt_embedding(dt_flatten(x), 10, 4, .share = a);
    dt_tensor *c = dt_layernorm(dt_add(dt_reshape(a, {6, 4}), b));
    c = dt_layernorm(dt_dense(c, 5), .no_bias = 1, .epsilon = 1e-3);
    return dt_softmax(dt_dense(dt_gelu(c), 3));
}

static dt_tensor *moves(dt_tensor *x, void *user) {  /* [9,7,4], channels last all the way */
    (void)user;
    dt_tensor *a = dt_slice(x, 1, 1, -2), *b = dt_slice(x, 2, 1, 0, .step = 3), *c = dt_slice(x, 3, 1, 4, .step = 2);
    dt_tensor *d = dt_pad(dt_pad(dt_pad(a, 1, 2, 0), 2, 0, 1), 3, 1, 2);          /* [8,8,7] */
    d = dt_concat(d, dt_scale(dt_slice(d, 2, 0, 3), -2, 0), 2);
    d = dt_concat(d, d, 1);
    return dt_concat(dt_concat(dt_flatten(b), dt_flatten(c), 1), dt_reshape(d, {-1}), 1);
}

static dt_tensor *shared(dt_tensor *x, void *user) {  /* one set of weights four times */
    (void)user;
    dt_tensor *first = dt_dense(x, 6, .name = "first"), *y = dt_relu(first);
    for (int i = 0; i < 3; i++) y = dt_add(dt_silu(dt_dense(y, 6, .share = first)), y);
    dt_tensor *norm = dt_layernorm(y);
    return dt_mul(norm, dt_layernorm(dt_mul(y, y), .share = norm));
}

static dt_tensor *identity(dt_tensor *x, void *user) { (void)user; return x; }

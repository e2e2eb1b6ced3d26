/* Damaged JPEGs and random views for the kernel, meant to be compiled with a sanitizer; see test_kernel.py.

   fuzz INSTRUCTIONS ROUNDS FILE...   Memory is exactly as large as it must be, so that one byte too far is found. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Context Context;
Context *kernel_new(void);
void kernel_free(Context *);
int kernel_choose(int most);
typedef struct {
    const uint8_t *bytes;
    int64_t start, size, name;
    int32_t descriptor, status;
} Picture;
void kernel_batch(Context *, Picture *, const char *, int, int, int, double, const double *, int, int, uint8_t *);

static uint64_t state = 88172645463325252ull;

/* Below `limit`: xorshift64 (Marsaglia, "Xorshift RNGs", 2003). */
static uint32_t below(uint32_t limit) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 11) % limit;
}

static uint8_t *damaged(const char *name, size_t *size) {
    FILE *file = fopen(name, "rb");
    if (!file) exit(2);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size);
    if (fread(data, 1, *size, file) != *size) exit(2);
    fclose(file);
    size_t header = *size < 700 ? *size : 700;
    if (below(8)) /* an eighth stays whole */
        for (int left = below(6); left > 0; left--) data[below(below(2) ? *size : header)] = below(256);
    if (!below(5)) *size = 1 + below(*size);
    uint8_t *exact = malloc(*size);
    memcpy(exact, data, *size);
    free(data);
    return exact;
}

/* A batch of one, in memory exactly as large as it must be; what became of it. `even`: all bytes must be that. */
static int show(Context *context, const uint8_t *data, size_t size, int height, int width, int side, int even) {
    Picture *picture = calloc(1, sizeof *picture);
    double *draws = malloc(23 * sizeof *draws);
    uint8_t *out = malloc((size_t)side * side * 3);
    for (int k = 0; k < 23; k++) draws[k] = below(1 << 20) / (double)(1 << 20);
    picture->bytes = data, picture->size = (int64_t)size, picture->name = -1;
    int crop = !!below(3);
    kernel_batch(context, picture, "", 1, height, width, 2e6, crop || below(2) ? draws : NULL, crop, side, out);
    int status = picture->status;
    for (int k = 0; even >= 0 && k < side * side * 3; k++)
        if (status || out[k] != even) exit(4);
    free(picture), free(draws), free(out);
    return status;
}

/* An even surface must stay even, whatever the view. */
static void show_even(Context *context) {
    int height = 1 + below(60), width = 1 + below(60);
    uint8_t *pixels = malloc((size_t)height * width * 3);
    memset(pixels, 7, (size_t)height * width * 3);
    show(context, pixels, (size_t)height * width * 3, height, width, 1 + below(70), 7);
    free(pixels);
}

int main(int count, char **words) {
    long counted[5] = {0};
    kernel_choose(atoi(words[1]));
    Context *context = kernel_new();
    for (long left = atol(words[2]); left > 0; left--) {
        size_t size;
        uint8_t *data = damaged(words[3 + below(count - 3)], &size);
        counted[show(context, data, size, 0, 0, 1 + below(70), -1)]++;
        show_even(context);
        free(data);
        if (!below(2000)) kernel_free(context), context = kernel_new();
    }
    kernel_free(context);
    printf("shown %ld, found damaged %ld, not taken %ld\n", counted[0], counted[1], counted[2]);
    return 0;
}

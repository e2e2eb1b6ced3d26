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
int kernel_header(Context *, const uint8_t *, size_t, int *, int *);
int kernel_jpeg(Context *, const uint8_t *, size_t, int, double, double, double, double, int, int, uint8_t *);
int kernel_pixels(Context *, const uint8_t *, int, int, int, int, int, int, int, int, uint8_t *);

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

static int show(Context *context, const uint8_t *data, size_t size, int height, int width) {
    int side = 1 + below(70), shrink = 1 << below(4);
    double most_rows = (height + shrink - 1) / shrink, most_columns = (width + shrink - 1) / shrink;
    double rows = 1 + below(most_rows * 4) / 4.0, columns = 1 + below(most_columns * 4) / 4.0;
    if (rows > most_rows) rows = most_rows;
    if (columns > most_columns) columns = most_columns;
    double top = (most_rows - rows) * below(101) / 100, left = (most_columns - columns) * below(101) / 100;
    uint8_t *out = malloc((size_t)side * side * 3);
    int status = kernel_jpeg(context, data, size, shrink, top, left, rows, columns, side, below(2), out);
    free(out);
    return status;
}

/* An even surface must stay even, whatever the view. */
static void show_even(Context *context) {
    int height = 1 + below(60), width = 1 + below(60), rows = 1 + below(height), columns = 1 + below(width);
    int side = 1 + below(70);
    if (!below(3)) side = rows = columns = rows < columns ? rows : columns; /* copied or mirrored */
    uint8_t *pixels = malloc((size_t)height * width * 3), *out = malloc((size_t)side * side * 3);
    memset(pixels, 7, (size_t)height * width * 3);
    int top = below(height - rows + 1), left = below(width - columns + 1);
    if (kernel_pixels(context, pixels, height, width, top, left, rows, columns, side, below(2), out)) exit(3);
    for (int k = 0; k < side * side * 3; k++)
        if (out[k] != 7) exit(4);
    free(pixels);
    free(out);
}

int main(int count, char **words) {
    long counted[4] = {0};
    kernel_choose(atoi(words[1]));
    Context *context = kernel_new();
    for (long left = atol(words[2]); left > 0; left--) {
        size_t size;
        int height, width;
        uint8_t *data = damaged(words[3 + below(count - 3)], &size);
        if (kernel_header(context, data, size, &height, &width) || (long)height * width > 2000000) counted[3]++;
        else counted[show(context, data, size, height, width)]++;
        show_even(context);
        free(data);
        if (!below(2000)) kernel_free(context), context = kernel_new();
    }
    kernel_free(context);
    printf("shown %ld, found damaged %ld, not taken %ld, refused by the header %ld\n", counted[0], counted[1], counted[2],
           counted[3]);
    return 0;
}

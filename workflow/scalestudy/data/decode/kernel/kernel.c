/* A whole batch in one call: read, partial decode, random or centre view, antialiased resize, flip, for each picture.

   One call for a batch, because each call must take the interpreter's lock when it returns: workers that do so for each
   picture wait for each other, and keep the thread that trains from launching its kernels.

   What is resized is a view (top, left, rows, columns) of the picture, to side x side pixels of 3 bytes. The filter is
   that of torchvision's antialias=True and of Pillow: a triangle as wide as two output pixels where it shrinks, as two
   input pixels where it enlarges, cut off at the edges of the view and normalised.

   The arithmetic is in integers, so that the AVX2 and the plain path give the same bytes:
     vertical    sum of bytes times weights of 14 bits, kept with 7 bits after the point in int16
     horizontal  sum of those times weights of 14 bits, rounded to a byte
   No function keeps state but in the context, of which each thread has its own. */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h> /* jpeglib.h needs it first */
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <unistd.h>
#include <jpeglib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { DONE = 0, DAMAGED = 1, NOT_FOR_US = 2, NO_MEMORY = 3, UNREAD = 4 };
enum { WEIGHT_BITS = 14, KEPT_BITS = 7, MARGIN = 4, SLACK = 64 };
enum { ATTEMPTS = 10, DRAWS = 2 * ATTEMPTS + 3, TINY = 16 }; /* as in decode/images.py */

/* One picture of a batch: where its bytes are, and what became of it. */
typedef struct {
    const uint8_t *bytes; /* in memory; NULL: in a file */
    int64_t start, size;  /* where in that file */
    int64_t name;         /* the file: where its path begins in `names`; -1: it is open as `descriptor` */
    int32_t descriptor, status;
} Picture;

typedef struct {
    struct jpeg_error_mgr manager; /* first: libjpeg knows only this part */
    jmp_buf escape;
} Errors;

typedef struct {
    uint8_t *bytes;
    size_t size;
} Memory;

typedef struct {
    struct jpeg_decompress_struct jpeg;
    Errors errors;
    Memory file, pixels, row, down, across;
} Context;

typedef struct {
    int count;        /* weights of each output pixel, an even number; those beyond its own are 0 */
    int32_t *start;   /* first input pixel of each output pixel */
    int16_t *weight;  /* [outputs][count] */
} Filter;

static void escape(j_common_ptr jpeg) { longjmp(((Errors *)jpeg->err)->escape, 1); }

/* A warning means damaged data: the caller decides what to do with it. */
static void warned(j_common_ptr jpeg, int level) {
    if (level < 0) longjmp(((Errors *)jpeg->err)->escape, 1);
}

static void silent(j_common_ptr jpeg) { (void)jpeg; }

static int hold(Memory *memory, size_t size) {
    if (memory->size >= size) return 1;
    free(memory->bytes);
    memory->size = size + size / 4;
    memory->bytes = malloc(memory->size);
    if (!memory->bytes) memory->size = 0;
    return memory->bytes != NULL;
}

Context *kernel_new(void) {
    Context *context = calloc(1, sizeof *context);
    if (!context) return NULL;
    context->jpeg.err = jpeg_std_error(&context->errors.manager);
    context->errors.manager.error_exit = escape;
    context->errors.manager.emit_message = warned;
    context->errors.manager.output_message = silent;
    if (setjmp(context->errors.escape)) {
        free(context);
        return NULL;
    }
    jpeg_create_decompress(&context->jpeg);
    return context;
}

void kernel_free(Context *context) {
    if (!context) return;
    jpeg_destroy_decompress(&context->jpeg);
    free(context->file.bytes);
    free(context->pixels.bytes);
    free(context->row.bytes);
    free(context->down.bytes);
    free(context->across.bytes);
    free(context);
}

/* Weights of `outputs` pixels, which divide `length` of `inputs` pixels from `offset` on. flip: the last comes first. */
static int make_filter(Memory *memory, Filter *filter, double offset, double length, int inputs, int outputs, int flip) {
    double scale = length / outputs, support = scale > 1 ? scale : 1;
    int most = (int)ceil(support) * 2 + 1;
    most += most & 1;
    size_t starts = (size_t)outputs * sizeof(int32_t);
    if (!hold(memory, starts + (size_t)outputs * most * sizeof(int16_t) + (size_t)most * sizeof(double) + SLACK)) return 0;
    filter->count = most;
    filter->start = (int32_t *)memory->bytes;
    filter->weight = (int16_t *)(memory->bytes + starts);
    size_t used = starts + (size_t)outputs * most * sizeof(int16_t);
    double *exact = (double *)(memory->bytes + (used + 15) / 16 * 16);
    int widest = 0;
    for (int at = 0; at < outputs; at++) {
        double centre = offset + (at + 0.5) * scale, sum = 0;
        int first = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5);
        if (first < 0) first = 0;
        if (end > inputs) end = inputs;
        int own = end - first, place = flip ? outputs - 1 - at : at, largest = 0, total = 0;
        int16_t *weight = filter->weight + (size_t)place * most;
        for (int k = 0; k < own; k++) {
            double distance = fabs((first + k + 0.5 - centre) / support);
            exact[k] = distance < 1 ? 1 - distance : 0;
            sum += exact[k];
            if (exact[k] > exact[largest]) largest = k;
        }
        for (int k = 0; k < most; k++) {
            weight[k] = k < own ? (int16_t)lrint(exact[k] / sum * (1 << WEIGHT_BITS)) : 0;
            total += weight[k];
        }
        weight[largest] += (int16_t)((1 << WEIGHT_BITS) - total); /* an even surface stays even */
        filter->start[place] = first;
        for (int k = own; k > 0; k--)
            if (weight[k - 1]) {
                if (k > widest) widest = k;
                break;
            }
    }
    /* Where no pixel uses the last weights, they need not be computed. */
    widest += widest & 1;
    if (widest < most) {
        for (int place = 0; place < outputs; place++)
            memmove(filter->weight + (size_t)place * widest, filter->weight + (size_t)place * most, widest * sizeof(int16_t));
        filter->count = widest;
    }
    return 1;
}

/* out[i] = sum over rows of weight * in[i], with KEPT_BITS after the point. `stride` may be short of the last rows:
   a weight of 0 has no row. */
static void down_plain(const uint8_t *in, size_t stride, const int16_t *weight, int count, int bytes, int16_t *out) {
    for (int i = 0; i < bytes; i++) {
        int32_t sum = 1 << (WEIGHT_BITS - KEPT_BITS - 1);
        for (int k = 0; k < count; k++)
            if (weight[k]) sum += weight[k] * in[(size_t)k * stride + i];
        out[i] = (int16_t)(sum >> (WEIGHT_BITS - KEPT_BITS));
    }
}

/* One row of pixels from one of kept values. */
static void across_plain(const int16_t *in, const Filter *filter, int outputs, uint8_t *out) {
    for (int at = 0; at < outputs; at++) {
        const int16_t *weight = filter->weight + (size_t)at * filter->count, *from = in + 3 * filter->start[at];
        for (int colour = 0; colour < 3; colour++) {
            int32_t sum = 1 << (WEIGHT_BITS + KEPT_BITS - 1);
            for (int k = 0; k < filter->count; k++)
                if (weight[k]) sum += weight[k] * from[3 * k + colour];
            sum >>= WEIGHT_BITS + KEPT_BITS;
            out[3 * at + colour] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
        }
    }
}

static void flip_plain(const uint8_t *in, int pixels, uint8_t *out) {
    for (int at = 0; at < pixels; at++) memcpy(out + 3 * at, in + 3 * (pixels - 1 - at), 3);
}

#if defined(__x86_64__)
/* Pairs of rows, 32 bytes at a time: bytes of both interleaved, multiplied and added in one instruction. */
__attribute__((target("avx2"))) static void down_avx2(const uint8_t *in, size_t stride, const int16_t *weight, int count,
                                                      int bytes, int16_t *out) {
    const __m256i half = _mm256_set1_epi32(1 << (WEIGHT_BITS - KEPT_BITS - 1)), zero = _mm256_setzero_si256();
    int i = 0;
    for (; i + 32 <= bytes; i += 32) {
        __m256i a = half, b = half, c = half, d = half;
        for (int k = 0; k < count; k += 2) {
            if (!weight[k] && !weight[k + 1]) continue;
            const uint8_t *upper = in + (size_t)k * stride + i, *lower = weight[k + 1] ? upper + stride : upper;
            if (!weight[k]) upper = lower;
            __m256i both = _mm256_set1_epi32((int)((uint16_t)weight[k] | (uint32_t)(uint16_t)weight[k + 1] << 16));
            __m256i one = _mm256_loadu_si256((const void *)upper), two = _mm256_loadu_si256((const void *)lower);
            __m256i low = _mm256_unpacklo_epi8(one, two), high = _mm256_unpackhi_epi8(one, two);
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), both));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), both));
            c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), both));
            d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), both));
        }
        /* Each 128-bit half holds 16 consecutive values in the order a, b, c, d. */
        a = _mm256_srai_epi32(a, WEIGHT_BITS - KEPT_BITS), b = _mm256_srai_epi32(b, WEIGHT_BITS - KEPT_BITS);
        c = _mm256_srai_epi32(c, WEIGHT_BITS - KEPT_BITS), d = _mm256_srai_epi32(d, WEIGHT_BITS - KEPT_BITS);
        __m256i first = _mm256_packs_epi32(a, b), second = _mm256_packs_epi32(c, d);
        _mm256_storeu_si256((void *)(out + i), _mm256_permute2x128_si256(first, second, 0x20));
        _mm256_storeu_si256((void *)(out + i + 16), _mm256_permute2x128_si256(first, second, 0x31));
    }
    if (i < bytes) down_plain(in + i, stride, weight, count, bytes - i, out + i);
}

/* Two input pixels at a time: r r g g b b, multiplied and added in one instruction; two output pixels side by side. */
__attribute__((target("avx2"))) static void across_avx2(const int16_t *in, const Filter *filter, int outputs, uint8_t *out) {
    const __m256i order = _mm256_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1, 0, 1, 6, 7, 2, 3, 8, 9, 4, 5,
                                           10, 11, -1, -1, -1, -1);
    const __m256i half = _mm256_set1_epi32(1 << (WEIGHT_BITS + KEPT_BITS - 1));
    int count = filter->count, at = 0;
    for (; at + 2 < outputs; at += 2) { /* the last pixels are written without going beyond them */
        const int16_t *left = in + 3 * filter->start[at], *right = in + 3 * filter->start[at + 1];
        const int16_t *weight = filter->weight + (size_t)at * count;
        __m256i sum = half;
        for (int k = 0; k < count; k += 2) {
            __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)(left + 3 * k))),
                                                     _mm_loadu_si128((const void *)(right + 3 * k)), 1);
            int32_t here, there;
            memcpy(&here, weight + k, 4);
            memcpy(&there, weight + count + k, 4);
            __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi32(here)), _mm_set1_epi32(there), 1);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, order), both));
        }
        sum = _mm256_srai_epi32(sum, WEIGHT_BITS + KEPT_BITS);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sum, sum), sum);
        int32_t one = _mm256_extract_epi32(bytes, 0), two = _mm256_extract_epi32(bytes, 4);
        memcpy(out + 3 * at, &one, 4); /* a byte too many, overwritten by the next pixel */
        memcpy(out + 3 * at + 3, &two, 4);
    }
    if (at < outputs) {
        Filter rest = {count, filter->start + at, filter->weight + (size_t)at * count};
        across_plain(in, &rest, outputs - at, out + 3 * at);
    }
}

/* Five pixels at a time, reversed in a register. */
__attribute__((target("avx2"))) static void flip_avx2(const uint8_t *in, int pixels, uint8_t *out) {
    const __m128i order = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
    int at = 0;
    /* Reads from one byte before the five pixels on: not for those at the very begin. Writes one byte beyond. */
    for (; at + 6 <= pixels; at += 5)
        _mm_storeu_si128((void *)(out + 3 * at),
                         _mm_shuffle_epi8(_mm_loadu_si128((const void *)(in + 3 * (pixels - at - 5) - 1)), order));
    flip_plain(in, pixels - at, out + 3 * at);
}
#endif

/* The functions in use: those of `kernel_choose`. */
static void (*down)(const uint8_t *, size_t, const int16_t *, int, int, int16_t *) = down_plain;
static void (*across)(const int16_t *, const Filter *, int, uint8_t *) = across_plain;
static void (*flipped)(const uint8_t *, int, uint8_t *) = flip_plain;

/* 1: AVX2, where the processor has it, and not more than `most`; 0: plain C. Called once, before all else. */
int kernel_choose(int most) {
    int chosen = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (most && __builtin_cpu_supports("avx2")) chosen = 1, down = down_avx2, across = across_avx2, flipped = flip_avx2;
#else
    (void)most;
#endif
    return chosen;
}

/* A part of a picture that need not begin or end with a whole pixel, and the whole pixels that it touches. */
typedef struct {
    double top, left, height, width;
    int first_row, first_column, rows, columns;
} View;

static int make_view(View *view, double top, double left, double height, double width, int most_rows, int most_columns) {
    if (!(top >= 0 && left >= 0 && height > 0 && width > 0 && top + height <= most_rows + 1e-6 &&
          left + width <= most_columns + 1e-6))
        return 0;
    int last_row = (int)ceil(top + height - 1e-6), last_column = (int)ceil(left + width - 1e-6);
    *view = (View){top, left, height, width, (int)top, (int)left, last_row - (int)top, last_column - (int)left};
    return view->rows > 0 && view->columns > 0;
}

/* The view of pixels in memory, resized. `pixels` points at the first pixel that it touches. */
static int resize(Context *context, const uint8_t *pixels, size_t stride, const View *view, int side, int flip, uint8_t *out) {
    int rows = view->rows, columns = view->columns;
    if (view->height == side && view->width == side && view->top == view->first_row && view->left == view->first_column) {
        for (int at = 0; at < side; at++) {
            if (flip) flipped(pixels + at * stride, side, out + (size_t)at * side * 3);
            else memcpy(out + (size_t)at * side * 3, pixels + at * stride, (size_t)side * 3);
        }
        return DONE;
    }
    Filter vertical, horizontal;
    if (!make_filter(&context->down, &vertical, view->top - view->first_row, view->height, rows, side, 0)) return NO_MEMORY;
    if (!make_filter(&context->across, &horizontal, view->left - view->first_column, view->width, columns, side, flip)) return NO_MEMORY;
    /* Weights of 0 may read beyond the last pixel: there is room for them, and it is set. */
    size_t kept = ((size_t)columns + horizontal.count) * 3 * sizeof(int16_t) + SLACK;
    if (!hold(&context->row, kept)) return NO_MEMORY;
    memset(context->row.bytes + (size_t)columns * 3 * sizeof(int16_t), 0, kept - (size_t)columns * 3 * sizeof(int16_t));
    int16_t *row = (int16_t *)context->row.bytes;
    for (int at = 0; at < side; at++) {
        down(pixels + vertical.start[at] * stride, stride, vertical.weight + (size_t)at * vertical.count, vertical.count,
             columns * 3, row);
        across(row, &horizontal, side, out + (size_t)at * side * 3);
    }
    return DONE;
}

/* The region of a picture of this size that its draws choose, in whole pixels, as random_view and centre_view of
   decode/images.py choose it. */
typedef struct {
    int top, left, height, width, flip;
} Region;

static Region region_of(int height, int width, const double *draws, int crop) {
    int flip = draws && draws[2 * ATTEMPTS] < 0.5;
    if (!crop) {
        int shorter = height < width ? height : width, side = (int)rint(shorter * 224 / 256.0);
        if (side < 1) side = 1;
        return (Region){(height - side) / 2, (width - side) / 2, side, side, flip};
    }
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        double area = (double)height * width * (0.08 + 0.92 * draws[2 * attempt]);
        double ratio = 3.0 / 4 * pow(16.0 / 9, draws[2 * attempt + 1]);
        double columns = rint(sqrt(area * ratio)), rows = rint(sqrt(area / ratio));
        if (columns > 0 && columns <= width && rows > 0 && rows <= height) {
            int top = (int)(draws[2 * ATTEMPTS + 1] * (height - (int)rows + 1));
            int left = (int)(draws[2 * ATTEMPTS + 2] * (width - (int)columns + 1));
            return (Region){top, left, (int)rows, (int)columns, flip};
        }
    }
    double most_columns = rint(height * 4.0 / 3), most_rows = rint(width * 4.0 / 3);
    int columns = most_columns < width ? (int)most_columns : width, rows = most_rows < height ? (int)most_rows : height;
    return (Region){(height - rows) / 2, (width - columns) / 2, rows, columns, flip};
}

/* By how much a JPEG may be decoded smaller without enlarging the region afterwards: shrink_for of decode/images.py. */
static int shrink_for(const Region *region, int side) {
    int shorter = region->height < region->width ? region->height : region->width;
    int factor = shorter >= TINY ? shorter / side : 1;
    return factor >= 8 ? 8 : factor >= 4 ? 4 : factor >= 2 ? 2 : 1;
}

static int show_jpeg(Context *context, const uint8_t *data, size_t size, const double *draws, int crop, double most_pixels,
                     int side, uint8_t *out) {
    struct jpeg_decompress_struct *jpeg = &context->jpeg;
    if (setjmp(context->errors.escape)) {
        jpeg_abort_decompress(jpeg);
        return DAMAGED;
    }
    jpeg_mem_src(jpeg, (uint8_t *)data, size);
    jpeg_read_header(jpeg, TRUE);
    int known = jpeg->jpeg_color_space == JCS_YCbCr || jpeg->jpeg_color_space == JCS_GRAYSCALE;
    int height = (int)jpeg->image_height, width = (int)jpeg->image_width;
    if (!known || jpeg->progressive_mode || jpeg->arith_code || jpeg->data_precision != 8 ||
        (double)height * width > most_pixels) {
        jpeg_abort_decompress(jpeg);
        return NOT_FOR_US;
    }
    Region region = region_of(height, width, draws, crop);
    jpeg->scale_num = 1;
    jpeg->scale_denom = shrink_for(&region, side);
    jpeg->out_color_space = JCS_EXT_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg_start_decompress(jpeg);
    double down = (double)jpeg->output_height / height, across = (double)jpeg->output_width / width;
    View view;
    if (!make_view(&view, region.top * down, region.left * across, region.height * down, region.width * across,
                   (int)jpeg->output_height, (int)jpeg->output_width)) {
        jpeg_abort_decompress(jpeg);
        return NOT_FOR_US;
    }
    /* Smooth upsampling of colour looks at neighbours, of which there are none beyond what is decoded: a margin. */
    JDIMENSION begin = view.first_column > MARGIN ? view.first_column - MARGIN : 0;
    JDIMENSION wide = view.first_column + view.columns + MARGIN - begin;
    if (begin + wide > jpeg->output_width) wide = jpeg->output_width - begin;
    if (begin > 0 || wide < jpeg->output_width) jpeg_crop_scanline(jpeg, &begin, &wide);
    int above = view.first_row > MARGIN ? view.first_row - MARGIN : 0;
    if (above) jpeg_skip_scanlines(jpeg, above);
    size_t stride = (size_t)wide * 3;
    int lines = view.first_row + view.rows - above;
    if (!hold(&context->pixels, stride * lines + SLACK)) {
        jpeg_abort_decompress(jpeg);
        return NO_MEMORY;
    }
    for (int done = 0; done < lines;) {
        JSAMPROW line[8];
        int count = lines - done < 8 ? lines - done : 8;
        for (int k = 0; k < count; k++) line[k] = context->pixels.bytes + (size_t)(done + k) * stride;
        done += (int)jpeg_read_scanlines(jpeg, line, count);
    }
    jpeg_abort_decompress(jpeg);
    const uint8_t *first =
        context->pixels.bytes + (size_t)(view.first_row - above) * stride + (size_t)(view.first_column - (int)begin) * 3;
    return resize(context, first, stride, &view, side, region.flip, out);
}

static int show_pixels(Context *context, const uint8_t *data, int height, int width, const double *draws, int crop, int side,
                       uint8_t *out) {
    Region region = region_of(height, width, draws, crop);
    View view;
    if (!make_view(&view, region.top, region.left, region.height, region.width, height, width)) return NOT_FOR_US;
    return resize(context, data + ((size_t)region.top * width + region.left) * 3, (size_t)width * 3, &view, side, region.flip, out);
}

/* The bytes of a picture in a file; NULL where they cannot be read. */
static const uint8_t *read_file(Context *context, const Picture *picture, const char *names) {
    int file = picture->name < 0 ? picture->descriptor : open(names + picture->name, O_RDONLY | O_CLOEXEC);
    size_t done = 0, size = (size_t)picture->size;
    if (file < 0) return NULL;
    if (hold(&context->file, size + SLACK)) { /* a decoder may read a few bytes too far */
        while (done < size) {
            ssize_t count = pread(file, context->file.bytes + done, size - done, picture->start + (off_t)done);
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) break;
            done += (size_t)count;
        }
    }
    if (picture->name >= 0) close(file);
    return done == size && context->file.bytes ? context->file.bytes : NULL;
}

/* Write a view of each picture into out[count][side][side][3], and what became of it into its status.

   `names`: paths of files, each ending with a 0. `draws`: [count][DRAWS] uniform numbers; NULL: the centre, not mirrored. `crop`: a random view, and not the centre.
   `height`, `width`: of stored pixels; 0: pictures are JPEG. JPEGs of more than `most_pixels` are not taken. */
void kernel_batch(Context *context, Picture *pictures, const char *names, int count, int height, int width,
                  double most_pixels, const double *draws, int crop, int side, uint8_t *out) {
    for (int at = 0; at < count; at++) {
        Picture *picture = pictures + at;
        const double *own = draws ? draws + (size_t)at * DRAWS : NULL;
        uint8_t *target = out + (size_t)at * side * side * 3;
        if (!context) {
            picture->status = NO_MEMORY;
            continue;
        }
        const uint8_t *data = picture->bytes ? picture->bytes : read_file(context, picture, names);
        if (!data) picture->status = UNREAD;
        else if (!height) picture->status = show_jpeg(context, data, (size_t)picture->size, own, crop, most_pixels, side, target);
        else if (picture->size < (int64_t)height * width * 3) picture->status = UNREAD;
        else picture->status = show_pixels(context, data, height, width, own, crop, side, target);
    }
}

/*
 * Draws one sample: choose a digit and a glyph, flatten its strokes to short segments, map their
 * ends through a smooth random warp (the elastic part) and a random affine map, ink every pixel by
 * its distance to the nearest segment, then add specks of other strokes and noise.
 *
 * Randomness is SplitMix64 (Steele, Lea, Flood 2014) keyed by seed, split and index.  Only + - * /,
 * sqrt and floor are used, with a polynomial for the sine, so the result does not depend on a
 * library.  About 8 microseconds per sample; no allocation, no shared state.
 */
#include "worker/data/digits.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define WAVES        3
#define ARC_DEGREES  20.0F /* of one segment */
#define SEGMENTS_MAX 96
#define CENTRE       (0.5F * (DIGITS_SIDE - 1))
#define EDGE_PIXELS  0.5F /* anti-aliasing: ink fades over twice this width */
#define GOLDEN_GAMMA UINT64_C(0x9e3779b97f4a7c15)

/* Variation of the samples; tuned by training on them
 * (tests/worker/data/test_digits_learning.c). */
#define HEIGHT_MIN     15.0F /* pixels */
#define HEIGHT_MAX     21.0F
#define ASPECT_MIN     0.50F /* width by height */
#define ASPECT_MAX     0.85F
#define ROTATION_TURNS 0.042F
#define SHEAR          0.27F
#define SHIFT_PIXELS   1.7F
#define JITTER         0.035F /* of a stroke's coordinates, in the unit box */
#define WARP           0.050F /* amplitude of one wave, in the unit box */
#define RADIUS_MIN     0.70F  /* half the thickness, pixels */
#define RADIUS_MAX     1.60F
#define SPECKS_MAX     3
#define NOISE          0.10F

struct splitmix64 {
    uint64_t state;
};

struct point {
    float x, y;
};

struct segment {
    struct point from, to;
};

struct wave {
    struct point frequency; /* turns per unit */
    struct point amplitude;
    float phase; /* turns */
};

/* Unit box to pixels: warp, then the affine map. */
struct map {
    struct wave waves[WAVES];
    float xx, xy, yx, yy;
    struct point shift;
};

static uint64_t splitmix64_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t draw_u64(struct splitmix64 *d)
{
    d->state += GOLDEN_GAMMA;
    return splitmix64_mix(d->state);
}

static float draw_between(struct splitmix64 *d, float low, float high)
{
    return low + (high - low) * ((float)(draw_u64(d) >> 40) * 0x1p-24F);
}

/* In [-size, size], more often near 0: the mean of two uniform values. */
static float draw_around_zero(struct splitmix64 *d, float size)
{
    return 0.5F * (draw_between(d, -size, size) + draw_between(d, -size, size));
}

/* C does not specify the order of calls inside an expression, and the order of draws must be fixed:
 * so no expression draws twice, except to add the two. */
static struct point draw_point(struct splitmix64 *d, float low, float high)
{
    struct point p;

    p.x = draw_between(d, low, high);
    p.y = draw_between(d, low, high);
    return p;
}

static unsigned draw_below(struct splitmix64 *d, unsigned end)
{
    return (unsigned)((draw_u64(d) >> 32) * end >> 32);
}

/* sin(2 pi t), to about 4e-6. */
static float sin_turns(float t)
{
    float x;
    float xx;

    t -= floorf(t + 0.5F);
    if (t > 0.25F)
        t = 0.5F - t;
    if (t < -0.25F)
        t = -0.5F - t;
    x = t * 6.2831853F;
    xx = x * x;
    return x * (1 + xx * (-1.0F / 6 + xx * (1.0F / 120 + xx * (-1.0F / 5040 + xx / 362880))));
}

static float cos_turns(float t)
{
    return sin_turns(t + 0.25F);
}

/* The strokes of a glyph as segments in the unit box, each coordinate moved by up to JITTER. */
static unsigned flatten_glyph(struct splitmix64 *d, const struct glyph *glyph,
                              struct segment *segments)
{
    unsigned length = 0;

    for (unsigned i = 0; i < glyph->length; i++) {
        float coords[6];
        unsigned parts = 4;
        struct point last = {0};

        for (unsigned k = 0; k < 6; k++)
            coords[k] =
                glyph->strokes[i].coords[k] +
                draw_around_zero(d, k < 4 ? JITTER : JITTER * 360); /* 4 and 5 are degrees */
        if (glyph->strokes[i].kind == STROKE_ARC)
            parts = 1 + (unsigned)((coords[5] - coords[4]) / ARC_DEGREES);
        for (unsigned k = 0; k <= parts && length < SEGMENTS_MAX; k++) {
            float along = (float)k / (float)parts;
            float turns = (coords[4] + along * (coords[5] - coords[4])) / 360;
            struct point p = {coords[0] + coords[2] * cos_turns(turns),
                              coords[1] + coords[3] * sin_turns(turns)};

            if (glyph->strokes[i].kind == STROKE_LINE)
                p = (struct point){coords[0] + along * (coords[2] - coords[0]),
                                   coords[1] + along * (coords[3] - coords[1])};
            if (k > 0)
                segments[length++] = (struct segment){last, p};
            last = p;
        }
    }
    return length;
}

static struct map draw_map(struct splitmix64 *d)
{
    struct map m;
    float height = draw_between(d, HEIGHT_MIN, HEIGHT_MAX);
    float width = height * draw_between(d, ASPECT_MIN, ASPECT_MAX);
    float turns = draw_around_zero(d, 2 * ROTATION_TURNS);
    float shear = draw_around_zero(d, 2 * SHEAR);
    float c = cos_turns(turns);
    float s = sin_turns(turns);

    for (unsigned i = 0; i < WAVES; i++) {
        m.waves[i].frequency = draw_point(d, -1, 1);
        m.waves[i].amplitude = draw_point(d, -WARP, WARP);
        m.waves[i].phase = draw_between(d, 0, 1);
    }
    m.xx = c * width;
    m.xy = (c * shear - s) * height;
    m.yx = s * width;
    m.yy = (s * shear + c) * height;
    m.shift = draw_point(d, CENTRE - SHIFT_PIXELS, CENTRE + SHIFT_PIXELS);
    return m;
}

static struct point map_point(const struct map *m, struct point p)
{
    struct point q = {p.x - 0.5F, p.y - 0.5F};

    for (unsigned i = 0; i < WAVES; i++) {
        const struct wave *w = &m->waves[i];
        float height = sin_turns(w->frequency.x * p.x + w->frequency.y * p.y + w->phase);

        q.x += w->amplitude.x * height;
        q.y += w->amplitude.y * height;
    }
    return (struct point){m->xx * q.x + m->xy * q.y + m->shift.x,
                          m->yx * q.x + m->yy * q.y + m->shift.y};
}

/* Truncate a coordinate to a pixel, clamped to the canvas. */
static int pixel_from(float at)
{
    return at <= 0 ? 0 : at >= DIGITS_SIDE ? DIGITS_SIDE : (int)at;
}

/* Darken the pixels near a segment to at least `strength`, fading over its edge. */
static void ink_segment(float *canvas, const struct segment *s, float radius, float strength)
{
    float reach = radius + EDGE_PIXELS;
    struct point d = {s->to.x - s->from.x, s->to.y - s->from.y};
    float length2 = d.x * d.x + d.y * d.y + 1e-6F;
    int left = pixel_from(fminf(s->from.x, s->to.x) - reach);
    int right = pixel_from(fmaxf(s->from.x, s->to.x) + reach + 1);
    int top = pixel_from(fminf(s->from.y, s->to.y) - reach);
    int bottom = pixel_from(fmaxf(s->from.y, s->to.y) + reach + 1);

    for (int y = top; y < bottom; y++) {
        for (int x = left; x < right; x++) { /* no branches, so that the compiler vectorises it */
            float *pixel = &canvas[y * DIGITS_SIDE + x];
            struct point p = {(float)x - s->from.x, (float)y - s->from.y};
            float along = (p.x * d.x + p.y * d.y) / length2;
            float distance2;
            float ink;

            along = along < 0 ? 0 : along;
            along = along > 1 ? 1 : along;
            p.x -= along * d.x;
            p.y -= along * d.y;
            distance2 = p.x * p.x + p.y * p.y;
            ink = (reach - sqrtf(distance2)) / (2 * EDGE_PIXELS);
            ink = strength * (ink > 1 ? 1 : ink);
            ink = distance2 >= reach * reach ? 0 : ink;
            *pixel = ink > *pixel ? ink : *pixel;
        }
    }
}

/* Short strokes that are not part of a digit. */
static void ink_specks(struct splitmix64 *d, float *canvas)
{
    unsigned count = draw_below(d, SPECKS_MAX + 1);

    for (unsigned i = 0; i < count; i++) {
        struct point from = draw_point(d, 0, DIGITS_SIDE);
        struct point span = draw_point(d, -4, 4);
        struct segment s = {from, {from.x + span.x, from.y + span.y}};
        float radius = draw_between(d, 0.3F, 0.9F);
        float strength = draw_between(d, 0.3F, 0.9F);

        ink_segment(canvas, &s, radius, strength);
    }
}

/* Grain: two bytes of one word per pixel, their sum scaled to +-amplitude. */
static void add_noise(struct splitmix64 *d, const float *canvas, unsigned char *pixels)
{
    float amplitude = draw_between(d, 0, NOISE);
    int sums[DIGITS_PIXELS];

    for (unsigned i = 0; i < DIGITS_PIXELS; i += 4) {
        uint64_t word = draw_u64(d);

        for (unsigned k = 0; k < 4; k++)
            sums[i + k] = (int)((word >> 16 * k & 0xff) + (word >> (16 * k + 8) & 0xff));
    }
    for (unsigned i = 0; i < DIGITS_PIXELS; i++) {
        float value = 255 * (canvas[i] + amplitude * ((float)sums[i] / 255 - 1)) + 0.5F;

        value = value < 0 ? 0 : value;
        pixels[i] = (unsigned char)(int)(value > 255 ? 255 : value);
    }
}

unsigned digits_draw(uint64_t seed, enum dataset_split split, uint64_t index,
                     unsigned char pixels[DIGITS_PIXELS])
{
    struct splitmix64 d = {
        splitmix64_mix(splitmix64_mix(seed + GOLDEN_GAMMA) + 2 * index + (split == SPLIT_TEST))};
    float canvas[DIGITS_PIXELS] = {0};
    struct segment segments[SEGMENTS_MAX];
    struct segment s = {0};
    unsigned digit = draw_below(&d, DIGITS_CLASSES);
    unsigned glyph_count;
    const struct glyph *glyphs = digits_glyphs(digit, &glyph_count);
    unsigned length = flatten_glyph(&d, &glyphs[draw_below(&d, glyph_count)], segments);
    struct map map = draw_map(&d);
    float radius = draw_between(&d, RADIUS_MIN, RADIUS_MAX);
    float strength = draw_between(&d, 0.7F, 1);

    for (unsigned i = 0; i < length; i++) {
        bool joined = i > 0 && segments[i].from.x == segments[i - 1].to.x &&
                      segments[i].from.y == segments[i - 1].to.y;

        s.from = joined ? s.to : map_point(&map, segments[i].from);
        s.to = map_point(&map, segments[i].to);
        ink_segment(canvas, &s, radius, strength);
    }
    ink_specks(&d, canvas);
    add_noise(&d, canvas, pixels);
    return digit;
}

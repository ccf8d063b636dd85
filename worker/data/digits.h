/*
 * digits: handwriting-like 28x28 images of the ten digits, drawn by formula, so that training needs
 * neither a download nor a file.  A sample depends on (seed, split, index) only, and uses only
 * operations whose rounding IEEE 754 defines: every machine draws the same bytes.
 * Called by dataset_digits.  Threads: no shared state.
 */
#ifndef SPARRING_WORKER_DATA_DIGITS_H
#define SPARRING_WORKER_DATA_DIGITS_H

#include "worker/data/dataset.h"

#include <stddef.h>
#include <stdint.h>

#define DIGITS_SIDE    28
#define DIGITS_PIXELS  (DIGITS_SIDE * DIGITS_SIDE)
#define DIGITS_CLASSES 10

/* Draw sample `index` into pixels (28, 28), row-major, 0 (paper) to 255 (ink); returns its
 * label. */
unsigned digits_draw(uint64_t seed, enum dataset_split split, uint64_t index,
                     unsigned char pixels[DIGITS_PIXELS]);

/* ---- shapes, for digits.c ---- */

enum stroke_kind { STROKE_LINE, STROKE_ARC };

struct stroke {
    enum stroke_kind kind;
    /* line: x0 y0 x1 y1; arc: centre x y, radius x y, first and last angle in degrees, clockwise
     * from the right.  In a unit box, y down. */
    float coords[6];
};

struct glyph {
    unsigned length;
    struct stroke strokes[5];
};

/* The glyphs of `digit` (below 10), *ret_count of them. */
const struct glyph *digits_glyphs(unsigned digit, unsigned *ret_count);

#endif

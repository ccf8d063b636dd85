/*
 * The glyphs of the ten digits as lines and arcs in a unit box: three or four per digit.
 */
#include "worker/data/digits.h"

/* clang-format off */
#define LINE(x0, y0, x1, y1)           {STROKE_LINE, {(x0), (y0), (x1), (y1)}}
#define ARC(x, y, rx, ry, first, last) {STROKE_ARC, {(x), (y), (rx), (ry), (first), (last)}}

static const struct glyph zero[] = {
    {1, {ARC(.50F, .50F, .42F, .50F, 0, 360)}},
    {1, {ARC(.50F, .50F, .34F, .50F, -80, 292)}},
    {1, {ARC(.50F, .50F, .46F, .46F, -110, 250)}},
};

static const struct glyph one[] = {
    {1, {LINE(.50F, .00F, .50F, 1.0F)}},
    {2, {LINE(.22F, .28F, .55F, .00F), LINE(.55F, .00F, .55F, 1.0F)}},
    {3, {LINE(.25F, .22F, .52F, .00F), LINE(.52F, .00F, .52F, 1.0F), LINE(.20F, 1.0F, .84F, 1.0F)}},
};

static const struct glyph two[] = {
    {3, {ARC(.50F, .29F, .38F, .29F, 180, 385), LINE(.84F, .41F, .08F, 1.0F),
         LINE(.08F, 1.0F, .96F, 1.0F)}},
    {3, {ARC(.48F, .27F, .40F, .27F, 200, 400), LINE(.79F, .44F, .16F, .90F),
         ARC(.56F, 1.25F, .55F, .40F, 225, 300)}},
    {4, {ARC(.50F, .28F, .36F, .28F, 190, 390), LINE(.81F, .42F, .26F, .86F),
         ARC(.20F, .87F, .13F, .10F, 0, 300), LINE(.24F, .79F, 1.0F, 1.0F)}},
};

static const struct glyph three[] = {
    {2, {ARC(.45F, .26F, .38F, .26F, 205, 450), ARC(.44F, .75F, .44F, .25F, 270, 510)}},
    {3, {LINE(.10F, .00F, .86F, .00F), LINE(.86F, .00F, .42F, .42F),
         ARC(.40F, .71F, .46F, .29F, 270, 500)}},
    {2, {ARC(.42F, .25F, .44F, .25F, 220, 430), ARC(.42F, .73F, .50F, .27F, 285, 495)}},
};

static const struct glyph four[] = {
    {3, {LINE(.70F, .00F, .05F, .66F), LINE(.05F, .66F, .98F, .66F), LINE(.70F, .00F, .70F, 1.0F)}},
    {3, {LINE(.15F, .00F, .10F, .54F), LINE(.10F, .54F, .95F, .50F), LINE(.80F, .04F, .74F, 1.0F)}},
    {3, {ARC(.52F, .08F, .42F, .48F, 85, 190), LINE(.50F, .56F, .92F, .53F),
         LINE(.88F, .00F, .78F, 1.0F)}},
};

static const struct glyph five[] = {
    {3, {LINE(.90F, .00F, .20F, .00F), LINE(.20F, .00F, .14F, .46F),
         ARC(.45F, .69F, .44F, .31F, 222, 505)}},
    {3, {LINE(.95F, .04F, .28F, .00F), LINE(.28F, .00F, .22F, .42F),
         ARC(.40F, .70F, .48F, .30F, 245, 490)}},
    {2, {ARC(.80F, .30F, .58F, .29F, 160, 275), ARC(.36F, .70F, .50F, .32F, 260, 480)}},
};

static const struct glyph six[] = {
    {2, {ARC(.85F, .72F, .76F, .72F, 180, 265), ARC(.50F, .71F, .40F, .29F, 0, 360)}},
    {2, {LINE(.66F, .00F, .15F, .60F), ARC(.48F, .71F, .37F, .29F, 0, 360)}},
    {3, {ARC(.62F, .50F, .48F, .50F, 180, 290), LINE(.14F, .50F, .14F, .72F),
         ARC(.50F, .72F, .36F, .28F, 180, 530)}},
};

static const struct glyph seven[] = {
    {2, {LINE(.05F, .00F, .95F, .00F), LINE(.95F, .00F, .34F, 1.0F)}},
    {3, {LINE(.05F, .03F, .95F, .00F), LINE(.95F, .00F, .40F, 1.0F), LINE(.36F, .52F, .88F, .48F)}},
    {2, {LINE(.05F, .06F, .96F, .00F), ARC(1.05F, 1.0F, .65F, 1.0F, 180, 262)}},
    {3, {LINE(.06F, .20F, .10F, .00F), LINE(.10F, .00F, .92F, .02F), LINE(.92F, .02F, .48F, 1.0F)}},
};

static const struct glyph eight[] = {
    {2, {ARC(.50F, .25F, .34F, .25F, 0, 360), ARC(.50F, .75F, .42F, .25F, 0, 360)}},
    {2, {ARC(.54F, .23F, .30F, .23F, 0, 360), ARC(.46F, .73F, .40F, .27F, 0, 360)}},
    {4, {ARC(.50F, .24F, .36F, .24F, 150, 390), LINE(.81F, .36F, .15F, .64F),
         ARC(.50F, .76F, .40F, .24F, -30, 210), LINE(.19F, .36F, .85F, .64F)}},
};

static const struct glyph nine[] = {
    {2, {ARC(.50F, .30F, .38F, .30F, 0, 360), LINE(.88F, .30F, .80F, 1.0F)}},
    {2, {ARC(.50F, .29F, .40F, .29F, 0, 360), ARC(.15F, .28F, .75F, .72F, 0, 85)}},
    {2, {ARC(.46F, .28F, .40F, .28F, -30, 320), LINE(.86F, .10F, .62F, 1.0F)}},
};
#define GLYPHS(array) {(array), sizeof(array) / sizeof((array)[0])}
/* clang-format on */

static const struct {
    const struct glyph *glyphs;
    unsigned count;
} digits[DIGITS_CLASSES] = {
    GLYPHS(zero), GLYPHS(one), GLYPHS(two),   GLYPHS(three), GLYPHS(four),
    GLYPHS(five), GLYPHS(six), GLYPHS(seven), GLYPHS(eight), GLYPHS(nine),
};

const struct glyph *digits_glyphs(unsigned digit, unsigned *ret_count)
{
    *ret_count = digits[digit].count;
    return digits[digit].glyphs;
}

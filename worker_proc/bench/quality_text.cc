// Written for this benchmark: prose, a how-to, a letter, code, a table, French and Japanese, about
// as long as three windows of 512 tokens.
#include "worker_proc/bench/quality.h"

namespace flotilla::bench {

const char kQualityText[] =
    R"(The mill stood at the bend of the river, where the water slowed before it fell. For two hundred
years it had ground the valley's corn, and for thirty more it had done nothing at all. When Ines
bought it the roof had three holes, the wheel had lost half of its paddles, and a family of owls lived
where the millstones had been. The notary asked her twice whether she was sure. She signed, paid, and
walked home in the rain without an umbrella, because she wanted to see how the water would come down
the hill on a day like this.

It came down in four places. The first was the old channel, which still led to the wheel and was full
of leaves. The second was a ditch that somebody had dug to keep the road dry. The third was the road.
The fourth was the one that mattered: a thin, clear stream that came out of the bank behind the house,
warm in winter and cold in summer, and never stopped. Her grandfather had told her about it. He had
worked at the mill as a boy, and he used to say that the river was for the miller but the spring was for
the people.

In April she cleaned the channel. In May a carpenter from the next village came to look at the wheel. He
was a quiet man who measured everything twice and wrote the numbers on his sleeve. "Oak," he said at
last. "Twenty-four paddles, and a new axle if you can pay for it." She asked what it would cost. He told
her, and she laughed, and then she asked how long it would last. "Longer than either of us," he said,
and that was the end of the discussion.

How to read a water meter
1. Find the meter. In most houses it is in the cellar, close to the wall that faces the street.
2. Wipe the glass. The black digits count whole cubic metres, the red ones parts of them.
3. Close all taps and look at the small star in the middle. If it turns, there is a leak.
4. Write down the black digits and the date. Do the same a month later.
5. Subtract the first number from the second. One cubic metre is one thousand litres, so a household of
   two that uses seven cubic metres a month needs about one hundred and fifteen litres a person and day.

Dear Mr. Okafor,
thank you for your letter of 3 March. We have looked at the pump that you returned to us. The seal had
been damaged by sand, which suggests that the filter was missing when the pump was last used. As the
guarantee does not cover this we can offer you a repair for 84.50 euros, or a new pump of the same type
at a discount of twenty per cent. Please let us know by the end of the month what you would prefer.
Yours sincerely, R. Lindqvist

def water_level(readings, limit=2.5):
    """Yields (time, level) for every reading that exceeds the limit, smoothed over three values."""
    window = []
    for time, level in readings:
        window.append(level)
        if len(window) > 3:
            window.pop(0)
        smooth = sum(window) / len(window)
        if smooth > limit:
            yield time, round(smooth, 2)


for time, level in water_level(load("gauge.csv"), limit=3.0):
    print(f"{time:%H:%M}  {level:5.2f} m")

| month | rain, mm | level, m | days above 3 m |
|---|---:|---:|---:|
| January | 81 | 2.4 | 3 |
| February | 64 | 2.1 | 0 |
| March | 97 | 2.9 | 9 |
| April | 55 | 1.8 | 0 |
| May | 72 | 2.0 | 1 |

Why does a river meander? A straight channel is not stable. If the current is a little faster on one
side, it carries away more of that bank and drops what it carries on the other side, where it is slower.
So the bend grows, and a bend makes the water on its outside faster still. At the same time the surface
water is pushed outwards and the water at the bottom flows back inwards, which moves sand and gravel from
the outer bank to the inner one. After some centuries two bends can come so close that a flood breaks
through between them. The old loop is then cut off, fills with mud and plants, and becomes a lake in the
shape of a horseshoe. A simple rule holds for small streams and for the largest rivers on earth: the
length of a meander is about eleven times the width of the channel.

Le moulin tourne de nouveau. Hier, pour la première fois depuis trente ans, l'eau est passée sous la roue
et la grande pierre s'est mise à bouger. Tout le village était là : les enfants sur le mur, les vieux sur
le banc, et le maire, qui avait préparé un discours et qui l'a oublié. Ines a versé un sac de blé dans la
trémie. On a attendu un peu, sans parler, puis la farine est tombée, fine et tiède, et quelqu'un a dit
qu'il fallait en faire du pain tout de suite.

水車は春から秋まで回ります。冬は川の水が少なくなるので、村の人たちは石を外して、きれいに洗います。子どもたちは氷の上で遊び、
お年寄りは火のそばで昔の話をします。「水は急がないけれど、必ず海に着く」と祖母はよく言っていました。

In the evening, when everyone had gone, Ines sat on the step with the carpenter and listened. The wheel
made the sound that her grandfather had tried to describe to her when she was six: not a rumble and not
a splash but something between the two, over and over, like a large animal that breathes in its sleep.
"It needs grease," said the carpenter after a while. "Tomorrow," said Ines. The owls had moved to the
church tower. The spring behind the house ran as it always had.
)";

}  // namespace flotilla::bench

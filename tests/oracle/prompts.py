"""The texts whose logits the oracle compares: written for this test, in several languages.

Their token counts differ, so that a sequence in a logits dump is identified by its length; one is
longer than the default prefill chunk (512), the others 60 to 300 tokens.
"""

STORY = """\
The ferry left the harbour a little after six, when the lamps along the quay were still lit and the \
fog had not yet decided whether to stay. Marta stood at the stern with her collar turned up and \
counted the posts as they slid away: eleven, twelve, thirteen, and then nothing but grey water. She \
had promised her brother that she would not look back. It was a childish promise, made over cold \
soup in a kitchen that smelled of varnish, and she broke it before the first bell.

"You will catch a chill," said the man beside her, who had been reading the same page of his \
newspaper since they boarded. He did not lower it. "They serve tea inside. It is bad tea, but it is \
hot, and nobody asks where you are going."

"Where are you going?" asked Marta.

"To the island, like everyone else. There is only the island." He folded the paper at last, twice, \
and put it under his arm. "I repair clocks. There is one in the lighthouse that has been wrong for \
thirty years, and this spring somebody noticed.\""""

EXPLANATION = """\
A hash table stores each key in a bucket that is chosen by a function of the key. If the function \
spreads the keys evenly, a lookup inspects only a few entries, however large the table is. Two \
questions decide whether this works in practice. The first is what to do when several keys want the \
same bucket: one can chain them in a list, or probe the neighbouring buckets until a free one is \
found. The second is when to grow. As long as the table doubles whenever it is three quarters full, \
the cost of moving the entries, spread over all insertions, stays constant. An adversary who knows \
the function can still choose keys that collide, which is why servers mix a secret into it."""

CHAT = """\
<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
What is the capital of France, and which river runs through it?<|im_end|>
<|im_start|>assistant
The capital of France is Paris. The river Seine runs through it, from south-east to north-west.\
<|im_end|>
<|im_start|>user
Name three of its bridges, please.<|im_end|>
<|im_start|>assistant
"""

FRENCH = """\
Le boulanger ouvrait sa boutique avant l'aube, lorsque la rue n'était encore qu'un couloir d'ombre \
où passaient les chats. Il disait que la pâte se moque des horloges : elle lève quand elle veut, et \
c'est à l'homme de s'y plier. À sept heures, les premiers clients arrivaient ; on se saluait, on \
parlait du temps, des élections, de la hausse du prix du beurre. « Une baguette bien cuite, s'il \
vous plaît, et deux croissants pour les enfants », demandait toujours Madame Lefèvre, qui n'avait \
pourtant plus d'enfants à la maison depuis longtemps. Personne ne le lui faisait remarquer."""

FRENCH_RECIPE = """\
Gratin dauphinois (pour 6 personnes) : épluchez 1,2 kg de pommes de terre, coupez-les en fines \
rondelles sans les rincer, puis faites-les cuire dix minutes dans un mélange de lait et de crème \
avec une gousse d'ail écrasée, du sel et de la noix de muscade. Versez le tout dans un plat beurré \
et laissez dorer une heure au four à 160 °C."""

JAPANESE = """\
うちの庭には、古い柿の木が一本あります。祖父が子どものころに植えたそうで、今では屋根より高くなりました。\
秋になると、鳥たちが先に実を食べに来ます。母は「半分は鳥の分よ」と言って、決して追い払いません。"""

JAPANESE_NOTE = """\
会議は午後3時からです。資料は30部コピーして、会議室Bの机に置いてください。よろしくお願いいたします。返信は不要です。"""

EMOJI = """\
Trip report 🚂✨: day 1 — mountains ⛰️🌲, day 2 — rain 🌧️☔ all day 😩, day 3 — finally the sea \
🌊🏖️!! The family 👨‍👩‍👧‍👦 loved it 🥰; flags seen: 🇫🇷 🇯🇵 🇧🇷. Food rating: 🍜🍜🍜🍜 / 5. \
Would go again 👍🏽👍🏿 #travel"""

NUMBERS = """\
Quarter,Revenue,Cost,Margin
2021Q1,104233.50,88121.07,0.1546
2021Q2,118902.00,97345.62,0.1813
2021Q3,99870.25,90012.44,0.0987
2021Q4,153001.75,120774.90,0.2106
Total,476007.50,396254.03,0.1675
"""

PYTHON = '''\
import bisect
import dataclasses


@dataclasses.dataclass(order=True)
class Interval:
    """Half-open range [begin, end) with a label."""

    begin: int
    end: int
    label: str = dataclasses.field(default="", compare=False)

    def overlaps(self, other: "Interval") -> bool:
        return self.begin < other.end and other.begin < self.end


class Calendar:
    def __init__(self):
        self._events: list[Interval] = []

    def book(self, event: Interval) -> bool:
        """Adds the event unless it overlaps one that is already there."""
        i = bisect.bisect_left(self._events, event)
        neighbours = self._events[max(0, i - 1) : i + 1]
        if any(event.overlaps(n) for n in neighbours):
            return False
        self._events.insert(i, event)
        return True
'''

CPP = """\
// Splits `text` at every `separator`; empty parts are kept, so that join(split(x)) == x.
std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || text[i] == separator) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return parts;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s a,b,c\\n", argv[0]);
    return EXIT_FAILURE;
  }
  for (const auto part : Split(argv[1], ',')) std::cout << '[' << part << "]\\n";
}
"""

MIXED = """\
Glossary: "bonjour" (fr) = "hello" (en) = "こんにちは" (ja) = "你好" (zh) = "Здравствуйте" (ru) = \
"γειά σου" (el) = "שלום" (he) = "नमस्ते" (hi). Symbols: ∀x∈ℝ, x² ≥ 0; €1 ≈ ¥160; 5 µm; naïve café; \
tabs\tand  double  spaces\r\nand a line break."""

# Past one whole chunk of prefill, with text that repeats itself, as attention then reaches far back.
LONG = EXPLANATION + "\n\n" + STORY + "\n\nSummary of both texts above, in one sentence each:\n1. " \
    "A hash table finds a key quickly as long as its function spreads the keys evenly.\n2. Marta " \
    "takes the early ferry to the island and meets a man who repairs clocks.\n\n" + EXPLANATION

PROMPTS = {
    "story": STORY,
    "explanation": EXPLANATION,
    "chat": CHAT,
    "french": FRENCH,
    "french_recipe": FRENCH_RECIPE,
    "japanese": JAPANESE,
    "japanese_note": JAPANESE_NOTE,
    "emoji": EMOJI,
    "numbers": NUMBERS,
    "python": PYTHON,
    "cpp": CPP,
    "mixed": MIXED,
    "long": LONG,
}
